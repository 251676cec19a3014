// Formulas as MathML, from a short notation: x_j, X_{1j}, δ^{-d}, \frac{a}{b}.

const MATH = "http://www.w3.org/1998/Math/MathML";

/** @param {string} name @param {...(Node|string)} children */
function tag(name, ...children) {
  const node = document.createElementNS(MATH, name);
  node.append(...children);
  return node;
}

/**
 * @param {string} text
 * @param {boolean} block  on a line of its own
 */
export function formula(text, block = true) {
  const math = tag("math", ...row(tokens(text)));
  if (block) math.setAttribute("display", "block");
  return math;
}

/** Brackets keep the height of the line, and names stand apart. @param {string} text */
function sign(text) {
  const node = tag("mo", text === "-" ? "−" : text === "*" ? "·" : text);
  if (/[()[\]|]/.test(text)) node.setAttribute("stretchy", "false");
  if (/^m/.test(text)) {
    node.setAttribute("lspace", "0");
    node.setAttribute("rspace", "0.2em");
  }
  return node;
}

/** @param {string} text @returns {string[]} */
function tokens(text) {
  return text.match(/\\frac|\\text\{[^}]*\}|[A-Za-z]{2,}|[A-Za-zα-ωΑ-Ω]|[0-9][0-9.,\u202f]*|:=|\+=|\S|\s+/gu) || [];
}

/** @param {string[]} rest  taken from the front @returns {Element[]} */
function row(rest) {
  /** @type {Element[]} */
  const out = [];
  while (rest.length && rest[0] !== "}") {
    const next = rest.shift() || "";
    if (/^\s+$/.test(next)) continue;
    if (next === "_" || next === "^") {
      const base = lastOf(out);
      const script = argument(rest);
      const joined = base.localName === (next === "_" ? "msup" : "msub") && base.children.length === 2;
      if (joined) {
        const [inner, other] = [...base.children];
        out.push(next === "_" ? tag("msubsup", inner, script, other) : tag("msubsup", inner, other, script));
      } else out.push(tag(next === "_" ? "msub" : "msup", base, script));
    } else if (next === "\\frac") out.push(tag("mfrac", argument(rest), argument(rest)));
    else if (next.startsWith("\\text")) out.push(tag("mtext", next.slice(6, -1).replace(/ /g, "\u00a0")));
    else if (next === "{") {
      out.push(tag("mrow", ...row(rest)));
      rest.shift();
    } else if (/^[0-9]/.test(next)) out.push(tag("mn", next));
    else if (next === "max" || next === "min") out.push(sign(next));
    else if (/^[A-Za-zα-ωΑ-Ω]/u.test(next)) out.push(tag("mi", next));
    else out.push(sign(next));
  }
  return out;
}

/**
 * What an index belongs to, taken from the end: behind a bracket all that it encloses.
 * @param {Element[]} out
 */
function lastOf(out) {
  let from = out.length - 1;
  for (let depth = 0; from >= 0; from--) {
    const sign = out[from].textContent;
    if (sign === ")") depth++;
    else if (sign === "(") depth--;
    if (depth === 0) break;
  }
  if (from < 0 || from === out.length - 1) return out.pop() || tag("mrow");
  return tag("mrow", ...out.splice(from));
}

/** @param {string[]} rest */
function argument(rest) {
  while (rest.length && /^\s+$/.test(rest[0])) rest.shift();
  if (rest[0] === "{") {
    rest.shift();
    const inner = tag("mrow", ...row(rest));
    rest.shift();
    return inner;
  }
  const next = rest.shift() || "";
  return tag(/^[0-9]/.test(next) ? "mn" : /^[A-Za-zα-ω]/u.test(next) ? "mi" : "mo", next);
}
