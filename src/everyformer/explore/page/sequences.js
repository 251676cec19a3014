// All sequences: the ids of every cell, in bands that must not touch; and how to break that.

import { el, fill, label, picture } from "./dom.js";
import { counted, fraction, short } from "./numbers.js";
import { breaksOf } from "./breaking.js";
import { MOST, countContexts, isEquivariant, mappingOf } from "./contexts.js";

/** @typedef {import("./session.js").Session} Session */
/** @typedef {import("./store.js").Store} Store */
/** @typedef {import("./store.js").State} State */
/** @typedef {import("./contexts.js").Context} Context */
/** @typedef {import("./contexts.js").Mapping} Mapping */

const WIDTH = 556, HEIGHT = 214, LEFT = 12, RIGHT = 546;

/** @type {{key: string, mapping: Mapping}|null} */
let known = null;

/** The mapping of what is shown now, computed once. @param {Session} session @param {State} state */
export function currentMapping(session, state) {
  const key = `${state.broken.join()} ${state.sharp}`;
  if (!known || known.key !== key) known = { key, mapping: mappingOf(session, session.network, session.softness) };
  return known.mapping;
}

/**
 * @param {Session} session
 * @param {Store} store
 */
export function sequencesTab(session, store) {
  const drawing = el("div", { class: "drawing" });
  const verdict = el("p", { class: "verdict", "aria-live": "polite", id: "mapping" });
  const hover = el("p", { class: "note", id: "owner" }, "Point at a tick to see which sequence owns it.");
  const switches = breaksOf(session.original).map((one) =>
    el(
      "label",
      { class: "switch", title: one.why },
      el("input", {
        type: "checkbox",
        "data-break": one.name,
        onchange: (/** @type {Event} */ event) => {
          const on = /** @type {HTMLInputElement} */ (event.target).checked;
          const rest = store.state.broken.filter((name) => name !== one.name);
          store.set({ broken: on ? [...rest, one.name] : rest });
        },
      }),
      ` ${one.label}`,
    ),
  );
  const node = el(
    "div",
    { class: "tab-body" },
    drawing,
    verdict,
    hover,
    switches.length
      ? el("fieldset", { class: "breaks" }, el("legend", {}, "Break the lemma"), switches)
      : null,
  );
  /** @param {State} state */
  const update = (state) => {
    for (const box of node.querySelectorAll("[data-break]"))
      /** @type {HTMLInputElement} */ (box).checked = state.broken.includes(box.getAttribute("data-break") || "");
    const count = countContexts(session);
    if (count > MOST) {
      fill(drawing);
      fill(verdict, `There are ${short(count)} sequences of cells; the page runs all of them up to ${short(MOST)}. Build the network with a smaller --grid to see them.`);
      return;
    }
    const mapping = currentMapping(session, state);
    fill(drawing, bands(session, state, mapping, hover));
    fill(verdict, inWords(session, state, mapping));
    verdict.classList.toggle("bad", mapping.collisions > 0 || mapping.strays.length > 0);
  };
  return { node, update };
}

/** @param {Session} session @param {Context} context */
function named(session, context) {
  const { d } = session.original;
  const K = session.K || 1;
  const cell = (/** @type {number} */ c) => {
    if (d === 1) return fraction(c / K, K);
    const digits = Array.from({ length: d }, (_, i) => Math.floor(c / K ** i) % K);
    return `(${digits.map((k) => fraction(k / K, K)).join(", ")})`;
  };
  return `(${context.columns.map(cell).join(", ")})`;
}

/** @param {Session} session @param {State} state @param {Mapping} mapping */
function inWords(session, state, mapping) {
  const K = session.K || 1;
  const what = isEquivariant(session.network) ? "sets of distinct tokens" : "sequences";
  const total = `${short(mapping.contexts.length)} ${what}`;
  const show = (/** @type {number} */ id) => fraction(id, K);
  const parts = [];
  if (mapping.collision) {
    const { a, b, tokenA, tokenB, id } = mapping.collision;
    parts.push(`${counted(mapping.collisions, "collision")} among ${total}. Token ${tokenA + 1} of ${named(session, a)} and token ${tokenB + 1} of ${named(session, b)} share the id ${show(id)}: no table can tell them apart.`);
  } else {
    parts.push(`${total}, no collision: every token of every sequence has an id of its own. The smallest gap is ${show(mapping.gap)}${mapping.closest ? between(session, mapping.closest) : ""}.`);
  }
  if (mapping.strays.length) {
    const { context, id, inside } = mapping.strays[0];
    const { low, high } = session.original.construction.ids;
    parts.push(`${counted(mapping.strays.length, "sequence")} on the wrong side of [t_l, t_r) = [${short(low)}, ${short(high)}), such as ${named(session, context)} with the id ${show(id)}${inside ? ", which has equal tokens and should lie outside" : ", which the value map does not know"} (Lemma 6).`);
  }
  return parts.join(" ");
}

/** @param {Session} session @param {import("./contexts.js").Collision} pair */
function between(session, pair) {
  const [a, b] = [named(session, pair.a), named(session, pair.b)];
  return a === b ? `, between two tokens of ${a}` : `, between ${a} and ${b}`;
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

/** @param {Session} session @param {State} state @param {Mapping} mapping @param {Element} hover */
function bands(session, state, mapping, hover) {
  const svg = picture(WIDTH, HEIGHT, "Ids of all sequences; a band for each");
  const K = session.K || 1;
  const { low: t_l, high: t_r } = session.original.construction.ids;
  const ids = mapping.contexts.flatMap((c) => c.ids).filter(Number.isFinite);
  const scale = byGaps([...ids, t_l, t_r], 1 / K, LEFT + 8, RIGHT - 8);
  const top = 26, rows = 136;
  svg.append(
    el("rect", { x: scale.to(t_l), y: 18, width: Math.max(1, scale.to(t_r) - scale.to(t_l)), height: rows + 14, class: "interval" }),
    label("t_l", { x: scale.to(t_l) + 2, y: 14, class: "tick" }),
    label("t_r", { x: scale.to(t_r) - 2, y: 14, class: "tick", "text-anchor": "end" }),
  );
  let free = -Infinity;
  for (const tick of scale.ticks) {
    const x = scale.to(tick), text = short(tick, 6), half = text.length * 3.6;
    if (x - half < Math.max(free, LEFT - 4) || x + half > RIGHT + 4) continue;
    free = x + half + 8;
    svg.append(
      el("line", { x1: x, x2: x, y1: top + rows + 8, y2: top + rows + 14, class: "axis" }),
      label(text, { x, y: top + rows + 28, class: "tick", "text-anchor": "middle" }),
    );
  }
  svg.append(label("ids in order; a gap is as wide as its logarithm", { x: RIGHT, y: top + rows + 46, class: "tick", "text-anchor": "end" }));
  svg.append(el("line", { x1: LEFT, x2: RIGHT, y1: top + rows + 8, y2: top + rows + 8, class: "axis" }));
  const sorted = mapping.contexts
    .map((context) => ({ context, low: Math.min(...context.ids), high: Math.max(...context.ids) }))
    .sort((a, b) => a.low - b.low);
  const height = Math.max(1.5, Math.min(26, rows / sorted.length));
  const mine = ownCells(session, state);
  const shared = mapping.collision ? mapping.collision.id : NaN;
  sorted.forEach(({ context, low: a, high: b }, k) => {
    const y = top + (sorted.length > 1 ? (k * (rows - height)) / (sorted.length - 1) : rows / 2);
    const own = mine === context.columns.join();
    const bad = context.ids.includes(shared);
    const owner = () => (hover.textContent = `${named(session, context)} has the ids ${context.ids.map((v) => fraction(v, K)).join(", ")}.`);
    svg.append(
      el("rect", { x: scale.to(a) - 2, y, width: Math.max(4, scale.to(b) - scale.to(a) + 4), height: Math.max(1.2, height - 0.8), rx: 1, class: `band${own ? " own" : ""}${bad ? " bad" : ""}`, onpointerenter: owner, "data-band": context.columns.join("-") }, el("title", {}, named(session, context))),
    );
    context.ids.forEach((id, j) => svg.append(el("line", { x1: scale.to(id), x2: scale.to(id), y1: y, y2: y + Math.max(1.2, height - 0.8), class: `tick-mark line-${isEquivariant(session.network) ? 7 : j % 8}`, onpointerenter: owner })));
  });
  const shown = mapping.duplicates.length * session.original.n < 3000 ? mapping.duplicates : [];
  for (const context of shown)
    for (const id of context.ids)
      if (id >= scale.low && id <= scale.high) svg.append(el("line", { x1: scale.to(id), x2: scale.to(id), y1: top + rows + 1, y2: top + rows + 7, class: "duplicate", onpointerenter: () => (hover.textContent = `${named(session, context)} has equal tokens: the ids ${context.ids.map((v) => fraction(v, K)).join(", ")}.`) }));
  return svg;
}

/** The cells of the current input, as `columns` has them. @param {Session} session @param {State} state */
function ownCells(session, state) {
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
  return (isEquivariant(session.network) ? columns.sort((a, b) => a - b) : columns).join();
}
