// The page of a network: four panes that show one state.

import { chip, pageHead } from "./chrome.js";
import { el, fill } from "./dom.js";
import { counted, short } from "./numbers.js";
import { functionPane } from "./function.js";
import { idsPane } from "./ids.js";
import { proofPane } from "./proof.js";
import { Session } from "./session.js";
import { Store } from "./store.js";
import { blockOf, settingOf, stopsOf, tourCard } from "./tour.js";
import { tokensPane } from "./tokens.js";

/** @typedef {import("./store.js").State} State */

/** Where tokens begin, as shares of the box: distinct cells, in no order. */
const FIRST = [0.62, 0.13, 0.88, 0.37, 0.7, 0.2, 0.95, 0.45];
const FIRST_PAIRS = [0.62, 0.2, 0.3, 0.8, 0.85, 0.6, 0.1, 0.3];

/**
 * A network with its panes: the page's own, or one of the tour.
 * @typedef {object} View
 * @property {Session} session
 * @property {ReturnType<typeof proofPane>} proof
 * @property {{node: HTMLElement, update: (state: State) => void}[]} panes
 */

/**
 * @param {HTMLElement} app
 * @param {any} data
 */
export function networkPage(app, data) {
  const others = data.tour.networks;
  const sessionOf = remembered((/** @type {string} */ name) => new Session(name ? others[name] : data));
  const named = (/** @type {string} */ name) => (Object.hasOwn(others, name) ? name : "");
  const store = new Store(
    remembered((name) => firstState(sessionOf(named(name)), named(name))),
    (state) => sane(sessionOf(state.network), state),
  );
  const viewOf = remembered((name) => viewFor(sessionOf(name), store));
  const stops = stopsOf(sessionOf(""));
  const head = el("div", {}), main = el("main", { class: "panes" }), help = helpDialog();
  const warning = el("span", { class: "chip bad", hidden: true }, "changed network");
  fill(app, head, main, help);
  /** @type {View|null} */
  let view = null;

  /** @param {string} name */
  const show = (name) => {
    if (view) view.proof.player.stop();
    sessionOf(name).follow(store.state);
    view = viewOf(name);
    const tourButton = el("button", { type: "button", class: "primary", "data-action": "tour", onclick: () => visit(0) }, "Guided tour");
    const back = el("button", { type: "button", "data-action": "own-network", onclick: () => visit(-1) }, `Back to ${data.title}`);
    fill(
      head,
      pageHead(view.session.data.title, [...chipsOf(view.session), warning], [
        name ? back : stops.length ? tourButton : null,
        el("button", { type: "button", class: "quiet", onclick: () => share(store), title: "Copy a link to what is shown" }, "Link"),
        el("button", { type: "button", class: "quiet", onclick: () => help.showModal(), title: "Keys" }, "Keys"),
      ]),
    );
    fill(main, view.panes.map((pane) => pane.node));
    return view;
  };

  /** @param {number} number */
  const visit = (number) => {
    if (view) view.proof.player.stop();
    const { state } = store;
    if (number < 0) {
      const own = state.network ? store.first("") : { broken: [], sharp: 0 };
      return store.set({ ...own, tour: -1, network: "" });
    }
    const stop = stops[number], name = stop.network || "";
    const from = name === state.network ? state : store.first(name);
    store.set({ ...from, ...settingOf(sessionOf(name), from, stop), tour: number });
    store.flush();
    const block = blockOf(sessionOf(name), stop);
    if (block !== null) store.set({ block });
    document.getElementById("tour-title")?.focus({ preventScroll: true });
  };

  /** @param {State} state @param {Set<string>|null} changed */
  const update = (state, changed) => {
    const other = !view || !changed || changed.has("network");
    const { session, proof, panes } = other ? show(state.network) : /** @type {View} */ (view);
    if (!other) session.follow(state, changed);
    for (const pane of panes) pane.update(state);
    warning.hidden = session.asBuilt;
    const stop = state.tour >= 0 ? stops[Math.min(state.tour, stops.length - 1)] : null;
    for (const pane of panes) pane.node.classList.toggle("meant", Boolean(stop && stop.pane === pane.node.id));
    proof.node.classList.toggle("touring", Boolean(stop));
    if (stop && (other || changed?.has("tour") || !proof.lemma.querySelector(".tour-card"))) tourCard(stops, session, store, proof.lemma, visit);
  };
  store.listen(update);
  update(store.state, null);
  keys(store, () => /** @type {View} */ (view).proof.player, visit, stops.length);

  const session = () => sessionOf(store.state.network);
  /** @type {any} */ (window).everyformer = {
    get session() { return session(); },
    store,
    evaluate: (/** @type {number[]} */ x) => Array.from(session().original.run(x).output),
    trace: (/** @type {number[]} */ x) => session().original.run(x).trace().map((z) => Array.from(z)),
    f: (/** @type {number[]} */ x) => (session().target ? Array.from(/** @type {any} */ (session().target).call(x)) : null),
    ids: (/** @type {number[]} */ x) => session().original.run(x).trace().map((z) => session().original.ids(z)),
  };
}

/**
 * A function that computes each value once.
 * @template T
 * @param {(name: string) => T} make
 */
function remembered(make) {
  /** @type {Map<string, T>} */
  const known = new Map();
  return (/** @type {string} */ name) => {
    if (!known.has(name)) known.set(name, make(name));
    return /** @type {T} */ (known.get(name));
  };
}

/** @param {Session} session @param {Store} store @returns {View} */
function viewFor(session, store) {
  const proof = proofPane(session, store);
  return { session, proof, panes: [proof, tokensPane(session, store), idsPane(session, store), functionPane(session, store)] };
}

/** Where a network begins. @param {Session} session @param {string} network @returns {State} */
function firstState(session, network) {
  const { n, d, construction } = session.original;
  return {
    x: Array.from({ length: n * d }, (_, k) => session.inBox((d === 2 ? FIRST_PAIRS : FIRST)[k % 8], k % d)),
    block: 0, tab: construction && construction.ids ? "ids" : "registers",
    broken: [], sharp: 0, out: 0, axis: 0, token: 0, zoom: 0, tour: -1, network,
  };
}

/** A state within what this network has. @param {Session} session @param {State} state @returns {State} */
function sane(session, state) {
  const { n, d, blocks } = session.original;
  const whole = (/** @type {number} */ v, /** @type {number} */ low, /** @type {number} */ high) =>
    Math.min(high, Math.max(low, Math.round(v)));
  const near = (/** @type {number} */ v, /** @type {number} */ k) => {
    const slack = session.reach * (session.highs[k % d] - session.lows[k % d]);
    return Math.min(session.highs[k % d] + slack, Math.max(session.lows[k % d] - slack, v));
  };
  return {
    ...state,
    x: state.x.map(near),
    block: whole(state.block, 0, blocks),
    out: whole(state.out, 0, n * d - 1),
    axis: whole(state.axis, 0, n * d - 1),
    token: whole(state.token, 0, n - 1),
    tour: whole(state.tour, -1, 99),
    sharp: state.sharp > 0 ? 1 : Math.max(-20, state.sharp),
    zoom: Math.min(12, Math.max(0, state.zoom)),
  };
}

/** @param {Session} session */
function chipsOf(session) {
  const { construction: known, className, blocks, parameters, n, d, program } = session.original;
  const grid = known ? `, K = ${known.grid}` : "";
  return [
    known ? chip(known.paper === "everyformer" ? known.theorem : `${known.theorem}, ${known.paper}`) : program ? chip("compiled program") : null,
    chip(className.replace(/\^\{([^}]*)\}/, "⟨$1⟩").replace("_P", "ₚ").replace("Omega_U", "Ω")),
    chip(`n = ${n}, d = ${d}${grid}`),
    chip(`${counted(blocks, "block")}, ${short(parameters)} parameters`),
  ];
}

/** @param {Store} store */
function share(store) {
  store.write();
  navigator.clipboard?.writeText(location.href).catch(() => {});
}

function helpDialog() {
  const rows = [
    ["space", "play and pause"],
    ["← →", "one block back or on; in the tour, one stop"],
    ["shift + ← →", "to the last or next block that changes something"],
    ["Home, End", "to the input, to the result"],
    ["+ −", "sharpness of softmax, or zoom of the magnifier, in their tabs"],
    ["tab, arrows", "go to a token and move it; with shift by a cell"],
    ["t, Esc", "begin and end the tour"],
  ];
  const dialog = el(
    "dialog",
    { "aria-label": "Keys" },
    el("h2", {}, "Keys"),
    el("table", {}, el("tbody", {}, rows.map(([key, what]) => el("tr", {}, el("th", { scope: "row" }, key), el("td", {}, what))))),
    el("button", { type: "button", class: "primary", onclick: () => dialog.close() }, "Close"),
  );
  return dialog;
}

/** @param {Store} store @param {() => any} playing @param {(stop: number) => void} visit @param {number} stops */
function keys(store, playing, visit, stops) {
  document.addEventListener("keydown", (event) => {
    const on = /** @type {Element} */ (event.target);
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (on.matches("input, select, textarea, [role=slider]")) return;
    const { tour, tab, sharp, zoom } = store.state;
    const player = playing();
    const turn = event.key === "+" ? 1 : event.key === "-" ? -1 : 0;
    if (event.key === " " && !on.matches("button, summary")) player.play();
    else if (event.key === "ArrowRight") tour >= 0 ? visit(Math.min(tour + 1, stops - 1)) : event.shiftKey ? player.jump(1) : player.step(1);
    else if (event.key === "ArrowLeft") tour >= 0 ? visit(Math.max(0, tour - 1)) : event.shiftKey ? player.jump(-1) : player.step(-1);
    else if (event.key === "Home") player.goTo(0);
    else if (event.key === "End") player.goTo(Infinity);
    else if (event.key === "t" && stops) visit(0);
    else if (event.key === "Escape" && tour >= 0) visit(-1);
    else if (turn && tab === "ramp") store.set({ zoom: Math.max(0, zoom + turn / 2) });
    else if (turn && tab === "softmax") store.set({ sharp: Math.max(-20, Math.min(1, sharp + turn)) });
    else return;
    event.preventDefault();
  });
}
