// A run of one sequence: the state after any number of blocks.
//
// Most blocks change nothing, so states are kept only after those that change something.

import { SEQUENCE, found, runOn } from "./layers.js";

/** @typedef {import("./executor.js").Network} Network */
/** @typedef {import("./executor.js").Probe} Probe */
/** @typedef {import("./executor.js").Softness} Softness */

/** Numbers of state that a run keeps; between kept states blocks are run again. */
const KEPT = 2e6;

export class Run {
  /**
   * @param {Network} network
   * @param {ArrayLike<number>} x
   * @param {Softness} softness
   */
  constructor(network, x, softness) {
    this.network = network;
    this.softness = softness;
    const z = network.enter(x);
    this.kept = new Kept(z);
    /** The blocks that changed the sequence, counted from 1, in order. @type {number[]} */
    this.changes = [];
    network.stages.forEach((stage, s) => {
      const count = stage.order ? stage.order.length : stage.blocks;
      for (let k = 0; k < count; ) {
        k = runOn(network, stage, k, z, softness);
        if (!found.changed) continue;
        this.kept.add(network.starts[s] + k, z);
        if (found.changed === SEQUENCE) this.changes.push(network.starts[s] + k);
      }
    });
    this.last = z;
    this.output = network.leave(z);
  }

  /**
   * The state after the first `count` blocks.
   * @param {number} count
   * @returns {Float64Array}
   */
  state(count) {
    if (count >= this.network.blocks) return this.last;
    const { after, z } = this.kept.before(count);
    for (let b = after; b < count; b++) this.network.runBlock(b, z, this.softness);
    return z;
  }

  /**
   * The next block after `from` that changes the sequence, or the last one before it; the end
   * or the beginning, if no other block does.
   * @param {number} from
   * @param {number} way  1 or -1
   */
  change(from, way) {
    const at = upTo(this.changes, way > 0 ? from : from - 1);
    return way > 0 ? (this.changes[at] ?? this.network.blocks) : at > 0 ? this.changes[at - 1] : 0;
  }

  /**
   * The state after every stage, the input first: what network.trace(x) has.
   * @returns {Float64Array[]}
   */
  trace() {
    const ends = [...this.network.starts, this.network.blocks];
    return ends.map((count) => this.state(count));
  }

  /**
   * What the heads of a block do.
   * @param {number} block
   * @returns {Probe}
   */
  probe(block) {
    /** @type {Probe} */
    const probe = { weights: [], heard: [] };
    this.network.runBlock(block, this.state(block).slice(), this.softness, probe);
    return probe;
  }
}

/** States after blocks that changed something: all of them, or every second, fourth, .. */
class Kept {
  /** @param {Float64Array} z  the state before the first block */
  constructor(z) {
    this.size = z.length;
    this.every = 1;
    /** @type {number[]} */ this.blocks = [];
    this.room = new Float64Array(64 * this.size);
    this.add(0, z);
  }

  /** @param {number} block @param {Float64Array} z  the state after it */
  add(block, z) {
    const at = this.blocks.length / this.every;
    this.blocks.push(block);
    if (!Number.isInteger(at)) return;
    if ((at + 1) * this.size > this.room.length) {
      const larger = new Float64Array(2 * this.room.length);
      larger.set(this.room);
      this.room = larger;
    }
    this.room.set(z, at * this.size);
    if ((at + 1) * this.size > KEPT) this.thin(at + 1);
  }

  /** Keep every second state. @param {number} count */
  thin(count) {
    for (let k = 2; k < count; k += 2) this.room.copyWithin((k / 2) * this.size, k * this.size, (k + 1) * this.size);
    this.every *= 2;
  }

  /**
   * The last kept state within the first `count` blocks.
   * @param {number} count
   */
  before(count) {
    let last = upTo(this.blocks, count) - 1;
    const exact = last % this.every === 0;
    last -= last % this.every;
    const at = (last / this.every) * this.size;
    return { after: exact ? count : this.blocks[last], z: this.room.slice(at, at + this.size) };
  }
}

/** How many numbers of an ascending list are at most `value`. @param {number[]} list @param {number} value */
function upTo(list, value) {
  let low = 0, high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}
