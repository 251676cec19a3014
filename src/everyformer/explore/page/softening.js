// Softmax: from hardmax to soft. Watch the leak, and where ids begin to merge.

import { el, fill, label, picture, room } from "./dom.js";
import { linear } from "./scales.js";
import { fraction, short } from "./numbers.js";
import { MOST, countContexts, hasContexts, mappingSteps } from "./contexts.js";
import { inPieces } from "./pieces.js";
import { softnessOf } from "./session.js";

/** @typedef {import("./session.js").Session} Session */
/** @typedef {import("./store.js").Store} Store */
/** @typedef {import("./store.js").State} State */

const WIDTH = room(556), HEIGHT = 250, LEFT = 66, RIGHT = WIDTH - 18, TOP = 20, BOTTOM = 200;
const SOFTEST = -20;

/** @typedef {{gap: number, sharp: number}[]} Curve  of the smallest gap, from soft to as built */

/**
 * @param {Session} session
 * @param {Store} store
 */
export function softmaxTab(session, store) {
  const drawing = el("div", { class: "drawing" });
  const words = el("p", { class: "verdict", "aria-live": "polite" });
  const slider = el("input", {
    type: "range", min: SOFTEST, max: 1, step: 0.25, "aria-label": "Sharpness of softmax",
    id: "sharpness",
    oninput: () => store.set({ sharp: Number(slider.value) > 0 ? 1 : Number(slider.value) }),
  });
  const node = el(
    "div",
    { class: "tab-body" },
    drawing,
    el("label", { class: "slider" }, el("span", {}, "soft"), slider, el("span", {}, "hardmax")),
    words,
  );
  /** @type {Curve|null} */
  let curve = null;
  const start = () => {
    curve = [];
    const done = (/** @type {Curve} */ found) => {
      curve = found;
      update(store.state);
    };
    if (hasContexts(session) && countContexts(session) <= MOST / 10) inPieces(curveSteps(session), done, { first: 60 });
  };
  /** @param {State} state */
  const update = (state) => {
    if (!curve) start();
    slider.value = String(state.sharp);
    const built = session.original.construction ? session.original.construction.sharpness : 0;
    const factor = state.sharp > 0 ? Infinity : 2 ** state.sharp;
    slider.setAttribute("aria-valuetext", state.sharp > 0 ? "hardmax" : `${short(factor, 3)} times the sharpness of the weights`);
    fill(drawing, gaps(session, state, curve || []));
    const leak = largestLeak(session);
    const lambda = state.sharp > 0 ? "hardmax" : `λ = ${short(built * factor, 4)}`;
    const where = state.sharp === 0 ? " (as built)" : "";
    fill(words, `${lambda}${where}: ${leak > 0 ? `for this input up to ${short(leak, 2)} of a head's weight goes where hardmax gives none.` : "in float64 no head's weight leaks for this input: softmax is hardmax."}${mergeWords(session, curve || [])}`);
  };
  return { node, update };
}

/** How much weight of a head lies off its largest entries, over all blocks. @param {Session} session */
function largestLeak(session) {
  const { network, run } = session;
  if (!run) return 0;
  let leak = 0;
  network.stages.forEach((stage, s) => {
    if (!stage.attention) return;
    const blocks = stage.order ? stage.order.length : stage.blocks;
    for (let k = 0; k < Math.min(blocks, 200); k++) {
      const probe = run.probe(network.starts[s] + k);
      const N = network.tokens;
      for (const weights of probe.weights)
        for (let i = network.prefix; i < N; i++) {
          const row = Array.from(weights.slice(i * N, (i + 1) * N));
          const top = Math.max(...row);
          leak = Math.max(leak, row.filter((v) => v < top).reduce((a, b) => a + b, 0));
        }
    }
  });
  return leak;
}

/** @param {Session} session @returns {Generator<number, Curve>} */
function* curveSteps(session) {
  /** @type {Curve} */
  const curve = [];
  for (let sharp = SOFTEST; sharp <= 0; sharp += 0.5)
    curve.push({ sharp, gap: (yield* mappingSteps(session, session.original, softnessOf(sharp))).gap });
  return curve;
}

/** @param {Session} session @param {Curve} found */
function mergeWords(session, found) {
  const asBuilt = found.length ? found[found.length - 1].gap : 0;
  const merged = [...found].reverse().find((point) => point.gap < asBuilt / 2);
  if (!merged) return "";
  const built = session.original.construction.sharpness;
  return ` Below λ ≈ ${short(built * 2 ** merged.sharp, 2)} the smallest gap between ids of all sequences is less than half of ${fraction(asBuilt, session.K || 1)}: they begin to merge.`;
}

/** @param {Session} session @param {State} state @param {Curve} found */
function gaps(session, state, found) {
  const svg = picture(WIDTH, HEIGHT, "Smallest gap between ids of all sequences, against the sharpness of softmax");
  const built = session.original.construction ? session.original.construction.sharpness : 1;
  const xs = linear(SOFTEST, 1, LEFT, RIGHT);
  const top = Math.max(1e-9, ...found.map((p) => p.gap)) * 1.15;
  const ys = linear(0, top, BOTTOM, TOP);
  for (const tick of ys.ticks)
    svg.append(el("line", { x1: LEFT, x2: RIGHT, y1: ys.to(tick), y2: ys.to(tick), class: "grid" }), label(short(tick, 3), { x: LEFT - 6, y: ys.to(tick) + 4, class: "tick", "text-anchor": "end" }));
  for (let sharp = SOFTEST; sharp < 0; sharp += 4)
    svg.append(label(short(built * 2 ** sharp, 2), { x: xs.to(sharp), y: BOTTOM + 18, class: "tick", "text-anchor": "middle" }));
  svg.append(
    label(short(built), { x: xs.to(0), y: BOTTOM + 18, class: "tick", "text-anchor": "middle" }),
    label("as built", { x: xs.to(0), y: BOTTOM + 33, class: "tick", "text-anchor": "middle" }),
    label("sharpness λ of softmax", { x: (LEFT + RIGHT) / 2, y: BOTTOM + 40, class: "tick", "text-anchor": "middle" }),
    label("smallest gap between ids of all sequences", { x: LEFT, y: 14, class: "tick" }),
    el("line", { x1: LEFT, x2: RIGHT, y1: BOTTOM, y2: BOTTOM, class: "axis" }),
  );
  if (found.length)
    svg.append(el("polyline", { points: found.map((p) => `${xs.to(p.sharp)},${ys.to(p.gap)}`).join(" "), class: "curve curve-g" }));
  else if (countContexts(session) > MOST / 10) svg.append(label("There are too many sequences to run them all at every λ.", { x: (LEFT + RIGHT) / 2, y: 110, class: "tick", "text-anchor": "middle" }));
  const here = xs.to(state.sharp);
  svg.append(el("line", { x1: here, x2: here, y1: TOP, y2: BOTTOM, class: "playhead-line" }), el("path", { d: `M${here},${BOTTOM + 1}l-5,8h10z`, class: "playhead" }));
  return svg;
}
