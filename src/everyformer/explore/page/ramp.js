// The magnifier: a step of the quantiser is a steep ramp, made of four ReLUs.

import { el, fill, label, picture, room } from "./dom.js";
import { linear } from "./scales.js";
import { fraction, short } from "./numbers.js";
import { windowOf } from "./words.js";

/** @typedef {import("./session.js").Session} Session */
/** @typedef {import("./store.js").Store} Store */
/** @typedef {import("./store.js").State} State */

const WIDTH = room(556), HEIGHT = 262, LEFT = 66, RIGHT = WIDTH - 18, TOP = 22, BOTTOM = 208;

/** @param {Session} session */
export function hasRamp(session) {
  const known = session.original.construction;
  return Boolean(known && known.ramp > 0 && session.original.stages.some((s) => s.kind === "quantise"));
}

/**
 * @param {Session} session
 * @param {Store} store
 */
export function rampTab(session, store) {
  const drawing = el("div", { class: "drawing" });
  const words = el("p", { class: "verdict", "aria-live": "polite" });
  const most = Math.min(12, Math.ceil(-Math.log10(session.original.construction.ramp)));
  const slider = el("input", {
    type: "range", min: 0, max: most, step: 0.1, "aria-label": "Magnification", id: "zoom",
    oninput: () => store.set({ zoom: Number(slider.value) }),
  });
  const node = el("div", { class: "tab-body" }, drawing, el("label", { class: "slider" }, el("span", {}, "× 1"), slider, el("span", {}, `× ${short(10 ** most, 2)}`)), words);
  /** @param {State} state */
  const update = (state) => {
    const zoom = Math.min(most, Math.max(0, state.zoom));
    slider.value = String(zoom);
    slider.setAttribute("aria-valuetext", `times ${short(10 ** zoom, 2)}`);
    const { svg, text } = magnified(session, state, zoom);
    fill(drawing, svg);
    fill(words, text);
  };
  return { node, update };
}

/** The first coordinate of a token after the quantiser. @param {Session} session @param {number[]} x @param {number} token @param {number} end @param {number} value */
function quantised(session, x, token, end, value) {
  const { d, w } = session.original;
  const moved = x.slice();
  moved[token * d] = value;
  return session.original.until(moved, end)[token * w];
}

/** @param {Session} session @param {State} state @param {number} zoom */
function magnified(session, state, zoom) {
  const network = session.original;
  const { d } = network;
  const K = session.K || 1, token = Math.min(state.token, network.n - 1);
  const low = session.lows[0], width = session.highs[0] - low;
  const at = state.x[token * d];
  const border = Math.min(K - 1, Math.max(1, Math.round(((at - low) / width) * K)));
  const middle = low + (border / K) * width;
  const span = width / 10 ** zoom;
  const start = zoom === 0 ? low : middle - span * 0.6, stop = zoom === 0 ? low + width : middle + span * 0.4;
  const end = network.stages.findIndex((s) => s.kind === "quantise") + 1;
  const ramp = network.construction.ramp;
  const values = [];
  for (let k = 0; k <= 480; k++) values.push(start + (k / 480) * (stop - start));
  for (let cell = 1; cell < K; cell++) {
    const edge = low + (cell / K) * width;
    for (const v of [edge - 1.5 * ramp * width, edge - ramp * width, edge - (ramp * width) / 2, edge, edge + ramp * width]) if (v > start && v < stop) values.push(v);
  }
  values.sort((a, b) => a - b);
  const points = values.map((v) => [v, quantised(session, state.x, token, end, v)]);
  const ys = points.map((p) => p[1]).filter(Number.isFinite);
  const svg = picture(WIDTH, HEIGHT, "The staircase of the quantiser, magnified");
  const px = linear(start, stop, LEFT, RIGHT), py = linear(Math.min(...ys) - 0.05, Math.max(...ys) + 0.05, BOTTOM, TOP);
  for (const tick of py.ticks)
    svg.append(el("line", { x1: LEFT, x2: RIGHT, y1: py.to(tick), y2: py.to(tick), class: "grid" }), label(short(tick, 3), { x: LEFT - 6, y: py.to(tick) + 4, class: "tick", "text-anchor": "end" }));
  if (zoom < 2) for (const tick of px.ticks) svg.append(label(short(tick, 3), { x: px.to(tick), y: BOTTOM + 18, class: "tick", "text-anchor": "middle" }));
  else
    for (const k of [-0.5, -0.25, 0, 0.25]) {
      const off = k * span;
      svg.append(el("line", { x1: px.to(middle + off), x2: px.to(middle + off), y1: BOTTOM, y2: BOTTOM + 5, class: "axis" }), label(k === 0 ? fraction(border / K, K) : `${k < 0 ? "−" : "+"}${short(Math.abs(off), 2)}`, { x: px.to(middle + off), y: BOTTOM + 18, class: "tick", "text-anchor": "middle" }));
    }
  svg.append(
    el("polyline", { points: points.map((p) => `${px.to(p[0])},${py.to(p[1])}`).join(" "), class: "curve curve-g" }),
    el("line", { x1: LEFT, x2: RIGHT, y1: BOTTOM, y2: BOTTOM, class: "axis" }),
    label(`token ${token + 1} after the quantiser, against x`, { x: LEFT, y: 14, class: "tick" }),
  );
  if (at >= start && at <= stop) svg.append(el("circle", { cx: px.to(at), cy: py.to(quantised(session, state.x, token, end, at)), r: 6, class: `token token-${token % 8}` }));
  knots(svg, session, border, px, start, stop, low, width, token);
  const share = network.construction.ramp * K;
  const text = zoom < 5
    ? `A staircase: x is rounded down to multiples of 1/${K}. Move the slider to look at the step at ${fraction(border / K, K)}.`
    : `The step at ${fraction(border / K, K)} is a ramp of width ${short(ramp * width, 2)}, the sum of four ReLUs whose knots are marked. Ramps take ${short(share, 2)} of an axis: there nothing is claimed of g but that it is bounded.`;
  return { svg, text };
}

/** Where the ReLUs of the block bend. @param {SVGSVGElement} svg @param {Session} session @param {number} border @param {any} px @param {number} start @param {number} stop @param {number} low @param {number} width @param {number} token */
function knots(svg, session, border, px, start, stop, low, width, token) {
  const network = session.original;
  const stage = network.stages.find((s) => s.kind === "quantise");
  const ff = stage && stage.feedForward;
  if (!stage || !ff || ff.phi) return;
  const shift = network.positions ? network.positions[token * network.d] : 0;
  for (let layer = 0; layer < stage.blocks; layer++) {
    const window = windowOf(network, ff, layer);
    if (!window || window.row !== 0) continue;
    for (let k = 0; k < ff.r; k++) {
      const slope = ff.W_1.data[layer * ff.W_1.stride + k * network.w];
      if (slope === 0) continue;
      const knot = low + (-ff.b_1.data[layer * ff.b_1.stride + k] / slope - shift) * width;
      if (knot > start && knot < stop && Math.abs(knot - low - (border / (session.K || 1)) * width) < 0.4 * width)
        svg.append(el("path", { d: `M${px.to(knot)},${BOTTOM - 2}l-4,-8h8z`, class: "knot" }));
    }
  }
}
