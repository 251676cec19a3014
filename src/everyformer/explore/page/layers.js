// The two layers of a block, in place, and a loop over many blocks of one stage.
//
// Sums are taken in the order of everyformer/model/execute/cpu.py, so that results are equal
// bit for bit wherever softmax is one-hot. Elsewhere exp may differ in its last bit.

/** @typedef {import("./executor.js").Network} Network */
/** @typedef {import("./executor.js").Stage} Stage */
/** @typedef {import("./executor.js").Attention} Attention */
/** @typedef {import("./executor.js").FeedForward} FeedForward */
/** @typedef {import("./executor.js").Probe} Probe */
/** @typedef {import("./executor.js").Softness} Softness */
/** @typedef {import("./arrays.js").Stack} Stack */

/** What a layer changed: nothing, tokens of the prefix alone, or the sequence. */
export const NOTHING = 0;
export const PREFIX = 1;
export const SEQUENCE = 2;

/**
 * One block.
 * @param {Network} network
 * @param {Stage} stage
 * @param {number} layer
 * @param {Float64Array} z
 * @param {Softness} softness
 * @param {Probe|null} probe
 * @returns {number}  what it changed
 */
export function runLayer(network, stage, layer, z, softness, probe = null) {
  let changed = NOTHING;
  if (stage.attention) changed = attend(network, stage.attention, layer, z, softness, probe);
  if (stage.feedForward) changed = Math.max(changed, feed(network, stage.feedForward, layer, z));
  return changed;
}

/** What the last call of `runOn` changed. */
export const found = { changed: NOTHING };

/**
 * Blocks of a stage from number `from` on, up to and with the first that changes something.
 * @param {Network} network
 * @param {Stage} stage
 * @param {number} from
 * @param {Float64Array} z
 * @param {Softness} softness
 * @returns {number}  how many blocks of the stage have run then
 */
export function runOn(network, stage, from, z, softness) {
  const { order, attention, feedForward: ff } = stage;
  const count = order ? order.length : stage.blocks;
  found.changed = NOTHING;
  let k = from;
  if (!attention && ff && !ff.phi && ff.r === 4 && network.w === 1) k = idleWindows(network, ff, order, k, count, z);
  for (; k < count; k++) {
    found.changed = runLayer(network, stage, order ? order[k] : k, z, softness);
    if (found.changed) return k + 1;
  }
  return count;
}

/**
 * Most blocks of d = 1 are windows of four ReLUs that no token is in. The first block that
 * changes something, or `count`: the sums of `feed`, written out.
 * @param {Network} network
 * @param {FeedForward} ff
 * @param {ArrayLike<number>|null} order
 * @param {number} from
 * @param {number} count
 * @param {Float64Array} z
 */
function idleWindows(network, ff, order, from, count, z) {
  const { tokens } = network;
  const W_1 = ff.W_1.data, B_1 = ff.b_1.data, W_2 = ff.W_2.data, B_2 = ff.b_2.data;
  const s1 = ff.W_1.stride, t1 = ff.b_1.stride, s2 = ff.W_2.stride, t2 = ff.b_2.stride;
  for (let k = from; k < count; k++) {
    const layer = order ? order[k] : k;
    const w = layer * s1, b = layer * t1, v = layer * s2;
    const w0 = W_1[w], w1 = W_1[w + 1], w2 = W_1[w + 2], w3 = W_1[w + 3];
    const b0 = B_1[b], b1 = B_1[b + 1], b2 = B_1[b + 2], b3 = B_1[b + 3];
    const v0 = W_2[v], v1 = W_2[v + 1], v2 = W_2[v + 2], v3 = W_2[v + 3];
    const last = B_2[layer * t2];
    for (let j = 0; j < tokens; j++) {
      const x = z[j];
      const p0 = w0 * x + b0, p1 = w1 * x + b1, p2 = w2 * x + b2, p3 = w3 * x + b3;
      const sum = v0 * (p0 > 0 ? p0 : 0) + v1 * (p1 > 0 ? p1 : 0) + v2 * (p2 > 0 ? p2 : 0) + v3 * (p3 > 0 ? p3 : 0);
      if (x + (sum + last) !== x) return k;
    }
  }
  return count;
}

let hidden = new Float64Array(16);

/**
 * FF(x) = x + W_2 phi(W_1 x + b_1) + b_2, token by token, in place.
 * @param {Network} network
 * @param {FeedForward} ff
 * @param {number} layer
 * @param {Float64Array} z
 * @returns {number}  what it changed
 */
function feed(network, ff, layer, z) {
  const { w, tokens, prefix } = network;
  const r = ff.r;
  if (hidden.length < r) hidden = new Float64Array(r);
  const t = hidden;
  const W_1 = ff.W_1.data, B_1 = ff.b_1.data, W_2 = ff.W_2.data, B_2 = ff.b_2.data;
  const w1 = layer * ff.W_1.stride, b1 = layer * ff.b_1.stride;
  const w2 = layer * ff.W_2.stride, b2 = layer * ff.b_2.stride;
  let changed = NOTHING;
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
        changed = j >= prefix ? SEQUENCE : Math.max(changed, PREFIX);
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
 * @returns {number}  what it changed
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
  let changed = NOTHING;
  for (let k = first * w; k < N * w; k++) {
    const before = z[k];
    const after = before + update[k];
    if (after !== before) {
      z[k] = after;
      changed = k >= prefix * w ? SEQUENCE : Math.max(changed, PREFIX);
    }
  }
  return changed;
}
