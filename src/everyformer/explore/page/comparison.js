// The page of a comparison: bound against parameters, a curve for each method.

import { chip, pageHead } from "./chrome.js";
import { el, fill, keepers, label, mark, picture, room } from "./dom.js";
import { linear } from "./scales.js";
import { distance, short } from "./numbers.js";

/** @param {HTMLElement} app @param {any} data */
export function comparisonPage(app, data) {
  const drawing = el("div", { class: "drawing" });
  const words = el("p", { class: "sentence", "aria-live": "polite", id: "sentence" }, "Point at a mark to see its plan; large marks meet the tolerance with the fewest parameters of their method.");
  fill(
    app,
    pageHead(data.title, [chip(`${distance(data.p)} ≤ ${short(data.tol)}`), chip(`${data.methods.length} methods`)], []),
    el(
      "main",
      { class: "panes two" },
      el("section", { class: "pane", id: "curves", "aria-labelledby": "curves-title" }, el("header", {}, el("h2", { id: "curves-title" }, "Planned bound against parameters"), keepers(() => drawing, "comparison")), drawing, words),
      el("section", { class: "pane", id: "methods", "aria-labelledby": "methods-title" }, el("header", {}, el("h2", { id: "methods-title" }, "Methods, the cheapest first")), table(data)),
    ),
  );
  /** @type {any} */ (window).everyformer = { data };
  fill(drawing, curves(data, (text) => fill(words, text)));
}

/** @param {any} method @param {any} point */
function planned(method, point) {
  const grid = point.grid === null ? "" : `, K = ${point.grid}`;
  return `${point.label}${grid}: ${short(point.parameters)} parameters in ${short(point.blocks)} blocks, ${short(point.attention)} of them with attention; planned bound ${short(point.bound, 3)}.`;
}

/** @param {any} method */
const drawn = (method) => method.points.filter((/** @type {any} */ p) => p.parameters > 0 && p.bound > 0);

/** @param {any} data @param {(text: string) => void} tell */
function curves(data, tell) {
  const width = room(600), height = 430, left = 66, right = width - 28, top = 16, bottom = 372;
  const svg = picture(width, height, "Planned bound against parameters, both logarithmic");
  svg.setAttribute("role", "group");
  const points = data.methods.flatMap(drawn);
  if (!points.length) return svg;
  const log = (/** @type {number} */ v) => Math.log10(v);
  const spanOf = (/** @type {number[]} */ v) => [Math.floor(Math.min(...v)), Math.ceil(Math.max(...v) + 1e-9)];
  const [x0, x1] = spanOf(points.map((/** @type {any} */ p) => log(p.parameters)));
  const floor = log(data.tol) - 3; // far better than asked: drawn at the foot
  const [y0, y1] = spanOf([log(data.tol), ...points.map((/** @type {any} */ p) => Math.max(floor, log(p.bound)))]);
  const xs = linear(x0, x1, left, right), ys = linear(y0, y1, bottom - 14, top);
  const power = (/** @type {number} */ k) => short(10 ** k, 2);
  const every = (/** @type {number} */ a, /** @type {number} */ b, /** @type {number} */ most) => Math.max(1, Math.ceil((b - a) / most));
  for (let k = x0; k <= x1; k += every(x0, x1, 8)) svg.append(el("line", { x1: xs.to(k), x2: xs.to(k), y1: top, y2: bottom, class: "grid" }), label(power(k), { x: xs.to(k), y: bottom + 17, class: "tick", "text-anchor": "middle" }));
  for (let k = y0; k <= y1; k += every(y0, y1, 8)) svg.append(el("line", { x1: left, x2: right, y1: ys.to(k), y2: ys.to(k), class: "grid" }), label(power(k), { x: left - 6, y: ys.to(k) + 4, class: "tick", "text-anchor": "end" }));
  svg.append(
    el("line", { x1: left, x2: right, y1: ys.to(log(data.tol)), y2: ys.to(log(data.tol)), class: "playhead-line" }),
    label("tolerance", { x: right, y: ys.to(log(data.tol)) - 5, class: "tick", "text-anchor": "end" }),
    label("parameters", { x: (left + right) / 2, y: bottom + 40, class: "tick", "text-anchor": "middle" }),
  );
  data.methods.forEach((/** @type {any} */ method, /** @type {number} */ k) => {
    const own = drawn(method);
    const at = (/** @type {any} */ p) => [xs.to(log(p.parameters)), ys.to(Math.max(floor, log(p.bound)))];
    svg.append(el("polyline", { points: own.map((/** @type {any} */ p) => at(p).join()).join(" "), class: `trail line-${k % 8}` }));
    own.forEach((/** @type {any} */ p) => {
      const best = method.chosen !== null && method.points[method.chosen] === p;
      const tellIt = () => tell(planned(method, p));
      if (log(p.bound) < floor) svg.append(label(`↓ ${short(p.bound, 2)}`, { x: at(p)[0] + (at(p)[0] > (left + right) / 2 ? -13 : 13), y: at(p)[1] - 4, class: "tick", "text-anchor": at(p)[0] > (left + right) / 2 ? "end" : "start" }));
      svg.append(mark(k, at(p)[0], at(p)[1], best ? 9 : 5, { tabindex: 0, role: "img", "aria-label": planned(method, p), onpointerenter: tellIt, onfocus: tellIt }));
    });
  });
  return svg;
}

/** @param {any} data */
function table(data) {
  const order = data.methods
    .map((/** @type {any} */ method, /** @type {number} */ k) => ({ method, k, point: method.chosen === null ? null : method.points[method.chosen] }))
    .sort((/** @type {any} */ a, /** @type {any} */ b) => (a.point ? a.point.parameters : Infinity) - (b.point ? b.point.parameters : Infinity));
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Methods" },
    el("table", {}, el("thead", {}, el("tr", {}, ["", "method", "K", "blocks", "parameters", "bound"].map((t) => el("th", { scope: "col" }, t)))),
      el("tbody", {}, order.map((/** @type {any} */ { method, k, point }) =>
        el("tr", {}, el("td", {}, el("svg", { viewBox: "-10 -10 20 20", class: "key", "aria-hidden": "true" }, mark(k, 0, 0, 7))), el("td", { class: "wrap" }, method.name),
          point
            ? [el("td", {}, point.grid === null ? "–" : point.grid), el("td", {}, short(point.blocks)), el("td", {}, short(point.parameters)), el("td", {}, short(point.bound, 3))]
            : el("td", { colspan: 4, class: "wrap note" }, method.refusal || "no plan meets the tolerance"))))));
}
