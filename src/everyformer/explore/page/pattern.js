// The page of a sparse pattern: who hears whom, layer by layer.

import { chip, pageHead } from "./chrome.js";
import { el, fill, keepers, label, picture, room } from "./dom.js";
import { counted } from "./numbers.js";
import { judgement, matrixCells, verdictKind } from "./judgement.js";
import { pointIn } from "./tokens.js";

/**
 * @typedef {object} View
 * @property {number} token
 * @property {number} layers  how many have run
 * @property {boolean} path   whether the Hamiltonian path is drawn
 */

/** @param {HTMLElement} app @param {any} data */
export function patternPage(app, data) {
  const { n, heard } = data;
  const p = heard.length;
  const most = data.hops !== null ? data.hops : Math.min(64, n);
  /** @type {View} */
  const view = { token: data.neverMeet ? data.neverMeet[0] : 0, layers: 1, path: false, ...read() };
  view.token = Math.min(n - 1, Math.max(0, Math.round(view.token) || 0));
  view.layers = Math.min(most, Math.max(0, Math.round(view.layers) || 0));
  const fields = receptive(n, heard, most);
  const graph = el("div", { class: "drawing" });
  const matrices = el("div", { class: "drawing" });
  const words = el("p", { class: "sentence", "aria-live": "polite", id: "sentence" });
  const reached = el("span", {});
  const layers = el("input", { type: "range", min: 0, max: most, step: 1, "aria-label": "Layers that have run", oninput: () => set({ layers: Number(layers.value) }) });
  const token = el("select", { "aria-label": "Token", onchange: () => set({ token: Number(token.value) }) }, Array.from({ length: n }, (_, k) => el("option", { value: k }, `token ${k + 1}`)));
  const path = el("input", { type: "checkbox", disabled: !data.path, onchange: () => set({ path: path.checked }) });
  /** @param {Partial<View>} patch */
  const set = (patch) => {
    Object.assign(view, patch);
    draw();
    try {
      history.replaceState(null, "", `#token=${view.token}&layers=${view.layers}&path=${Number(view.path)}`);
    } catch {
      // A frame without an address of its own has nothing to remember.
    }
  };
  const draw = () => {
    layers.value = String(view.layers);
    reached.textContent = `${view.layers} of ${most}`;
    layers.setAttribute("aria-valuetext", counted(view.layers, "layer"));
    token.value = String(view.token);
    path.checked = view.path;
    fill(graph, ring(data, fields, view, set));
    fill(matrices, masks(data, fields, view));
    fill(words, inWords(data, fields, view));
  };
  fill(
    app,
    pageHead(data.title, [chip(`n = ${n}`), chip(counted(p, "pattern")), chip(`${data.connections.join(" / ")} connections`), chip(data.verdict, verdictKind(data.verdict))], []),
    el(
      "main",
      { class: "panes two" },
      el(
        "section",
        { class: "pane", id: "graph", "aria-labelledby": "graph-title" },
        el("header", {}, el("h2", { id: "graph-title" }, "Who hears whom"), token, el("label", { class: "quiet" }, path, " path γ"), keepers(() => graph, "pattern")),
        graph,
        el("label", { class: "slider" }, el("span", {}, "layers"), layers, reached),
        words,
      ),
      el(
        "section",
        { class: "pane", id: "matrix", "aria-labelledby": "matrix-title" },
        el("header", {}, el("h2", { id: "matrix-title" }, "Matrices"), el("span", { class: "quiet" }, "row k: whom token k hears"), keepers(() => matrices, "matrices")),
        matrices,
        judgement(data),
      ),
    ),
  );
  document.addEventListener("keydown", (event) => {
    const on = /** @type {Element} */ (event.target);
    if (on.matches("input, select, textarea")) return;
    if (event.key === "ArrowRight") set({ layers: Math.min(most, view.layers + 1) });
    else if (event.key === "ArrowLeft") set({ layers: Math.max(0, view.layers - 1) });
    else return;
    event.preventDefault();
  });
  /** @type {any} */ (window).everyformer = { data, view, fields };
  draw();
}

/** @returns {Partial<View>} */
function read() {
  const found = new URLSearchParams(location.hash.slice(1));
  /** @type {any} */
  const view = {};
  for (const key of ["token", "layers"]) if (found.has(key)) view[key] = Number(found.get(key));
  if (found.has("path")) view.path = found.get("path") === "1";
  return view;
}

/**
 * S_k^t: what token k has heard of after t layers, which cycle the patterns.
 * @param {number} n
 * @param {number[][][]} heard
 * @param {number} most
 * @returns {Set<number>[][]}
 */
function receptive(n, heard, most) {
  let now = Array.from({ length: n }, (_, k) => new Set([k]));
  const all = [now];
  for (let t = 0; t < most; t++) {
    const before = now;
    now = heard[t % heard.length].map((list) => new Set(list.flatMap((j) => [...before[j]])));
    all.push(now);
  }
  return all;
}

/** @param {any} data @param {Set<number>[][]} fields @param {View} view */
function inWords(data, fields, view) {
  const field = fields[view.layers][view.token];
  const name = `Token ${view.token + 1}`;
  const after = `after ${counted(view.layers, "layer")}`;
  const rest = data.n - field.size;
  const pair = data.neverMeet;
  const never = pair ? ` Token ${pair[0] + 1} never hears of token ${pair[1] + 1}, however many layers there are: no such network is universal.` : "";
  const all = data.hops !== null && view.layers >= data.hops ? ` All tokens have heard of all others after s = ${data.hops} layers (Assumption 1.3).` : "";
  return `${name} has heard of ${field.size} of ${data.n} tokens ${after}${rest ? `; ${counted(rest, "token")} ${rest === 1 ? "is" : "are"} missing` : ""}.${all}${never}`;
}

/** Tokens on a circle. @param {any} data @param {Set<number>[][]} fields @param {View} view @param {(patch: Partial<View>) => void} set */
function ring(data, fields, view, set) {
  const room = document.documentElement.clientWidth - 42;
  const size = Math.max(280, Math.min(430, room)), middle = size / 2, radius = middle - 37;
  const { n, heard } = data;
  const at = (/** @type {number} */ k, r = radius) => {
    const angle = (2 * Math.PI * k) / n - Math.PI / 2;
    return [middle + r * Math.cos(angle), middle + r * Math.sin(angle)];
  };
  const svg = picture(size, size, "The tokens on a circle, and what the chosen one has heard of");
  svg.setAttribute("role", "group");
  const field = fields[view.layers][view.token];
  const part = heard[Math.max(0, view.layers - 1) % heard.length];
  part.forEach((/** @type {number[]} */ list, /** @type {number} */ k) =>
    list.forEach((j) => {
      if (j === k) return;
      const [x1, y1] = at(k), [x2, y2] = at(j);
      svg.append(el("path", { d: `M${x1},${y1}Q${middle},${middle} ${x2},${y2}`, class: k === view.token && view.layers ? "edge own" : "edge" }));
    }));
  if (view.path && data.path)
    svg.append(el("polyline", { points: data.path.map((/** @type {number} */ k) => at(k, radius - 14).join()).join(" "), class: "gamma" }));
  for (let k = 0; k < n; k++) {
    const [x, y] = at(k), [tx, ty] = at(k, radius + 22);
    const never = data.neverMeet && data.neverMeet[1] === k;
    const kind = k === view.token ? "node own" : field.has(k) ? "node heard" : never ? "node never" : "node";
    svg.append(el("circle", { cx: x, cy: y, r: n > 48 ? 5 : 9, class: kind }, el("title", {}, `token ${k + 1}${field.has(k) ? ", heard of" : ""}`)));
    if (n <= 48) svg.append(label(String(k + 1), { x: tx, y: ty + 4, class: "tick", "text-anchor": "middle" }));
  }
  svg.addEventListener("pointerdown", (event) => {
    const [px, py] = pointIn(svg, event);
    const gaps = Array.from({ length: n }, (_, k) => Math.hypot(at(k)[0] - px, at(k)[1] - py));
    const best = gaps.indexOf(Math.min(...gaps));
    if (gaps[best] < 24) set({ token: best });
  });
  return svg;
}

/** The patterns, and the receptive fields so far. @param {any} data @param {Set<number>[][]} fields @param {View} view */
function masks(data, fields, view) {
  const { n, heard } = data;
  const shown = Math.min(heard.length, 3);
  const width = Math.max(room(600), 112 * (shown + 1));
  const size = Math.min(200, width / (shown + 1) - 16);
  const svg = picture(width, size + 26, "Patterns as matrices, and the receptive fields so far");
  for (let l = 0; l < shown; l++) {
    const x = l * (size + 16) + 2;
    const on = view.layers > 0 && (view.layers - 1) % heard.length === l;
    svg.append(label(heard.length > 1 ? `A${"¹²³"[l]}${on ? ", this layer" : ""}` : "A", { x, y: 13, class: on ? "strong" : "tick" }));
    matrixCells(svg, (i, j) => ({ share: heard[l][i].includes(j) ? (i === view.token ? 1 : 0.7) : 0, kind: i === view.token ? "cell own" : "cell", title: `token ${i + 1} hears token ${j + 1}` }), n, x, 20, size);
  }
  const x = shown * (size + 16) + 2;
  svg.append(label(`after ${counted(view.layers, "layer")}`, { x, y: 13, class: "strong" }));
  const field = fields[view.layers];
  matrixCells(svg, (i, j) => ({ share: field[i].has(j) ? (i === view.token ? 1 : 0.55) : 0, kind: i === view.token ? "cell own" : "cell", title: `token ${i + 1} has heard of token ${j + 1}` }), n, x, 20, size);
  return svg;
}
