// This sequence: the ids of its tokens from block to block, and what the heads hear.

import { el, label, mark, picture, room } from "./dom.js";
import { symmetricLog } from "./scales.js";
import { fraction, short } from "./numbers.js";
import { lemmaOf, windowOf } from "./words.js";

/** @typedef {import("./session.js").Session} Session */
/** @typedef {import("./store.js").State} State */
/** @typedef {import("./scales.js").Scale} Scale */

// Where there is room the attention matrices stand at the right, on a phone below.
const WIDTH = room(556), BELOW = WIDTH < 530;
const LEFT = 88, RIGHT = BELOW ? WIDTH - 20 : 408, BOTTOM = 354, ROWS = 14;

/**
 * @param {Session} session
 * @param {State} state
 */
export function trail(session, state) {
  const run = session.run;
  const network = session.network;
  const block = Math.min(state.block, network.blocks);
  const svg = picture(WIDTH, BELOW ? BOTTOM + 236 : BOTTOM, "Ids of the tokens, from block to block");
  if (!run || !network.ids(run.last)) return svg;
  const shownEvents = around([0, ...run.changes], block);
  const ids = shownEvents.map((k) => network.ids(run.state(k)) || []);
  const now = network.ids(run.state(block)) || [];
  const before = network.ids(run.state(Math.max(0, block - 1))) || [];
  const all = [...ids.flat(), ...now].filter(Number.isFinite);
  const unit = 1 / (session.K || 1);
  const high = Math.max(unit, ...all), low = Math.min(0, ...all);
  const scale = symmetricLog(low, high * 1.15, LEFT, RIGHT, unit);
  const bottom = 238;
  const rowOf = (/** @type {number} */ k) => 16 + (k * (bottom - 22)) / Math.max(1, shownEvents.length - 1);
  axis(svg, scale, session, 6, bottom + 6);
  drawTrail(svg, session, shownEvents, ids, scale, rowOf, block);
  strip(svg, session, block, before, now, scale);
  matrices(svg, session, block);
  return svg;
}

/** @param {number[]} events @param {number} block */
function around(events, block) {
  if (events.length <= ROWS) return events;
  let at = 0;
  while (at + 1 < events.length && events[at + 1] <= block) at++;
  const first = Math.max(0, Math.min(at - 8, events.length - ROWS));
  return events.slice(first, first + ROWS);
}

/** @param {SVGSVGElement} svg @param {Scale} scale @param {Session} session @param {number} top @param {number} bottom */
function axis(svg, scale, session, top, bottom) {
  /** @type {[number, number][]} */
  const taken = [];
  for (const tick of [...scale.ticks].sort((a, b) => Math.abs(a) - Math.abs(b))) {
    const x = scale.to(tick), text = fraction(tick, session.K || 1), half = text.length * 3.5 + 4;
    svg.append(el("line", { x1: x, x2: x, y1: top, y2: bottom, class: "grid" }));
    if (taken.some(([a, b]) => x + half > a && x - half < b)) continue;
    taken.push([x - half, x + half]);
    const at = Math.min(x, RIGHT + 14 - half); // the attention matrices begin there
    svg.append(label(text, { x: at, y: bottom + 14, class: "tick", "text-anchor": "middle" }));
  }
  svg.append(label("id uᵀx", { x: LEFT - 10, y: bottom + 14, class: "tick", "text-anchor": "end" }));
}

/**
 * @param {SVGSVGElement} svg
 * @param {Session} session
 * @param {number[]} events
 * @param {number[][]} ids
 * @param {Scale} scale
 * @param {(k: number) => number} rowOf
 * @param {number} block
 */
function drawTrail(svg, session, events, ids, scale, rowOf, block) {
  const network = session.network;
  let last = "";
  events.forEach((event, k) => {
    const name = event === 0 ? "input" : lemmaOf(session, network.place(event - 1).stage).short;
    const y = rowOf(k);
    if (name !== last) svg.append(label(name, { x: LEFT - 10, y: y + 4, class: event <= block ? "tick now" : "tick", "text-anchor": "end" }));
    last = name;
  });
  let here = 0;
  while (here + 1 < events.length && events[here + 1] <= block) here++;
  if (events[0] <= block)
    svg.append(el("rect", { x: LEFT, y: rowOf(here) - 8, width: RIGHT - LEFT, height: 16, rx: 4, class: "row-now" }));
  for (let j = 0; j < network.n; j++) {
    const points = ids.map((row, k) => [scale.to(row[j]), rowOf(k)]);
    const path = (/** @type {number[][]} */ part) => part.map((p) => p.join()).join(" ");
    const past = points.filter((_, k) => events[k] <= block);
    svg.append(
      el("polyline", { points: path(points), class: `trail future line-${j % 8}` }),
      el("polyline", { points: path(past), class: `trail line-${j % 8}` }),
    );
    points.forEach(([x, y], k) => {
      const moved = k > 0 && ids[k][j] !== ids[k - 1][j];
      if (k === here || moved || k === 0)
        svg.append(mark(j, x, y, k === here ? 7 : 4, { class: `token token-${j % 8}${events[k] <= block ? "" : " future"}` }));
    });
  }
}

/**
 * The block itself: tokens before it, who hears whom, and the window it looks at.
 * @param {SVGSVGElement} svg
 * @param {Session} session
 * @param {number} block
 * @param {number[]} before
 * @param {number[]} now
 * @param {Scale} scale
 */
function strip(svg, session, block, before, now, scale) {
  const y = 318, network = session.network;
  svg.append(
    label(block ? `block ${block}` : "input", { x: LEFT - 10, y: y + 4, class: "tick now", "text-anchor": "end" }),
    el("line", { x1: LEFT, x2: RIGHT, y1: y, y2: y, class: "axis" }),
  );
  const place = block ? network.place(block - 1) : null;
  if (place && place.stage.feedForward && !network.registers) {
    const window = windowOf(network, place.stage.feedForward, place.layer);
    if (window && place.stage.name !== "clamp") {
      const a = Math.max(LEFT, scale.to(window.low)), b = Math.min(RIGHT, scale.to(window.high));
      if (b > LEFT && a < RIGHT)
        svg.append(
          el("rect", { x: a - 1, y: y - 26, width: Math.max(3, b - a + 2), height: 52, class: "window" }),
          label("window", { x: Math.min(RIGHT - 46, Math.max(LEFT, a)), y: y - 31, class: "tick" }),
        );
    }
  }
  if (place && place.stage.attention && session.run) {
    const probe = session.run.probe(block - 1);
    const N = network.tokens, P = network.prefix;
    probe.weights.slice(0, 2).forEach((weights, head) => {
      for (let i = 0; i < network.n; i++) {
        for (let j = 0; j < network.n; j++) {
          const share = weights[(P + i) * N + P + j];
          if (Math.abs(share) < 0.02 || i === j) continue;
          const x1 = scale.to(before[i]), x2 = scale.to(before[j]);
          const rise = (head ? 1 : -1) * Math.min(44, 14 + Math.abs(x2 - x1) / 5);
          const end = y + (head ? 9 : -9);
          svg.append(
            el("path", {
              d: `M${x1},${end}Q${(x1 + x2) / 2},${end + 2 * rise - (head ? 9 : -9)} ${x2},${end}`,
              class: `arc line-${i % 8}${head ? " second" : ""}`,
              "stroke-opacity": Math.min(1, Math.abs(share)),
            }),
            el("path", { d: `M${x2},${end}l-4,${head ? 7 : -7}h8z`, class: `arc-tip token-${i % 8}` }),
          );
        }
      }
    });
    svg.append(
      label("head 1 ↷", { x: LEFT - 10, y: y - 22, class: "tick", "text-anchor": "end" }),
      probe.weights.length > 1 ? label("head 2 ⤻", { x: LEFT - 10, y: y + 30, class: "tick", "text-anchor": "end" }) : "",
    );
  }
  before.forEach((id, j) => {
    if (now[j] !== id) {
      const a = scale.to(id), b = scale.to(now[j]);
      svg.append(el("line", { x1: a, x2: b, y1: y, y2: y, class: `moved line-${j % 8}` }), mark(j, b, y, 7));
      svg.append(mark(j, a, y, 5, { class: `token token-${j % 8} future` }));
    } else svg.append(mark(j, scale.to(id), y, 7));
  });
}

/** Attention matrices of the block, one for each head. @param {SVGSVGElement} svg @param {Session} session @param {number} block */
function matrices(svg, session, block) {
  const network = session.network, left = BELOW ? 12 : 426, head = BELOW ? BOTTOM + 28 : 18;
  const place = block ? network.place(block - 1) : null;
  svg.append(label("Attention", { x: left, y: head, class: "strong" }));
  if (!place || !place.stage.attention || !session.run) {
    ["This block has no", "attention: tokens do", "not hear each other."].forEach((line, k) =>
      svg.append(label(line, { x: left, y: head + 22 + 16 * k, class: "tick" })));
    return;
  }
  const probe = session.run.probe(block - 1);
  const N = network.n, total = network.tokens, P = network.prefix;
  const size = Math.min(36, 126 / N);
  const step = N * size + 40;
  const shown = probe.weights.slice(0, 2);
  shown.forEach((weights, k) => {
    const top = head + 18 + (BELOW ? 0 : k * step), from = left + (BELOW ? k * step : 0);
    svg.append(label(probe.weights.length > 1 ? `head ${k + 1}` : "the head", { x: from, y: top + 8, class: "tick" }));
    for (let i = 0; i < N; i++) {
      for (let j = 0; j < N; j++) {
        const share = weights[(P + i) * total + P + j];
        const x = from + j * size, y = top + 14 + i * size;
        svg.append(
          el("rect", { x, y, width: size - 1, height: size - 1, class: "cell", "fill-opacity": Math.min(1, Math.abs(share)) },
            el("title", {}, `token ${i + 1} attends to token ${j + 1} with ${share}`)),
          el("rect", { x, y, width: size - 1, height: size - 1, class: "cell-edge" }),
        );
        if (size >= 30)
          svg.append(label(short(share, 2), { x: x + size / 2 - 0.5, y: y + size / 2 + 4, class: share > 0.55 ? "cell-text on" : "cell-text", "text-anchor": "middle" }));
      }
    }
  });
  const foot = head + 10 + (BELOW ? 1 : shown.length) * step;
  svg.append(
    label("row: who attends", { x: left, y: foot, class: "tick" }),
    label("column: to whom", { x: left, y: foot + 16, class: "tick" }),
  );
}
