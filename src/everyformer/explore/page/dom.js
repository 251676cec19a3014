// Elements of HTML and SVG. Texts are always set as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";
const SVG_NAMES = new Set(
  "svg g line path rect circle text polyline polygon defs marker title clipPath image".split(" "),
);

/** @typedef {Node|string|number|null|undefined|false} Child */

/**
 * @param {string} name
 * @param {Record<string, any>} attributes  "on..." are listeners, `class` is the class
 * @param {...(Child|Child[])} children
 * @returns {any}
 */
export function el(name, attributes = {}, ...children) {
  const node = SVG_NAMES.has(name)
    ? document.createElementNS(SVG, name)
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  add(node, children);
  return node;
}

/** @param {Element} node @param {any[]} children */
function add(node, children) {
  for (const child of children.flat(3)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : String(child));
  }
}

/**
 * Replace what a node holds.
 * @param {Element} node
 * @param {...(Child|Child[])} children
 */
export function fill(node, ...children) {
  node.replaceChildren();
  add(node, children);
}

/**
 * A picture with a viewBox, a name for those who cannot see it, and buttons to keep it.
 * @param {number} width
 * @param {number} height
 * @param {string} label
 * @param {...any} children
 * @returns {SVGSVGElement}
 */
export function picture(width, height, label, ...children) {
  return el(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, class: "picture", style: `min-width:${width}px` },
    children,
  );
}

/** The width of a picture: less on a phone, where it would be cut. @param {number} most */
export const room = (most) => Math.max(340, Math.min(most, document.documentElement.clientWidth - 44));

/** @param {string} text @param {Record<string, any>} attributes */
export function label(text, attributes) {
  return el("text", attributes, text);
}

/** The marks of tokens: a shape for each, so that colour is never the only sign. */
const SHAPES = [
  (/** @type {number} */ r) => `M${-r},0A${r},${r} 0 1 1 ${r},0A${r},${r} 0 1 1 ${-r},0Z`,
  (/** @type {number} */ r) => `M${-r * 0.9},${-r * 0.9}H${r * 0.9}V${r * 0.9}H${-r * 0.9}Z`,
  (/** @type {number} */ r) => `M0,${-r * 1.2}L${r * 1.1},${r * 0.8}H${-r * 1.1}Z`,
  (/** @type {number} */ r) => `M0,${-r * 1.25}L${r * 1.25},0L0,${r * 1.25}L${-r * 1.25},0Z`,
  (/** @type {number} */ r) => `M0,${r * 1.2}L${r * 1.1},${-r * 0.8}H${-r * 1.1}Z`,
  (/** @type {number} */ r) => `M${-r * 0.55},${-r * 1.05}H${r * 0.55}L${r * 1.15},0L${r * 0.55},${r * 1.05}H${-r * 0.55}L${-r * 1.15},0Z`,
  (/** @type {number} */ r) => cross(r, [-1.15, -0.4, 0.4, 1.15], 0),
  (/** @type {number} */ r) => cross(r, [-1.15, -0.4, 0.4, 1.15], Math.PI / 4),
];

/** A cross with arms from the outer to the inner of four places, turned. @param {number} r @param {number[]} places @param {number} angle */
function cross(r, [a, b, c, d], angle) {
  const corners = [[b, a], [c, a], [c, b], [d, b], [d, c], [c, c], [c, d], [b, d], [b, c], [a, c], [a, b], [b, b]];
  const turned = corners.map(([x, y]) => [x * Math.cos(angle) - y * Math.sin(angle), x * Math.sin(angle) + y * Math.cos(angle)]);
  return `M${turned.map(([x, y]) => `${(r * x).toFixed(2)},${(r * y).toFixed(2)}`).join("L")}Z`;
}

/**
 * @param {number} token  from 0
 * @param {number} x
 * @param {number} y
 * @param {number} r
 * @param {Record<string, any>} attributes
 */
export function mark(token, x, y, r, attributes = {}) {
  return el("path", {
    d: SHAPES[token % SHAPES.length](r),
    transform: `translate(${x},${y})`,
    class: `token token-${token % 8}`,
    ...attributes,
  });
}

/** What style.css gives a picture, for a file of its own. */
const PROPERTIES = [
  "fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "fill-opacity",
  "stroke-opacity", "font-size", "font-family", "font-weight", "text-anchor",
];

/**
 * The SVG of a picture with its styles written into it.
 * @param {SVGSVGElement} svg
 */
export function standalone(svg) {
  const copy = /** @type {SVGSVGElement} */ (svg.cloneNode(true));
  const from = [svg, ...svg.querySelectorAll("*")], to = [copy, ...copy.querySelectorAll("*")];
  from.forEach((node, k) => {
    const style = getComputedStyle(node);
    const text = PROPERTIES.map((name) => `${name}:${style.getPropertyValue(name)}`).join(";");
    to[k].setAttribute("style", text);
    to[k].removeAttribute("class");
  });
  const box = svg.viewBox.baseVal;
  copy.setAttribute("xmlns", SVG);
  copy.setAttribute("width", String(box.width));
  copy.setAttribute("height", String(box.height));
  const background = getComputedStyle(document.body).backgroundColor;
  copy.insertBefore(
    el("rect", { width: box.width, height: box.height, style: `fill:${background}` }),
    copy.firstChild,
  );
  return new XMLSerializer().serializeToString(copy);
}

/** @param {Blob} blob @param {string} name */
function keep(blob, name) {
  const address = URL.createObjectURL(blob);
  el("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

/**
 * Buttons that save the first picture in a pane.
 * @param {() => Element|null} find
 * @param {string} name
 */
export function keepers(find, name) {
  /** @param {string} kind */
  const save = (kind) => {
    const svg = /** @type {SVGSVGElement|null} */ (find()?.querySelector("svg.picture") || null);
    if (!svg) return;
    const text = standalone(svg);
    if (kind === "svg") return keep(new Blob([text], { type: "image/svg+xml" }), `${name}.svg`);
    const box = svg.viewBox.baseVal;
    const image = new Image();
    image.onload = () => {
      const canvas = el("canvas", { width: box.width * 3, height: box.height * 3 });
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob((/** @type {Blob} */ blob) => keep(blob, `${name}.png`), "image/png");
    };
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  };
  return el(
    "span",
    { class: "keepers" },
    ["svg", "png"].map((kind) =>
      el(
        "button",
        {
          type: "button",
          class: "quiet",
          title: `Save this picture as ${kind.toUpperCase()}`,
          "aria-label": `Save the picture ${name} as ${kind.toUpperCase()}`,
          onclick: () => save(kind),
        },
        kind.toUpperCase(),
      ),
    ),
  );
}
