// The network of the page, as it is shown: perhaps changed, perhaps softer; and its run.

import { AS_BUILT, Network } from "./executor.js";
import { brokenNetwork } from "./breaking.js";
import { targetOf } from "./target.js";

/** @typedef {import("./executor.js").Softness} Softness */
/** @typedef {import("./store.js").State} State */

/** Cells per axis up to which a page follows them. */
const MOST_CELLS = 1024;

export class Session {
  /** @param {any} data */
  constructor(data) {
    this.data = data;
    this.original = new Network(data.network);
    /** @type {Network} */
    this.network = this.original;
    this.target = targetOf(data.function, this.original.n, this.original.d);
    /** @type {Softness} */
    this.softness = AS_BUILT;
    const known = this.original.construction || this.original.program;
    /** @type {number[]} */ this.lows = known ? known.lows : Array(this.original.d).fill(0);
    /** @type {number[]} */ this.highs = known ? known.highs : Array(this.original.d).fill(1);
    /** How far outside the box tokens may be moved, in box widths. */
    this.reach = known && known.reach > 0 ? 0.25 : 0;
    const grid = this.original.construction ? this.original.construction.grid : null;
    /** Cells per axis; null for a network without a grid, or with more cells than can be drawn. @type {number|null} */
    this.K = grid !== null && grid <= MOST_CELLS ? grid : null;
    /** For drawings of single cells. @type {number} */
    this.drawnCells = this.K !== null && this.K <= 40 ? this.K : 1;
  }

  /**
   * Follow the state.
   * @param {State} state
   * @param {Set<string>|null} changed
   */
  follow(state, changed = null) {
    if (!changed || changed.has("broken")) {
      this.network = brokenNetwork(this.original, state.broken);
    }
    this.softness = softnessOf(state.sharp);
    const needs = ["x", "broken", "sharp"];
    if (!changed || needs.some((key) => changed.has(key))) {
      const begin = performance.now();
      this.run = this.network.run(state.x, this.softness);
      const spent = performance.now() - begin;
      // The first runs are slow, before the code is compiled.
      this.milliseconds = changed ? Math.min(this.milliseconds || Infinity, spent) : this.network.blocks * 1e-3;
      this.f = this.target ? this.target.call(state.x) : null;
    }
  }

  /** Whether what runs is what the certificate is about. */
  get asBuilt() {
    return this.network === this.original && this.softness === AS_BUILT;
  }

  /**
   * A number in [0, 1] as a coordinate of the box.
   * @param {number} share
   * @param {number} i
   */
  inBox(share, i) {
    return this.lows[i] + share * (this.highs[i] - this.lows[i]);
  }

  /** Whether an input lies outside the box. @param {ArrayLike<number>} x */
  outside(x) {
    const d = this.original.d;
    return Array.from(x).some((v, k) => v < this.lows[k % d] || v > this.highs[k % d]);
  }
}

/** @param {number} sharp @returns {Softness} */
export function softnessOf(sharp) {
  if (sharp === 0) return AS_BUILT;
  return sharp > 0 ? { scale: 1, hard: true } : { scale: 2 ** sharp, hard: false };
}
