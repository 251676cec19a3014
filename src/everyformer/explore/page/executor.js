// The network itself: every block, in order, in float64.

import { fullArray, stackOf } from "./arrays.js";
import { runLayer, runOn } from "./layers.js";
import { Run } from "./run.js";

/** @typedef {import("./arrays.js").Stack} Stack */

/**
 * @typedef {object} Attention
 * @property {number} h
 * @property {number} m
 * @property {Stack} W_Q
 * @property {Stack} b_Q
 * @property {Stack} W_K
 * @property {Stack} W_V
 * @property {Stack} W_O
 * @property {Stack|null} b_V
 * @property {Stack|null} gain
 * @property {Stack|null} mask
 */

/**
 * @typedef {object} FeedForward
 * @property {number} r
 * @property {Stack} W_1
 * @property {Stack} b_1
 * @property {Stack} W_2
 * @property {Stack} b_2
 * @property {{breaks: Stack, closed: Stack, slopes: Stack, intercepts: Stack}|null} phi
 */

/**
 * @typedef {object} Stage
 * @property {string} name
 * @property {string} source
 * @property {string|null} kind
 * @property {number} blocks
 * @property {Attention|null} attention
 * @property {FeedForward|null} feedForward
 * @property {{file: string, docs: string, fileLink: string, docsLink: string}} code
 * @property {number[]|null} order  which layers run, and in which order; null for all
 */

/**
 * What a head did: softmax weights of every token, and the value that each token has.
 * @typedef {object} Probe
 * @property {Float64Array[]} weights  one matrix (n, n) for each head
 * @property {Float64Array[]} heard    what each token hears of each head, (n, m)
 */

/**
 * How softmax is taken: as in the weights (scale 1), softer, or as hardmax.
 * @typedef {{scale: number, hard: boolean}} Softness
 */

/** @type {Softness} */
export const AS_BUILT = { scale: 1, hard: false };

export class Network {
  /** @param {any} data */
  constructor(data) {
    /** @type {number} */ this.n = data.n;
    /** @type {number} */ this.d = data.d;
    /** @type {number} */ this.w = data.w;
    /** @type {number} */ this.prefix = data.prefix;
    /** @type {number} */ this.tokens = data.prefix + data.n;
    /** @type {boolean} */ this.hard = data.normaliser === "hardmax";
    /** @type {boolean} */ this.deaf = data.deaf;
    /** @type {any} */ this.construction = data.construction;
    /** @type {any} */ this.program = data.program;
    /** @type {string} */ this.className = data.className;
    /** @type {number} */ this.parameters = data.parameters;
    /** @type {Stage[]} */ this.stages = data.stages.map(readStage);
    this.positions = data.positions && fullArray(data.positions);
    this.registers = data.registers && {
      W_in: fullArray(data.registers.W_in),
      start: fullArray(data.registers.start),
      W_out: fullArray(data.registers.W_out),
      prefix: data.registers.prefix ? fullArray(data.registers.prefix) : null,
    };
    /** @type {number[]} */ this.starts = [];
    /** @type {number} */ this.blocks = 0;
    this.number();
  }

  /** Count the blocks of the stages as they run. */
  number() {
    this.starts = [];
    let at = 0;
    for (const stage of this.stages) {
      this.starts.push(at);
      at += stage.order ? stage.order.length : stage.blocks;
    }
    this.blocks = at;
  }

  /**
   * The same network with other stages: the weights are shared.
   * @param {Stage[]} stages
   * @returns {Network}
   */
  withStages(stages) {
    /** @type {Network} */
    const other = Object.create(Network.prototype);
    Object.assign(other, this, { stages });
    other.number();
    return other;
  }

  /**
   * Stage and layer of the block that is run as number `block`, from 0.
   * @param {number} block
   */
  place(block) {
    let index = this.starts.length - 1;
    while (index > 0 && this.starts[index] > block) index--;
    const stage = this.stages[index];
    const within = block - this.starts[index];
    return { index, stage, within, layer: stage.order ? stage.order[within] : within };
  }

  /**
   * What the first block sees.
   * @param {ArrayLike<number>} x  n d numbers
   * @returns {Float64Array}
   */
  enter(x) {
    const { n, d, w, registers } = this;
    const z = new Float64Array(this.tokens * w);
    if (!registers) {
      for (let k = 0; k < n * d; k++) z[k] = this.positions ? x[k] + this.positions[k] : x[k];
      return z;
    }
    if (registers.prefix) z.set(registers.prefix, 0);
    const at = this.prefix * w;
    for (let j = 0; j < n; j++) {
      for (let c = 0; c < w; c++) {
        let sum = 0;
        for (let i = 0; i < d; i++) sum += x[j * d + i] * registers.W_in[c * d + i];
        z[at + j * w + c] = sum + registers.start[j * w + c];
      }
    }
    return z;
  }

  /**
   * The result, from what the last block gives.
   * @param {Float64Array} z
   * @returns {Float64Array}
   */
  leave(z) {
    const { n, d, w, registers } = this;
    if (!registers) return z.slice(0, n * d);
    const out = new Float64Array(n * d);
    const at = this.prefix * w;
    for (let j = 0; j < n; j++) {
      for (let i = 0; i < d; i++) {
        let sum = 0;
        for (let c = 0; c < w; c++) sum += z[at + j * w + c] * registers.W_out[i * w + c];
        out[j * d + i] = sum;
      }
    }
    return out;
  }

  /**
   * One block, in place.
   * @param {number} block
   * @param {Float64Array} z
   * @param {Softness} softness
   * @param {Probe|null} probe
   */
  runBlock(block, z, softness, probe = null) {
    const { stage, layer } = this.place(block);
    runLayer(this, stage, layer, z, softness, probe);
  }

  /**
   * The whole network.
   * @param {ArrayLike<number>} x
   * @param {Softness} softness
   * @returns {Run}
   */
  run(x, softness = AS_BUILT) {
    return new Run(this, x, softness);
  }

  /**
   * The result alone, with nothing kept.
   * @param {ArrayLike<number>} x
   * @param {Softness} softness
   */
  evaluate(x, softness = AS_BUILT) {
    return this.leave(this.until(x, this.stages.length, softness));
  }

  /**
   * The state before stage `end`.
   * @param {ArrayLike<number>} x
   * @param {number} end
   * @param {Softness} softness
   */
  until(x, end, softness = AS_BUILT) {
    const z = this.enter(x);
    for (let s = 0; s < end; s++) {
      const stage = this.stages[s];
      const count = stage.order ? stage.order.length : stage.blocks;
      for (let k = 0; k < count; ) k = runOn(this, stage, k, z, softness);
    }
    return z;
  }

  /**
   * u^T z of every token of the sequence; null for a network without ids.
   * @param {Float64Array} z
   * @returns {number[]|null}
   */
  ids(z) {
    const known = this.construction && this.construction.ids;
    if (!known) return null;
    const { n, w } = this;
    const ids = [];
    for (let j = 0; j < n; j++) {
      let sum = 0;
      for (let c = 0; c < w; c++) sum += z[(this.prefix + j) * w + c] * known.direction[c];
      ids.push(sum);
    }
    return ids;
  }
}

/** @param {any} data @returns {Stage} */
function readStage(data) {
  const { attention: a, feedForward: f } = data;
  /** @param {any} entry */
  const maybe = (entry) => (entry ? stackOf(entry) : null);
  return {
    name: data.name,
    source: data.source,
    kind: data.kind,
    blocks: data.blocks,
    code: data.code,
    order: null,
    attention: a && {
      h: a.h,
      m: a.m,
      W_Q: stackOf(a.W_Q),
      b_Q: stackOf(a.b_Q),
      W_K: stackOf(a.W_K),
      W_V: stackOf(a.W_V),
      W_O: stackOf(a.W_O),
      b_V: maybe(a.b_V),
      gain: maybe(a.gain),
      mask: maybe(a.mask),
    },
    feedForward: f && {
      r: f.r,
      W_1: stackOf(f.W_1),
      b_1: stackOf(f.b_1),
      W_2: stackOf(f.W_2),
      b_2: stackOf(f.b_2),
      phi: f.phi && {
        breaks: stackOf(f.phi.breaks),
        closed: stackOf(f.phi.closed),
        slopes: stackOf(f.phi.slopes),
        intercepts: stackOf(f.phi.intercepts),
      },
    },
  };
}
