// Numbers as people write them.

/**
 * At most `digits` significant digits; powers of ten where a decimal would be long.
 * @param {number} value
 * @param {number} digits
 * @returns {string}
 */
export function short(value, digits = 5) {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "not known" : value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  let text;
  if (Number.isInteger(value) && size < 1e9) text = grouped(String(size));
  else if (size >= 1e7 || size < 1e-4) {
    const [mantissa, power] = size.toExponential(Math.min(digits, 3) - 1).split("e");
    const places = power.replace("+", "").replace("-", "−");
    const factor = mantissa.includes(".") ? mantissa.replace(/\.?0+$/, "") : mantissa;
    text = factor === "1" ? `10${raised(places)}` : `${factor}·10${raised(places)}`;
  } else {
    const plain = String(Number(size.toPrecision(digits)));
    const [whole, part] = plain.split(".");
    text = grouped(whole) + (part ? `.${part}` : "");
  }
  return value < 0 ? `−${text}` : text;
}

/** @param {string} digits */
function grouped(digits) {
  return digits.length < 5 ? digits : digits.replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

const RAISED = { "−": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };

/** @param {string} text */
function raised(text) {
  return [...text].map((sign) => /** @type {any} */ (RAISED)[sign]).join("");
}

/**
 * A multiple of 1/K as a fraction, where it is a small one: 3.25 is 13/4.
 * @param {number} value
 * @param {number} K
 */
export function fraction(value, K) {
  const times = value * K;
  if (K < 2 || !Number.isInteger(times) || Number.isInteger(value) || Math.abs(times) > 9999)
    return short(value, 7);
  const sign = times < 0 ? "−" : "";
  let top = Math.abs(times), below = K;
  for (let k = 2; k <= Math.min(top, below); k++) {
    while (top % k === 0 && below % k === 0) {
      top /= k;
      below /= k;
    }
  }
  return `${sign}${top}/${below}`;
}

/** @param {number} count @param {string} one @param {string} many */
export function counted(count, one, many = `${one}s`) {
  return `${grouped(String(count))} ${count === 1 ? one : many}`;
}

/** @param {string[]} words */
export function listed(words) {
  if (words.length < 2) return words.join("");
  return `${words.slice(0, -1).join(", ")} and ${words[words.length - 1]}`;
}

/** The distance that is bounded, as a symbol. @param {string|null} p  null or "inf" for the supremum */
export function distance(p) {
  if (p === null || p === "inf") return "sup |f − g|";
  return /^\d+$/.test(p) ? `d${[...p].map((digit) => "₀₁₂₃₄₅₆₇₈₉"[Number(digit)]).join("")}(f, g)` : `d_${p}(f, g)`;
}
