// The bands of all sequences: a row for each, a tick for each id, on a broken axis.

import { isEquivariant } from "./contexts.js";
import { el, label, picture, room } from "./dom.js";
import { fraction, short } from "./numbers.js";

/** @typedef {import("./contexts.js").Context} Context */
/** @typedef {import("./contexts.js").Mapping} Mapping */
/** @typedef {import("./executor.js").Network} Network */
/** @typedef {import("./scales.js").Scale} Scale */
/** @typedef {import("./session.js").Session} Session */
/** @typedef {import("./store.js").State} State */

const WIDTH = room(556), HEIGHT = 214, LEFT = 12, RIGHT = WIDTH - 10, TOP = 26, ROWS = 136;

/** Sequences up to which each has elements of its own; more are drawn as two paths. */
const SINGLE = 300;

/** @typedef {{context: Context, low: number, high: number, y: number}} Row */

/** A sequence by its cells. @param {Session} session @param {Context} context */
export function named(session, context) {
  const { d } = session.original;
  const K = session.K || 1;
  const cell = (/** @type {number} */ c) => {
    if (d === 1) return fraction(c / K, K);
    const digits = Array.from({ length: d }, (_, i) => Math.floor(c / K ** i) % K);
    return `(${digits.map((k) => fraction(k / K, K)).join(", ")})`;
  };
  return `(${context.columns.map(cell).join(", ")})`;
}

/**
 * A broken axis: numbers in order, each gap as wide as its logarithm. Gaps of delta and of
 * delta^{-nd} are both seen, and equal numbers coincide.
 * @param {number[]} numbers
 * @param {number} unit
 * @param {number} start
 * @param {number} end
 */
function byGaps(numbers, unit, start, end) {
  const sorted = [...new Set(numbers)].sort((a, b) => a - b);
  const at = [0];
  for (let k = 1; k < sorted.length; k++) at.push(at[k - 1] + Math.log2(1 + (sorted[k] - sorted[k - 1]) / unit));
  const total = at[at.length - 1] || 1;
  /** @param {number} value */
  const to = (value) => {
    let low = 0, high = sorted.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (sorted[middle] <= value) low = middle;
      else high = middle - 1;
    }
    const next = Math.min(low + 1, sorted.length - 1);
    const gap = sorted[next] - sorted[low];
    const share = gap > 0 ? Math.min(1, Math.max(0, (value - sorted[low]) / gap)) : 0;
    return start + ((at[low] + share * (at[next] - at[low])) / total) * (end - start);
  };
  return { to, ticks: sorted, low: sorted[0], high: sorted[sorted.length - 1] };
}

/**
 * The picture, drawn once, and the mark of the current input, which follows it.
 * @param {Session} session
 * @param {Network} network  as it was when the sequences ran
 * @param {Mapping} mapping
 * @param {Element} hover
 */
export function bandsOf(session, network, mapping, hover) {
  const svg = picture(WIDTH, HEIGHT, "Ids of all sequences; a band for each");
  const K = session.K || 1;
  const { low: t_l, high: t_r } = session.original.construction.ids;
  const ids = mapping.contexts.flatMap((c) => c.ids).filter(Number.isFinite);
  const scale = byGaps([...ids, t_l, t_r], 1 / K, LEFT + 8, RIGHT - 8);
  svg.append(
    el("rect", { x: scale.to(t_l), y: 18, width: Math.max(1, scale.to(t_r) - scale.to(t_l)), height: ROWS + 14, class: "interval" }),
    label("t_l", { x: scale.to(t_l) + 2, y: 14, class: "tick" }),
    label("t_r", { x: scale.to(t_r) - 2, y: 14, class: "tick", "text-anchor": "end" }),
  );
  axis(svg, scale);
  const rows = rowsOf(mapping);
  const height = Math.max(1.5, Math.min(26, ROWS / rows.length)), tall = Math.max(1.2, height - 0.8);
  rows.forEach((row, k) => (row.y = TOP + (rows.length > 1 ? (k * (ROWS - height)) / (rows.length - 1) : ROWS / 2)));
  const say = (/** @type {Context} */ context) =>
    (hover.textContent = `${named(session, context)} has ${context.distinct || !isEquivariant(network) ? "the ids" : "equal tokens: the ids"} ${context.ids.map((v) => fraction(v, K)).join(", ")}.`);
  const shade = (/** @type {Row} */ { low, high, y }, /** @type {string} */ kind) =>
    el("rect", { x: scale.to(low) - 2, y, width: Math.max(4, scale.to(high) - scale.to(low) + 4), height: tall, rx: 1, class: `band ${kind}` });
  const colour = (/** @type {number} */ j) => `tick-mark line-${isEquivariant(network) ? 7 : j % 8}`;
  const own = el("g", {});
  const shared = mapping.collision ? mapping.collision.id : NaN;
  const alone = rows.length <= SINGLE;
  if (!alone) crowd(svg, rows, scale, tall, colour);
  let single = 0;
  for (const row of rows) {
    const bad = row.context.ids.includes(shared);
    if ((!alone && !bad) || ++single > SINGLE) continue;
    const band = shade(row, bad ? "bad" : "");
    band.setAttribute("data-band", row.context.columns.join("-"));
    band.append(el("title", {}, named(session, row.context)));
    svg.append(band);
    row.context.ids.forEach((id, j) => svg.append(el("line", { x1: scale.to(id), x2: scale.to(id), y1: row.y, y2: row.y + tall, class: colour(j) })));
  }
  svg.append(own);
  const shown = mapping.duplicates.length * network.n < 3000 ? mapping.duplicates : [];
  for (const context of shown)
    for (const id of context.ids)
      if (id >= scale.low && id <= scale.high)
        svg.append(el("line", { x1: scale.to(id), x2: scale.to(id), y1: TOP + ROWS + 1, y2: TOP + ROWS + 7, class: "duplicate", onpointerenter: () => say(context) }));
  svg.addEventListener("pointermove", (event) => {
    const matrix = svg.getScreenCTM();
    if (!matrix) return;
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(matrix.inverse());
    const row = nearest(rows, scale, at);
    if (row && at.y < TOP + ROWS + 1) say(row.context);
  });
  const places = new Map(rows.map((row) => [row.context.columns.join(), row]));
  let marked = "";
  return {
    svg,
    /** @param {State} state */
    own: (state) => {
      const cells = ownCells(session, network, state);
      if (cells === marked) return;
      marked = cells;
      const row = places.get(cells);
      own.replaceChildren(...(row ? [shade(row, row.context.ids.includes(shared) ? "own bad" : "own"), ...row.context.ids.map((id, j) => el("line", { x1: scale.to(id), x2: scale.to(id), y1: row.y, y2: row.y + tall, class: colour(j) }))] : []));
    },
  };
}

/** Sequences by their ids. @param {Mapping} mapping @returns {Row[]} */
function rowsOf(mapping) {
  return mapping.contexts
    .map((context) => ({ context, low: Math.min(...context.ids), high: Math.max(...context.ids), y: 0 }))
    .sort((a, b) => a.low - b.low);
}

/** @param {SVGSVGElement} svg @param {{to: (value: number) => number, ticks: number[]}} scale */
function axis(svg, scale) {
  let free = -Infinity;
  for (const tick of scale.ticks) {
    const x = scale.to(tick), text = short(tick, 6), half = text.length * 3.6;
    if (x - half < Math.max(free, LEFT - 4) || x + half > RIGHT + 4) continue;
    free = x + half + 8;
    svg.append(
      el("line", { x1: x, x2: x, y1: TOP + ROWS + 8, y2: TOP + ROWS + 14, class: "axis" }),
      label(text, { x, y: TOP + ROWS + 28, class: "tick", "text-anchor": "middle" }),
    );
  }
  svg.append(label("ids in order; a gap is as wide as its logarithm", { x: RIGHT, y: TOP + ROWS + 46, class: "tick", "text-anchor": "end" }));
  svg.append(el("line", { x1: LEFT, x2: RIGHT, y1: TOP + ROWS + 8, y2: TOP + ROWS + 8, class: "axis" }));
}

/**
 * Very many rows: one path for the bands and one for the ticks of each token, and what would
 * fall on the same half pixel is drawn once.
 * @param {SVGSVGElement} svg
 * @param {Row[]} rows
 * @param {{to: (value: number) => number}} scale
 * @param {number} tall
 * @param {(j: number) => string} colour
 */
function crowd(svg, rows, scale, tall, colour) {
  const half = (/** @type {number} */ v) => Math.round(2 * v) / 2;
  const paths = /** @type {Map<string, Set<string>>} */ (new Map([["band", new Set()]]));
  for (const { context, low, high, y } of rows) {
    paths.get("band")?.add(`M${half(scale.to(low) - 2)},${half(y)}H${half(scale.to(high) + 2)}V${half(y) + tall}H${half(scale.to(low) - 2)}z`);
    context.ids.forEach((id, j) => {
      const kind = colour(j);
      if (!paths.has(kind)) paths.set(kind, new Set());
      paths.get(kind)?.add(`M${half(scale.to(id))},${half(y)}v${tall}`);
    });
  }
  for (const [kind, parts] of paths) svg.append(el("path", { d: [...parts].join(""), class: kind }));
}

/** The row under the pointer: among those at its height, the one with the nearest id. @param {Row[]} rows @param {{to: (value: number) => number}} scale @param {DOMPoint} at */
function nearest(rows, scale, at) {
  const gap = rows.length > 1 ? (rows[rows.length - 1].y - rows[0].y) / (rows.length - 1) : 1;
  const middle = Math.round((at.y - TOP) / gap - 0.5), reach = Math.ceil(1 / gap);
  /** @type {Row|null} */
  let best = null;
  let least = Infinity;
  for (const row of rows.slice(Math.max(0, middle - reach + 1), Math.max(0, middle + reach))) {
    const away = Math.min(...row.context.ids.map((id) => Math.abs(scale.to(id) - at.x)));
    if (away < least) [best, least] = [row, away];
  }
  return best;
}

/** The cells of the current input, as `columns` has them. @param {Session} session @param {Network} network @param {State} state */
function ownCells(session, network, state) {
  const { n, d } = session.original;
  const K = session.K || 1;
  const columns = Array.from({ length: n }, (_, j) => {
    let column = 0;
    for (let i = d - 1; i >= 0; i--) {
      const share = (state.x[j * d + i] - session.lows[i]) / (session.highs[i] - session.lows[i]);
      column = column * K + Math.min(K - 1, Math.max(0, Math.floor(share * K)));
    }
    return column;
  });
  return (isEquivariant(network) ? columns.sort((a, b) => a - b) : columns).join();
}
