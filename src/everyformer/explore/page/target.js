// f in the page: an interpreter of its recorded program, or its values at points.

import { fullArray } from "./arrays.js";

/** @type {Record<string, (a: number) => number>} */
const UNARY = {
  neg: (a) => -a,
  abs: Math.abs,
  sin: Math.sin,
  cos: Math.cos,
  exp: Math.exp,
  log: Math.log,
  sqrt: Math.sqrt,
  tanh: Math.tanh,
  xlogx: (a) => (a === 0 ? 0 : a * Math.log(a)),
};

/** @type {Record<string, (a: number, b: number) => number>} */
const BINARY = {
  add: (a, b) => a + b,
  sub: (a, b) => a - b,
  mul: (a, b) => a * b,
  div: (a, b) => a / b,
  min: Math.min,
  max: Math.max,
  pow: Math.pow,
};

/**
 * f of a sequence of n d numbers; NaN where it is not known.
 * @typedef {object} Target
 * @property {(x: ArrayLike<number>) => Float64Array} call
 * @property {boolean} exact  false where values at nearby points stand for f
 */

/**
 * @param {any} data
 * @param {number} n
 * @param {number} d
 * @returns {Target|null}
 */
export function targetOf(data, n, d) {
  if (!data) return null;
  if (data.kind === "program") return { call: programOf(data, n, d), exact: true };
  return { call: samplesOf(data, n, d), exact: false };
}

/** @param {any} data @param {number} n @param {number} d */
function programOf(data, n, d) {
  const lines = data.nodes;
  const values = new Float64Array(lines.length);
  /** @param {ArrayLike<number>} x */
  return (x) => {
    for (let k = 0; k < lines.length; k++) {
      const line = lines[k];
      const op = line[0];
      if (op === "x") values[k] = x[line[1] * d + line[2]];
      else if (op === "const") values[k] = line[1];
      else if (op === "pow") values[k] = BINARY.pow(values[line[1]], line[2]);
      else if (op === "where") {
        const c = values[line[1]];
        values[k] = Number.isNaN(c) ? NaN : values[line[c > 0 ? 2 : 3]];
      } else if (line.length === 2) values[k] = UNARY[op](values[line[1]]);
      else values[k] = BINARY[op](values[line[1]], values[line[2]]);
    }
    const out = new Float64Array(n * d);
    data.outputs.forEach((/** @type {number[]} */ row, /** @type {number} */ j) => {
      row.forEach((line, i) => (out[j * d + i] = values[line]));
    });
    return out;
  };
}

/** @param {any} data @param {number} n @param {number} d */
function samplesOf(data, n, d) {
  const values = fullArray(data.values);
  const count = data.perAxis;
  /** @param {ArrayLike<number>} x */
  return (x) => {
    let at = 0;
    for (let k = 0; k < n * d; k++) {
      const low = data.lows[k % d], high = data.highs[k % d];
      const share = Math.round(((x[k] - low) / (high - low)) * (count - 1));
      at = at * count + Math.min(count - 1, Math.max(0, share));
    }
    return values.slice(at * n * d, (at + 1) * n * d);
  };
}
