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
      const base = out.pop() || tag("mrow");
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
    else if (/^[A-Za-zα-ωΑ-Ω]/u.test(next)) out.push(tag("mi", next));
    else out.push(tag("mo", next === "-" ? "−" : next === "*" ? "·" : next));
  }
  return out;
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
