// Ids: the heart of the proof, in tabs.

import { el, fill, keepers } from "./dom.js";
import { hasContexts } from "./contexts.js";
import { hasRamp, rampTab } from "./ramp.js";
import { registersTab } from "./registers.js";
import { sequencesTab } from "./sequences.js";
import { softmaxTab } from "./softening.js";
import { trail } from "./trail.js";

/** @typedef {import("./session.js").Session} Session */
/** @typedef {import("./store.js").Store} Store */
/** @typedef {import("./store.js").State} State */

/** @typedef {{node: Element, update: (state: State) => void}} Tab */

/**
 * @param {Session} session
 * @param {Store} store
 */
export function idsPane(session, store) {
  const hasIds = session.original.construction && session.original.construction.ids;
  /** @type {[string, string, () => Tab][]} */
  const offered = [];
  if (hasIds) offered.push(["ids", "This sequence", () => trailTab(session)]);
  if (hasContexts(session)) {
    offered.push(["all", "All sequences", () => sequencesTab(session, store)]);
    if (session.original.construction.sharpness > 0 && !session.original.hard) offered.push(["softmax", "Softmax", () => softmaxTab(session, store)]);
  }
  if (hasRamp(session)) offered.push(["ramp", "Ramp", () => rampTab(session, store)]);
  if (session.original.registers || !hasIds) offered.push(["registers", "Registers", () => registersTab(session)]);
  const several = offered.length > 1, drawn = offered.some(([name]) => name !== "registers");
  /** @type {Map<string, Tab>} */
  const made = new Map();
  const body = el("div", { class: "tab-panel", role: several ? "tabpanel" : "group", id: "tab-panel" });
  const buttons = offered.map(([name, title]) =>
    el("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "tab-panel", "data-tab": name, onclick: () => store.set({ tab: name }) }, title));
  const bar = el("div", { role: "tablist", class: "tabs", "aria-label": "Views of the ids" }, buttons);
  bar.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const way = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!way) return;
    event.preventDefault();
    event.stopPropagation();
    const at = offered.findIndex(([name]) => name === current(store.state));
    const next = (at + way + offered.length) % offered.length;
    store.set({ tab: offered[next][0] });
    buttons[next].focus();
  });
  const pane = el(
    "section",
    { class: "pane ids", id: "ids", "aria-labelledby": "ids-title" },
    el("header", {}, el("h2", { id: "ids-title" }, hasIds ? "Ids" : "Registers"), several ? bar : null, drawn ? keepers(() => body, "ids") : null),
    body,
  );
  /** @param {State} state */
  const current = (state) => (offered.some(([name]) => name === state.tab) ? state.tab : offered[0][0]);
  /** @param {State} state */
  const update = (state) => {
    const name = current(state);
    buttons.forEach((button) => {
      const on = button.getAttribute("data-tab") === name;
      button.setAttribute("aria-selected", String(on));
      button.setAttribute("tabindex", on ? "0" : "-1");
    });
    body.setAttribute("aria-labelledby", several ? `tab-${name}` : "ids-title");
    let tab = made.get(name);
    if (!tab) {
      const make = offered.find(([other]) => other === name);
      if (!make) return;
      tab = make[2]();
      made.set(name, tab);
    }
    if (body.firstChild !== tab.node) fill(body, tab.node);
    tab.update(state);
  };
  return { node: pane, update };
}

/** @param {Session} session @returns {Tab} */
function trailTab(session) {
  const drawing = el("div", { class: "drawing" });
  const node = el("div", { class: "tab-body" }, drawing);
  return { node, update: (state) => fill(drawing, trail(session, state)) };
}
