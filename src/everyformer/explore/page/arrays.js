// Arrays of the page's data: base64 of little-endian float64.

/**
 * @typedef {object} Embedded
 * @property {number[]} shape
 * @property {number} rows  1 where all rows are the same and one is written
 * @property {string} base64
 */

/**
 * A stack of layers. Row `layer` begins at `layer * stride`.
 * @typedef {object} Stack
 * @property {Float64Array} data
 * @property {number} stride  0 where all layers are the same
 * @property {number[]} shape
 */

/**
 * @param {string} text
 * @returns {Float64Array}
 */
function decoded(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let k = 0; k < binary.length; k++) bytes[k] = binary.charCodeAt(k);
  return new Float64Array(bytes.buffer);
}

/**
 * @param {Embedded} entry
 * @returns {Stack}
 */
export function stackOf(entry) {
  const size = entry.shape.slice(1).reduce((a, b) => a * b, 1);
  const stride = entry.rows < entry.shape[0] ? 0 : size;
  return { data: decoded(entry.base64), stride, shape: entry.shape };
}

/**
 * An array with every row written out.
 * @param {Embedded} entry
 * @returns {Float64Array}
 */
export function fullArray(entry) {
  const { data, stride, shape } = stackOf(entry);
  if (stride || shape[0] === 1) return data;
  const whole = new Float64Array(data.length * shape[0]);
  for (let row = 0; row < shape[0]; row++) whole.set(data, row * data.length);
  return whole;
}
