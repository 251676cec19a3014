// The network itself: every block, in order, in float64.
//
// Sums are taken in the order of everyformer/model/execute/cpu.py, so that results are equal
// bit for bit wherever softmax is one-hot. Elsewhere exp may differ in its last bit.

import { fullArray, stackOf } from "./arrays.js";

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

/** Numbers of state that a run keeps; between kept states blocks are run again. */
const KEPT = 2e6;

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
   * One block, in place. Returns whether a token of the sequence changed.
   * @param {number} block
   * @param {Float64Array} z
   * @param {Softness} softness
   * @param {Probe|null} probe
   */
  runBlock(block, z, softness, probe = null) {
    const { stage, layer } = this.place(block);
    return this.runLayer(stage, layer, z, softness, probe);
  }

  /**
   * @param {Stage} stage
   * @param {number} layer
   * @param {Float64Array} z
   * @param {Softness} softness
   * @param {Probe|null} probe
   */
  runLayer(stage, layer, z, softness, probe = null) {
    let changed = false;
    if (stage.attention && attend(this, stage.attention, layer, z, softness, probe)) changed = true;
    if (stage.feedForward && feed(this, stage.feedForward, layer, z)) changed = true;
    return changed;
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
      for (let k = 0; k < count; k++) {
        this.runLayer(stage, stage.order ? stage.order[k] : k, z, softness);
      }
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

/** A run of one sequence: the state after any number of blocks. */
export class Run {
  /**
   * @param {Network} network
   * @param {ArrayLike<number>} x
   * @param {Softness} softness
   */
  constructor(network, x, softness) {
    this.network = network;
    this.softness = softness;
    this.x = Float64Array.from(x);
    const z = network.enter(x);
    const size = z.length;
    this.size = size;
    this.step = Math.max(1, Math.ceil((network.blocks * size) / KEPT));
    this.kept = new Float64Array((Math.floor(network.blocks / this.step) + 1) * size);
    /** Whether block k changed the sequence. */
    this.changed = new Uint8Array(network.blocks);
    let block = 0;
    for (const stage of network.stages) {
      const count = stage.order ? stage.order.length : stage.blocks;
      for (let k = 0; k < count; k++, block++) {
        if (block % this.step === 0) this.kept.set(z, (block / this.step) * size);
        const layer = stage.order ? stage.order[k] : k;
        if (network.runLayer(stage, layer, z, softness)) this.changed[block] = 1;
      }
    }
    if (block % this.step === 0) this.kept.set(z, (block / this.step) * size);
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
    const at = Math.floor(count / this.step);
    const z = this.kept.slice(at * this.size, (at + 1) * this.size);
    for (let b = at * this.step; b < count; b++) this.network.runBlock(b, z, this.softness);
    return z;
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

let hidden = new Float64Array(16);

/**
 * FF(x) = x + W_2 phi(W_1 x + b_1) + b_2, token by token, in place.
 * @param {Network} network
 * @param {FeedForward} ff
 * @param {number} layer
 * @param {Float64Array} z
 */
function feed(network, ff, layer, z) {
  const { w, tokens, prefix } = network;
  const r = ff.r;
  if (hidden.length < r) hidden = new Float64Array(r);
  const t = hidden;
  const W_1 = ff.W_1.data, B_1 = ff.b_1.data, W_2 = ff.W_2.data, B_2 = ff.b_2.data;
  const w1 = layer * ff.W_1.stride, b1 = layer * ff.b_1.stride;
  const w2 = layer * ff.W_2.stride, b2 = layer * ff.b_2.stride;
  let changed = false;
  for (let j = 0; j < tokens; j++) {
    const at = j * w;
    for (let k = 0; k < r; k++) {
      let sum = W_1[w1 + k * w] * z[at];
      for (let i = 1; i < w; i++) sum += W_1[w1 + k * w + i] * z[at + i];
      sum += B_1[b1 + k];
      t[k] = ff.phi ? piece(ff.phi, layer, k, sum) : sum > 0 ? sum : 0;
    }
    for (let i = 0; i < w; i++) {
      let sum = W_2[w2 + i * r] * t[0];
      for (let k = 1; k < r; k++) sum += W_2[w2 + i * r + k] * t[k];
      const before = z[at + i];
      const after = before + (sum + B_2[b2 + i]);
      if (after !== before) {
        z[at + i] = after;
        if (j >= prefix) changed = true;
      }
    }
  }
  return changed;
}

/**
 * A function of Phi: three linear pieces.
 * @param {{breaks: Stack, closed: Stack, slopes: Stack, intercepts: Stack}} phi
 * @param {number} layer
 * @param {number} unit
 * @param {number} t
 */
function piece(phi, layer, unit, t) {
  const at = layer * phi.breaks.stride + 2 * unit;
  const shut = layer * phi.closed.stride + 2 * unit;
  let which = 2;
  if (t < phi.breaks.data[at] || (t === phi.breaks.data[at] && phi.closed.data[shut])) which = 0;
  else if (t < phi.breaks.data[at + 1] || (t === phi.breaks.data[at + 1] && phi.closed.data[shut + 1]))
    which = 1;
  const slope = phi.slopes.data[layer * phi.slopes.stride + 3 * unit + which];
  return slope * t + phi.intercepts.data[layer * phi.intercepts.stride + 3 * unit + which];
}

/** @typedef {Float64Array<ArrayBufferLike>} Room */
/** @type {Room} */ let query = new Float64Array(16);
/** @type {Room} */ let key = new Float64Array(16);
/** @type {Room} */ let value = new Float64Array(16);
/** @type {Room} */ let scores = new Float64Array(16);
/** @type {Room} */ let mixed = new Float64Array(16);
/** @type {Room} */ let update = new Float64Array(16);

/** @param {Room} array @param {number} size @returns {Room} */
const atLeast = (array, size) => (array.length < size ? new Float64Array(2 * size) : array);

/**
 * Attn(x) = x + sum_h softmax[(x W_Q - b_Q)(x W_K)^T] (x W_V + b_V) W_O, in place.
 * @param {Network} network
 * @param {Attention} a
 * @param {number} layer
 * @param {Float64Array} z
 * @param {Softness} softness
 * @param {Probe|null} probe
 */
function attend(network, a, layer, z, softness, probe) {
  const { w, tokens: N, prefix } = network;
  const { h, m } = a;
  const hard = network.hard || softness.hard;
  const scale = softness.scale;
  const first = network.deaf ? prefix : 0;
  query = atLeast(query, N * m);
  key = atLeast(key, N * m);
  value = atLeast(value, N * m);
  scores = atLeast(scores, N);
  mixed = atLeast(mixed, m);
  update = atLeast(update, N * w);
  update.fill(0, 0, N * w);
  const mask = a.mask ? a.mask.data : null;
  const maskAt = a.mask ? layer * a.mask.stride : 0;
  for (let head = 0; head < h; head++) {
    const q0 = layer * a.W_Q.stride + head * m * w, k0 = layer * a.W_K.stride + head * m * w;
    const v0 = layer * a.W_V.stride + head * m * w, o0 = layer * a.W_O.stride + head * w * m;
    const bq = layer * a.b_Q.stride + head * m;
    const bv = a.b_V ? layer * a.b_V.stride + head * m : 0;
    const g0 = a.gain ? layer * a.gain.stride + head * (2 * N - 1) + N - 1 : 0;
    for (let j = 0; j < N; j++) {
      for (let c = 0; c < m; c++) {
        let q = 0, k = 0, v = 0;
        for (let i = 0; i < w; i++) {
          const zi = z[j * w + i];
          q += a.W_Q.data[q0 + c * w + i] * zi;
          k += a.W_K.data[k0 + c * w + i] * zi;
          v += a.W_V.data[v0 + c * w + i] * zi;
        }
        query[j * m + c] = q - a.b_Q.data[bq + c];
        key[j * m + c] = k;
        value[j * m + c] = a.b_V ? v + a.b_V.data[bv + c] : v;
      }
    }
    const shown = probe ? new Float64Array(N * N) : null;
    const heard = probe ? new Float64Array(N * m) : null;
    for (let i = first; i < N; i++) {
      let top = -Infinity;
      for (let j = 0; j < N; j++) {
        if (mask && !mask[maskAt + i * N + j]) continue;
        let score = 0;
        for (let c = 0; c < m; c++) score += query[i * m + c] * key[j * m + c];
        if (scale !== 1) score *= scale;
        scores[j] = score;
        if (score > top) top = score;
      }
      let total = 0;
      for (let j = 0; j < N; j++) {
        if (mask && !mask[maskAt + i * N + j]) scores[j] = 0;
        else if (hard) scores[j] = scores[j] === top ? 1 : 0;
        else {
          const gap = scores[j] - top;
          scores[j] = gap === 0 ? 1 : gap < -760 ? 0 : Math.exp(gap);
        }
        total += scores[j];
      }
      for (let c = 0; c < m; c++) {
        let sum = 0;
        for (let j = 0; j < N; j++) {
          let share = scores[j] / total;
          if (a.gain) share *= a.gain.data[g0 + i - j];
          sum += share * value[j * m + c];
          if (shown) shown[i * N + j] = share;
        }
        mixed[c] = sum;
        if (heard) heard[i * m + c] = sum;
      }
      for (let c = 0; c < w; c++) {
        let part = 0;
        for (let b = 0; b < m; b++) part += a.W_O.data[o0 + c * m + b] * mixed[b];
        update[i * w + c] += part;
      }
    }
    if (probe && shown && heard) {
      probe.weights.push(shown);
      probe.heard.push(heard);
    }
  }
  let changed = false;
  for (let k = first * w; k < N * w; k++) {
    const before = z[k];
    const after = before + update[k];
    if (after !== before) {
      z[k] = after;
      if (k >= prefix * w) changed = true;
    }
  }
  return changed;
}
