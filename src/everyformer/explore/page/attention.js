// The page of an attention layer: B, C, row sums, and what becomes of equal tokens.

import { chip, pageHead } from "./chrome.js";
import { el, fill, keepers, label, picture, room } from "./dom.js";
import { linear } from "./scales.js";
import { short } from "./numbers.js";
import { judgement, matrixCells, verdictKind } from "./judgement.js";

/** @param {HTMLElement} app @param {any} data */
export function attentionPage(app, data) {
  const view = { draw: 0, head: 0 };
  const matrices = el("div", { class: "drawing" });
  const outputs = el("div", { class: "drawing" });
  const words = el("p", { class: "sentence", "aria-live": "polite", id: "sentence" });
  const heads = Math.max(1, ...data.draws.map((/** @type {any} */ d) => (d.A || d.B || d.C || [0]).length));
  const choose = (/** @type {string} */ title, /** @type {"draw"|"head"} */ key, /** @type {number} */ count) => {
    const select = el("select", { onchange: () => { view[key] = Number(select.value); draw(); } }, Array.from({ length: count }, (_, k) => el("option", { value: k }, String(k + 1))));
    return el("label", {}, `${title} `, select);
  };
  const draw = () => {
    fill(matrices, shown(data, view));
    fill(outputs, spread(data));
    fill(words, inWords(data, view));
  };
  fill(
    app,
    pageHead(data.title, [chip(`n = ${data.n}, d = ${data.d}`), chip(data.verdict, verdictKind(data.verdict))], []),
    el(
      "main",
      { class: "panes two" },
      el(
        "section",
        { class: "pane", id: "weights", "aria-labelledby": "weights-title" },
        el("header", {}, el("h2", { id: "weights-title" }, "Weights on equal tokens"), choose("draw", "draw", data.draws.length), choose("head", "head", heads), keepers(() => matrices, "weights")),
        matrices,
        words,
        el("header", {}, el("h2", {}, "Equal tokens in, what comes out"), keepers(() => outputs, "equal-tokens")),
        outputs,
      ),
      el("section", { class: "pane", id: "verdict", "aria-labelledby": "verdict-title" }, el("header", {}, el("h2", { id: "verdict-title" }, "Is it universal?")), judgement(data)),
    ),
  );
  /** @type {any} */ (window).everyformer = { data, view };
  draw();
}

/** @param {number[][]} A */
function rowSums(A) {
  return A.map((row) => row.reduce((a, b) => a + b, 0));
}

/** @param {any} data @param {{draw: number, head: number}} view */
function shown(data, view) {
  const one = data.draws[view.draw], n = data.n;
  /** @type {[string, number[][]|null][]} */
  const all = [["B, added to scores", pick(one.B, view.head)], ["C, times the weights", pick(one.C, view.head)], ["A, multiplies values", pick(one.A, view.head)]];
  const known = /** @type {[string, number[][]][]} */ (all.filter(([, matrix]) => matrix));
  const width = room(600), size = Math.min(156, (width - 76) / Math.max(1, known.length) - 18);
  const svg = picture(width, size + 62, "Matrices of the head, and the sums of their rows");
  if (!known.length) svg.append(label("This layer shows no matrices.", { x: 10, y: 30, class: "tick" }));
  known.forEach(([name, matrix], k) => {
    const x = k * (size + 18) + 4;
    const reach = Math.max(1e-12, ...matrix.flat().map(Math.abs));
    svg.append(label(size < 140 ? name.split(",")[0] : name, { x, y: 13, class: "strong" }));
    matrixCells(svg, (i, j) => ({ share: Math.max(0.02, Math.abs(matrix[i][j]) / reach), kind: matrix[i][j] < 0 ? "cell minus" : "cell", title: `row ${i + 1}, column ${j + 1}: ${matrix[i][j]}` }), n, x, 20, size);
    svg.append(label(`largest ${short(reach, 3)}`, { x, y: size + 38, class: "tick" }));
  });
  const A = pick(one.A, view.head);
  if (A) {
    const sums = rowSums(A), x = known.length * (size + 18) + 4;
    const scale = linear(Math.min(0, ...sums), Math.max(1, ...sums), x + 4, Math.min(width - 12, x + 64));
    svg.append(label("row sums", { x, y: 13, class: "strong" }));
    sums.forEach((sum, i) => {
      const y = 20 + (i * size) / n;
      svg.append(el("rect", { x: Math.min(scale.to(0), scale.to(sum)), y: y + 1, width: Math.abs(scale.to(sum) - scale.to(0)), height: Math.max(1, size / n - 2), class: "bar-g" }, el("title", {}, `row ${i + 1}: ${sum}`)));
    });
    svg.append(el("line", { x1: scale.to(1), x2: scale.to(1), y1: 18, y2: 20 + size, class: "playhead-line" }), label("1", { x: scale.to(1), y: size + 38, class: "tick", "text-anchor": "middle" }));
  }
  return svg;
}

/** @param {number[][][]|null} list @param {number} head */
function pick(list, head) {
  return list ? list[Math.min(head, list.length - 1)] : null;
}

/** @param {any} data @param {{draw: number, head: number}} view */
function inWords(data, view) {
  const one = data.draws[view.draw];
  const A = pick(one.A, view.head);
  const wide = Math.max(...data.draws.map((/** @type {any} */ d) => Math.max(...d.equal) - Math.min(...d.equal)));
  const size = Math.max(1, ...one.equal.map(Math.abs));
  const stay = wide <= 1e-9 * size;
  const sums = A ? rowSums(A) : [];
  const equal = sums.length > 0 && Math.max(...sums) - Math.min(...sums) < 1e-9;
  const first = A
    ? equal
      ? `All rows of A sum to ${short(sums[0], 4)}: whatever B adds to the scores, a mean of equal tokens is that token.`
      : `The rows of A sum to between ${short(Math.min(...sums), 3)} and ${short(Math.max(...sums), 3)}: equal tokens are weighted differently at each position.`
    : "The matrices of this layer are not seen from outside.";
  const then = stay ? " In these draws equal tokens stay equal: the layer cannot count positions." : ` In these draws equal tokens spread, by up to ${short(wide, 3)}.`;
  return first + then;
}

/** The first coordinate of the outputs, by position. @param {any} data */
function spread(data) {
  const width = room(600), height = 200, left = 56, right = width - 12, top = 14, bottom = 164;
  const svg = picture(width, height, "Outputs on equal tokens, by position");
  const all = data.draws.flatMap((/** @type {any} */ d) => d.equal);
  const low = Math.min(...all), high = Math.max(...all, low + 1e-9), margin = (high - low) * 0.1;
  const xs = linear(1, Math.max(2, data.n), left + 8, right - 8), ys = linear(low - margin, high + margin, bottom, top);
  for (const tick of ys.ticks) svg.append(el("line", { x1: left, x2: right, y1: ys.to(tick), y2: ys.to(tick), class: "grid" }), label(short(tick, 3), { x: left - 6, y: ys.to(tick) + 4, class: "tick", "text-anchor": "end" }));
  data.draws.forEach((/** @type {any} */ one, /** @type {number} */ k) => {
    svg.append(el("polyline", { points: one.equal.map((/** @type {number} */ v, /** @type {number} */ i) => `${xs.to(i + 1)},${ys.to(v)}`).join(" "), class: `trail line-${k}` }));
    one.equal.forEach((/** @type {number} */ v, /** @type {number} */ i) => svg.append(el("circle", { cx: xs.to(i + 1), cy: ys.to(v), r: 3.5, class: `token-${k}` }, el("title", {}, `draw ${k + 1}, position ${i + 1}: ${v}`))));
  });
  svg.append(el("line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "axis" }), label("position; a line for each draw of the weights", { x: (left + right) / 2, y: bottom + 30, class: "tick", "text-anchor": "middle" }));
  const every = Math.ceil((32 * data.n) / (right - left));
  for (let i = 1; i <= data.n; i += every) svg.append(label(String(i), { x: xs.to(i), y: bottom + 15, class: "tick", "text-anchor": "middle" }));
  return svg;
}
