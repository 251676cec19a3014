// All sequences: the ids of every cell, in bands that must not touch; and how to break that.

import { bandsOf, named } from "./bands.js";
import { breaksOf } from "./breaking.js";
import { MOST, countContexts, isEquivariant, mappingSteps } from "./contexts.js";
import { el, fill } from "./dom.js";
import { counted, fraction, short } from "./numbers.js";
import { inPieces } from "./pieces.js";

/** @typedef {import("./session.js").Session} Session */
/** @typedef {import("./store.js").Store} Store */
/** @typedef {import("./store.js").State} State */
/** @typedef {import("./contexts.js").Mapping} Mapping */

/** Milliseconds for which the page waits for all sequences before it shows how far it is. */
const AT_ONCE = 24;

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
  let key = "", stop = () => {};
  /** @type {{svg: Element, own: (state: State) => void}|null} */
  let drawn = null;
  /** Run all sequences, if another network is shown. @param {State} state */
  const start = (state) => {
    const wanted = `${state.broken.join()} ${state.sharp}`;
    if (key === wanted) return;
    key = wanted;
    drawn = null;
    stop();
    const { network, softness } = session;
    const count = short(countContexts(session));
    const done = (/** @type {Mapping} */ mapping) => {
      drawn = bandsOf(session, network, mapping, hover);
      drawn.own(store.state);
      fill(drawing, drawn.svg);
      fill(verdict, inWords(session, mapping));
      verdict.classList.toggle("bad", mapping.collisions > 0 || mapping.strays.length > 0);
    };
    const progress = (/** @type {number} */ share) => fill(verdict, `Running all ${count} sequences: ${Math.floor(100 * share)} %.`);
    stop = inPieces(mappingSteps(session, network, softness), done, { first: AT_ONCE, progress });
  };
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
    start(state);
    if (drawn) drawn.own(state);
  };
  return { node, update };
}

/** @param {Session} session @param {Mapping} mapping */
function inWords(session, mapping) {
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
