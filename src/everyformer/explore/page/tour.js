// The guided tour: stops are data, and set what the panes show.

import { el, fill } from "./dom.js";
import { formula } from "./formula.js";
import { hasContexts } from "./contexts.js";
import { short } from "./numbers.js";

/** @typedef {import("./session.js").Session} Session */
/** @typedef {import("./store.js").Store} Store */
/** @typedef {import("./store.js").State} State */

/**
 * @typedef {object} Stop
 * @property {string} title
 * @property {string[]} text       paragraphs; {n}, {d}, {K}, {V}, {blocks}, {bound} are put in
 * @property {string[]} [formulas]
 * @property {string} [pane]       the pane that is meant
 * @property {string} [needs]      "ramp", or "Theorem 2": else the stop is left out
 * @property {string} [unless]     "Theorem 2": then the stop is left out
 * @property {string} [network]    another one, of those that the tour brings
 * @property {any} [set]           x as shares of the box, tab, broken, sharp, zoom, token, out
 * @property {string} [stage]      a stage, by kind or name
 * @property {string} [at]         "start", "end", or "change k" within it
 */

/** The stops that the page has a place for. @param {Session} session  of the page's own network */
export function stopsOf(session) {
  if (!hasContexts(session)) return [];
  /** @type {Stop[]} */
  const all = session.data.tour.stops;
  return all.filter((stop) => {
    const network = stop.network ? session.data.tour.networks[stop.network].network : session.data.network;
    const known = network.construction;
    if (stop.stage && !network.stages.some((/** @type {any} */ s) => (s.kind || s.name) === stop.stage)) return false;
    if (stop.unless && known && known.theorem === stop.unless) return false;
    if (stop.needs === "ramp") return Boolean(known && known.ramp > 0);
    return !stop.needs || Boolean(known && known.theorem === stop.needs);
  });
}

/**
 * What a stop shows.
 * @param {Session} session  of the network that it shows
 * @param {State} state      as it is, or where that network begins
 * @param {Stop} stop
 * @returns {Partial<State>}
 */
export function settingOf(session, state, stop) {
  const set = stop.set || {};
  const { d } = session.original;
  const first = { tab: "ids", broken: [], sharp: 0, zoom: 0, token: 0, network: stop.network || "" };
  /** @type {number[]} */
  const shares = set.x || [];
  const x = set.x ? state.x.map((_, k) => session.inBox(shares[Math.floor(k / d) % shares.length], k % d)) : state.x;
  const { x: _, ...rest } = set;
  return { ...first, ...rest, x };
}

/**
 * The block of a stop, once its state is shown.
 * @param {Session} session
 * @param {Stop} stop
 * @returns {number|null}
 */
export function blockOf(session, stop) {
  const network = session.network;
  if (!stop.stage) return stop.at === "start" ? 0 : stop.at === "end" ? network.blocks : null;
  const index = network.stages.findIndex((s) => (s.kind || s.name) === stop.stage);
  if (index < 0) return null;
  const start = network.starts[index];
  const end = index + 1 < network.starts.length ? network.starts[index + 1] : network.blocks;
  if (stop.at === "start") return start;
  const wanted = /^change (\d+)$/.exec(stop.at || "");
  if (!wanted || !session.run) return end;
  return session.run.changes.filter((block) => block > start && block <= end)[Number(wanted[1]) - 1] ?? end;
}

/**
 * The card of a stop, in the place of the lemma.
 * @param {Stop[]} stops
 * @param {Session} session
 * @param {Store} store
 * @param {Element} place
 * @param {(stop: number) => void} goTo
 */
export function tourCard(stops, session, store, place, goTo) {
  const at = Math.min(store.state.tour, stops.length - 1);
  const stop = stops[at];
  if (!stop) return;
  const known = session.original.construction;
  const K = session.K || 0;
  const bound = session.data.certificate && session.data.certificate.real;
  const constants = /** @type {Record<string, any>} */ ({
    n: session.original.n, d: session.original.d, K, V: K ** session.original.d, blocks: short(session.original.blocks),
    theorem: known ? known.theorem : "", paper: known ? known.paper : "",
    bound: bound ? bound.shown : "not proved", target: session.data.title,
    sharpness: known ? short(known.sharpness) : "", ramp: known ? short(known.ramp, 2) : "",
    low: known && known.ids ? short(known.ids.low) : "", high: known && known.ids ? short(known.ids.high) : "",
    step: short((K + 1) / K),
    sequences: short(K ** (session.original.n * session.original.d)),
  });
  const put = (/** @type {string} */ text) => text.replace(/\{(\w+)\}/g, (whole, name) => (Object.hasOwn(constants, name) ? String(constants[name]) : whole));
  fill(
    place,
    el(
      "div",
      { class: "tour-card", role: "region", "aria-label": "Guided tour" },
      el("h3", { tabindex: -1, id: "tour-title" }, `${at + 1} / ${stops.length}  ${put(stop.title)}`),
      el("div", { class: "tour-text", tabindex: 0, role: "group", "aria-label": "Text of this stop" }, stop.text.map((t) => el("p", {}, put(t))), (stop.formulas || []).map((t) => formula(put(t)))),
      el(
        "div",
        { class: "buttons" },
        el("button", { type: "button", "data-action": "tour-back", disabled: at === 0, onclick: () => goTo(at - 1) }, "← Back"),
        at + 1 < stops.length
          ? el("button", { type: "button", class: "primary", "data-action": "tour-next", onclick: () => goTo(at + 1) }, "Next →")
          : el("button", { type: "button", class: "primary", "data-action": "tour-end", onclick: () => goTo(-1) }, "Done"),
        el("button", { type: "button", class: "quiet", onclick: () => goTo(-1) }, "End the tour (Esc)"),
      ),
    ),
  );
}
