// Scales: numbers to pixels, and where to put ticks.

/**
 * @typedef {object} Scale
 * @property {(value: number) => number} to
 * @property {(pixel: number) => number} from
 * @property {number[]} ticks
 */

/**
 * @param {number} low
 * @param {number} high
 * @param {number} start
 * @param {number} end
 * @returns {Scale}
 */
export function linear(low, high, start, end) {
  const span = high - low || 1;
  return {
    to: (value) => start + ((value - low) / span) * (end - start),
    from: (pixel) => low + ((pixel - start) / (end - start)) * span,
    ticks: roundTicks(low, high, 5),
  };
}

/**
 * Logarithmic on both sides of 0, linear within +-unit: delta and delta^{-nd} are both seen.
 * @param {number} low
 * @param {number} high
 * @param {number} start
 * @param {number} end
 * @param {number} unit
 * @returns {Scale}
 */
export function symmetricLog(low, high, start, end, unit) {
  /** @param {number} v */
  const bent = (v) => Math.sign(v) * Math.log10(1 + Math.abs(v) / unit);
  /** @param {number} s */
  const straight = (s) => Math.sign(s) * unit * (10 ** Math.abs(s) - 1);
  const inner = linear(bent(low), bent(high), start, end);
  /** @type {number[]} */
  const ticks = [0];
  const top = Math.max(Math.abs(low), Math.abs(high), unit);
  const powers = [unit];
  for (let power = 10 ** Math.ceil(Math.log10(unit * 3)); power <= top; power *= 10) powers.push(power);
  const every = Math.ceil(powers.length / 7);
  powers.forEach((power, k) => {
    if (k % every === 0 || k === 0) ticks.push(power, -power);
  });
  return {
    to: (value) => inner.to(bent(value)),
    from: (pixel) => straight(inner.from(pixel)),
    ticks: ticks.filter((tick) => tick >= low && tick <= high).sort((a, b) => a - b),
  };
}

/** @param {number} low @param {number} high @param {number} count */
export function roundTicks(low, high, count) {
  const span = high - low;
  if (!(span > 0) || !Number.isFinite(span)) return [low];
  const rough = span / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * power).find((s) => s >= rough) || rough;
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * span; k++) ticks.push(k * step);
  return ticks;
}

/** Cividis, which people see alike with all kinds of colour vision: nine stops. */
const STOPS = [
  [0, 34, 78], [24, 55, 110], [65, 77, 107], [97, 99, 111], [124, 123, 120],
  [155, 149, 119], [188, 175, 111], [224, 203, 94], [254, 232, 56],
];

/**
 * @param {number} share  in [0, 1]
 * @returns {[number, number, number]}
 */
export function cividis(share) {
  const at = Math.min(0.9999, Math.max(0, share)) * (STOPS.length - 1);
  const k = Math.floor(at), t = at - k;
  const mix = STOPS[k].map((v, i) => Math.round(v + t * (STOPS[k + 1][i] - v)));
  return [mix[0], mix[1], mix[2]];
}
