// Function: f, g and their gap, as heat maps of the square or as curves along a slice.

import { el, fill, keepers, label, picture } from "./dom.js";
import { cividis, linear } from "./scales.js";
import { short } from "./numbers.js";
import { certificateView } from "./certificate.js";
import { atOnce, inPieces } from "./pieces.js";
import { pointIn } from "./tokens.js";

/** @typedef {import("./session.js").Session} Session */
/** @typedef {import("./store.js").Store} Store */
/** @typedef {import("./store.js").State} State */

const WIDTH = 338;

/** Milliseconds that a heat map and a slice may take in all, and a slice at once. */
const PATIENCE = 4000, SLICE = 400, AT_ONCE = 8;

/**
 * @param {Session} session
 * @param {Store} store
 */
export function functionPane(session, store) {
  const { n, d } = session.original;
  const maps = n === 2 && d === 1 ? heatMaps(session, store) : slices(session, store);
  const names = Array.from({ length: n * d }, (_, k) => (d > 1 ? `${Math.floor(k / d) + 1}.${(k % d) + 1}` : `${k + 1}`));
  const chooser = (/** @type {string} */ title, /** @type {"out"|"axis"} */ key) => {
    const select = el("select", { onchange: () => store.set({ [key]: Number(select.value) }) }, names.map((name, k) => el("option", { value: k }, name)));
    return { node: el("label", {}, `${title} `, select), select, key };
  };
  const choosers = [chooser("output", "out"), ...(maps.sliced ? [chooser("along", "axis")] : [])];
  const certificate = certificateView(session);
  const pane = el(
    "section",
    { class: "pane function", id: "function", "aria-labelledby": "function-title" },
    el("header", {}, el("h2", { id: "function-title" }, "Function"), choosers.map((c) => c.node), keepers(() => maps.node, "function")),
    maps.node,
    certificate.node,
  );
  /** @param {State} state */
  const update = (state) => {
    choosers.forEach((c) => (c.select.value = String(state[c.key])));
    maps.update(state);
    certificate.update();
  };
  return { node: pane, update };
}

/** @typedef {{key: string, m: number, f: Float64Array|null, g: Float64Array, done: number}} Field */

/**
 * n = 2, d = 1: the square, with the current point to drag.
 * @param {Session} session
 * @param {Store} store
 */
function heatMaps(session, store) {
  const node = el("div", { class: "drawing maps" });
  const size = 101, top = 20, gap = 15;
  /** @type {Field|null} */
  let field = null;
  let stop = () => {}, painted = 0, version = "";
  const box = (/** @type {number} */ share) => session.inBox(share, 0);
  const lefts = [0, 1, 2].map((k) => 4 + k * (size + gap));
  const marks = lefts.map(() => [el("circle", { r: 6, class: "point-halo" }), el("circle", { r: 5, class: "point" })]);
  /** Begin anew, if another network runs. @param {State} state */
  const start = (state) => {
    const key = `${state.broken.join()} ${state.sharp}`;
    if (field && field.key === key) return;
    const cost = Math.max(0.002, session.milliseconds || 0.01);
    const K = session.K || 1;
    const most = Math.min(96, Math.max(8, Math.sqrt(PATIENCE / cost)));
    const m = K <= most ? K * Math.floor(most / K) : Math.floor(most);
    field = { key, m, f: session.target ? new Float64Array(m * m * 2).fill(NaN) : null, g: new Float64Array(m * m * 2).fill(NaN), done: 0 };
    painted = 0;
    stop();
    const now = () => paint(store.state);
    stop = inPieces(points(field), now, { progress: () => { if (performance.now() - painted > 500) now(); } });
  };
  /** @param {Field} filled @returns {Generator<number, void>} */
  function* points(filled) {
    const { m, f, g } = filled;
    const { network, softness, target } = session;
    while (filled.done < m * m) {
      const at = filled.done++;
      const x = [box(((at % m) + 0.5) / m), box((Math.floor(at / m) + 0.5) / m)];
      g.set(network.evaluate(x, softness), at * 2);
      if (f && target) f.set(target.call(x), at * 2);
      yield at / (m * m);
    }
  }
  /** @param {State} state */
  const paint = (state) => {
    if (!field) return;
    painted = performance.now();
    version = `${field.key} ${state.out} ${field.done}`;
    fill(node, mapsOf(session, field, Math.min(state.out, 1), { size, top, lefts }));
    node.firstChild.append(...marks.flat());
    move(state);
  };
  /** @param {State} state */
  const move = (state) => {
    const inside = [0, 1].every((k) => state.x[k] >= session.lows[0] && state.x[k] <= session.highs[0]);
    marks.forEach((pair, k) => {
      const xs = linear(session.lows[0], session.highs[0], lefts[k], lefts[k] + size);
      const ys = linear(session.lows[0], session.highs[0], top + size, top);
      for (const circle of pair) {
        circle.setAttribute("cx", String(xs.to(state.x[0])));
        circle.setAttribute("cy", String(ys.to(state.x[1])));
        circle.setAttribute("visibility", inside ? "visible" : "hidden");
      }
    });
  };
  node.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => {
    const svg = /** @type {SVGSVGElement|null} */ (node.querySelector("svg"));
    if (!svg) return;
    const from = pointIn(svg, event);
    const k = lefts.findIndex((left) => from[0] >= left && from[0] <= left + size);
    if (k < 0 || from[1] < top || from[1] > top + size) return;
    const share = (/** @type {number} */ v) => Math.min(1, Math.max(0, v));
    const follow = (/** @type {PointerEvent} */ e) => {
      const [px, py] = pointIn(/** @type {SVGSVGElement} */ (node.querySelector("svg")), e);
      store.set({ x: [box(share((px - lefts[k]) / size)), box(share((top + size - py) / size))] });
    };
    const stop = () => {
      window.removeEventListener("pointermove", follow);
      window.removeEventListener("pointerup", stop);
    };
    window.addEventListener("pointermove", follow);
    window.addEventListener("pointerup", stop);
    follow(event);
  });
  /** @param {State} state */
  const update = (state) => {
    start(state);
    if (field && version !== `${field.key} ${state.out} ${field.done}` && (field.done >= field.m ** 2 || !painted)) paint(state);
    else move(state);
  };
  return { node, update, sliced: false };
}

/**
 * @param {Session} session
 * @param {Field} field
 * @param {number} out
 * @param {{size: number, top: number, lefts: number[]}} place
 */
function mapsOf(session, field, out, { size, top, lefts }) {
  const { m, f, g } = field;
  const pick = (/** @type {Float64Array|null} */ values) => (values ? Float64Array.from({ length: m * m }, (_, k) => values[2 * k + out]) : null);
  const fs = pick(f), gs = /** @type {Float64Array} */ (pick(g));
  const gaps = fs && fs.map((v, k) => Math.abs(v - gs[k]));
  const [low, high] = extent([...(fs || []), ...gs]);
  const worst = gaps ? extent([...gaps])[1] : 1;
  /** @type {[string, Float64Array|null, number, number][]} */
  const maps = [["f", fs, low, high], ["g", gs, low, high], ["|f − g|", gaps, 0, worst]];
  const svg = picture(WIDTH, 178, `f, g and their gap, output of token ${out + 1}`);
  svg.setAttribute("role", "group");
  maps.forEach(([name, values, a, b], k) => {
    const x0 = lefts[k];
    svg.append(label(values ? name : `${name} is not known`, { x: x0, y: 13, class: "strong" }));
    if (values) svg.append(el("image", { x: x0, y: top, width: size, height: size, preserveAspectRatio: "none", href: painted(values, m, a, b), class: "map" }));
    svg.append(
      el("rect", { x: x0, y: top, width: size, height: size, class: "frame" }),
      label("x₁ →", { x: x0 + size, y: top + size + 14, class: "tick", "text-anchor": "end" }),
      label("↑ x₂", { x: x0, y: top + size + 14, class: "tick" }),
    );
    if (!values) return;
    for (let s = 0; s < 26; s++) {
      const [r, gr, bl] = cividis(s / 25);
      svg.append(el("rect", { x: x0 + (s * size) / 26, y: top + size + 22, width: size / 26 + 0.3, height: 8, style: `fill:rgb(${r},${gr},${bl})` }));
    }
    svg.append(label(short(a, 2), { x: x0, y: top + size + 44, class: "tick" }), label(short(b, 2), { x: x0 + size, y: top + size + 44, class: "tick", "text-anchor": "end" }));
  });
  return svg;
}

/** The least and the largest finite number. @param {number[]} values @returns {[number, number]} */
function extent(values) {
  let low = Infinity, high = -Infinity;
  for (const v of values) {
    if (v < low && Number.isFinite(v)) low = v;
    if (v > high && Number.isFinite(v)) high = v;
  }
  return low <= high ? [low, Math.max(high, low + 1e-12)] : [0, 1];
}

/** Values as a picture. @param {Float64Array} values @param {number} m @param {number} low @param {number} high */
function painted(values, m, low, high) {
  const canvas = el("canvas", { width: m, height: m });
  const context = canvas.getContext("2d");
  const image = context.createImageData(m, m);
  for (let row = 0; row < m; row++)
    for (let column = 0; column < m; column++) {
      const value = values[(m - 1 - row) * m + column];
      const at = 4 * (row * m + column);
      if (!Number.isFinite(value)) continue;
      const colour = cividis((value - low) / (high - low));
      image.data.set([...colour, 255], at);
    }
  context.putImageData(image, 0, 0);
  return canvas.toDataURL();
}

/**
 * A slice through the current point: f and g as curves.
 * @param {Session} session
 * @param {Store} store
 */
function slices(session, store) {
  const node = el("div", { class: "drawing" });
  const { d } = session.original;
  let timer = 0, stop = () => {};
  /** @type {{key: string, points: number[][]}|null} */
  let known = null;
  const left = 40, right = WIDTH - 10, top = 20, bottom = 150;
  /** Points of a slice that take about so many milliseconds, the same number in every cell. @param {number} spent */
  const countIn = (spent) => {
    const most = Math.min(240, Math.floor(spent / Math.max(0.002, session.milliseconds || 0.01)));
    const K = session.K || 1;
    return K <= most ? K * Math.floor(most / K) : most;
  };
  /** @param {State} state @param {number} count @returns {Generator<number, number[][]>} */
  function* sampled(state, count) {
    const { network, softness, target } = session;
    const points = [];
    for (let at = 0; at < count; at++) {
      const x = state.x.slice();
      x[state.axis] = session.inBox((at + 0.5) / count, state.axis % d);
      points.push([x[state.axis], ...network.evaluate(x, softness), ...(target ? target.call(x) : [])]);
      yield at / count;
    }
    return points;
  }
  /** @param {State} state */
  const draw = (state) => {
    if (!known) return;
    const size = session.original.n * d, i = state.axis % d;
    const points = known.points;
    const out = Math.min(state.out, size - 1);
    const gs = points.map((p) => p[1 + out]), fs = session.target ? points.map((p) => p[1 + size + out]) : [];
    const all = [...gs, ...fs].filter(Number.isFinite);
    const low = Math.min(...all), high = Math.max(...all, low + 1e-9), room = (high - low) * 0.08 || 0.1;
    const xs = linear(session.lows[i], session.highs[i], left, right), ys = linear(low - room, high + room, bottom, top);
    const svg = picture(WIDTH, 178, "f and g along a slice through the input");
    for (const tick of ys.ticks) svg.append(el("line", { x1: left, x2: right, y1: ys.to(tick), y2: ys.to(tick), class: "grid" }), label(short(tick, 3), { x: left - 5, y: ys.to(tick) + 4, class: "tick", "text-anchor": "end" }));
    const K = session.K || 0, marks = session.drawnCells;
    for (let cell = 0; cell <= marks; cell++) svg.append(el("line", { x1: xs.to(session.inBox(cell / marks, i)), x2: xs.to(session.inBox(cell / marks, i)), y1: bottom - 5, y2: bottom + 3, class: "ramp-mark" }));
    for (const end of [session.lows[i], session.highs[i]]) svg.append(label(short(end), { x: xs.to(end), y: bottom + 18, class: "tick", "text-anchor": "middle" }));
    const name = d > 1 ? `x of token ${Math.floor(state.axis / d) + 1}, coordinate ${i + 1}` : `x of token ${state.axis + 1}`;
    svg.append(label(K ? `${name}; marks: ramps` : name, { x: (left + right) / 2, y: bottom + 22, class: "tick", "text-anchor": "middle" }));
    svg.append(el("line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "axis" }));
    if (fs.length) svg.append(el("polyline", { points: points.map((p, k) => `${xs.to(p[0])},${ys.to(fs[k])}`).join(" "), class: "curve curve-f" }));
    // g jumps from cell to cell: a jump is not a line.
    const width = (session.highs[i] - session.lows[i]) / Math.max(1, points.length);
    let path = "";
    points.forEach((p, k) => {
      const jump = k > 0 && K > 0 && Math.floor((k * K) / points.length) !== Math.floor(((k - 1) * K) / points.length) && gs[k] !== gs[k - 1];
      const from = xs.to(p[0] - (K > 0 ? width / 2 : 0)), to = xs.to(p[0] + (K > 0 ? width / 2 : 0)), y = ys.to(gs[k]);
      path += `${k === 0 || jump ? "M" : "L"}${from},${y}L${to},${y}`;
    });
    svg.append(el("path", { d: path, class: "curve curve-g" }));
    const at = state.x[state.axis];
    if (at >= session.lows[i] && at <= session.highs[i] && session.run) svg.append(el("line", { x1: xs.to(at), x2: xs.to(at), y1: top, y2: bottom, class: "playhead-line" }), el("circle", { cx: xs.to(at), cy: ys.to(session.run.output[out]), r: 5, class: "point" }));
    svg.append(el("line", { x1: right - 90, x2: right - 72, y1: 10, y2: 10, class: "curve curve-f" }), label("f", { x: right - 68, y: 14, class: "tick" }), el("line", { x1: right - 46, x2: right - 28, y1: 10, y2: 10, class: "curve curve-g" }), label("g", { x: right - 24, y: 14, class: "tick" }));
    fill(node, svg);
  };
  /** @param {State} state */
  const update = (state) => {
    const others = state.x.filter((_, at) => at !== state.axis).join();
    const key = `${state.axis} ${others} ${state.broken.join()} ${state.sharp}`;
    if (!known || known.key !== key) {
      clearTimeout(timer);
      stop();
      const fine = Math.max(16, countIn(SLICE)), coarse = Math.min(fine, countIn(AT_ONCE));
      if (coarse >= 16) known = { key, points: atOnce(sampled(state, coarse)) };
      // Few points follow a drag; all of them wait until it rests.
      const done = (/** @type {number[][]} */ points) => { known = { key, points }; draw(store.state); };
      if (coarse < fine) timer = setTimeout(() => (stop = inPieces(sampled(state, fine), done)), 160);
    }
    draw(state);
  };
  return { node, update, sliced: true };
}
