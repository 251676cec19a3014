// Proof: the stages as a track, a scrubber over blocks, and the lemma in words.

import { el, fill, keepers, label, picture } from "./dom.js";
import { formula } from "./formula.js";
import { counted, short } from "./numbers.js";
import { lemmaOf, sentenceOf } from "./words.js";

/** @typedef {import("./session.js").Session} Session */
/** @typedef {import("./store.js").Store} Store */
/** @typedef {import("./store.js").State} State */

const WIDTH = 780, HEIGHT = 92;

/** Milliseconds between steps. */
const SPEEDS = /** @type {Record<string, number>} */ ({ slow: 1600, normal: 700, fast: 200 });

/**
 * @param {Session} session
 * @param {Store} store
 */
export function proofPane(session, store) {
  const track = el("div", { class: "track" });
  const sentence = el("p", { class: "sentence", "aria-live": "polite", id: "sentence" });
  const scrubber = el("input", {
    type: "range", min: 0, max: session.network.blocks, step: 1, class: "scrubber",
    "aria-label": "Number of blocks that have run",
    oninput: () => store.set({ block: Number(scrubber.value) }),
  });
  const count = el("output", { class: "count" });
  const player = playerOf(session, store);
  const lemma = el("div", { class: "lemma", tabindex: 0, role: "region", "aria-label": "The lemma in words" });
  const pane = el(
    "section",
    { class: "pane proof", id: "proof", "aria-labelledby": "proof-title" },
    el(
      "div",
      { class: "time" },
      el("header", {}, el("h2", { id: "proof-title" }, "Proof"), player.node, count, keepers(() => track, "proof")),
      track,
      scrubber,
      sentence,
    ),
    lemma,
  );
  /** @param {State} state */
  const update = (state) => {
    const block = Math.min(state.block, session.network.blocks);
    scrubber.max = String(session.network.blocks);
    scrubber.value = String(block);
    scrubber.setAttribute("aria-valuetext", `block ${block} of ${session.network.blocks}`);
    fill(count, `block ${short(block)} of ${short(session.network.blocks)}`);
    fill(track, drawing(session, store, block));
    fill(sentence, sentenceOf(session, block));
    if (state.tour < 0) fill(lemma, card(session, block));
  };
  return { node: pane, update, lemma, player };
}

/** Where blocks lie on the track: wide stages are drawn narrower than they are. @param {Session} session */
function layout(session) {
  const stages = session.network.stages;
  const blocks = stages.map((s) => (s.order ? s.order.length : s.blocks));
  const least = Math.max(74, Math.min(112, (WIDTH - 4) / stages.length - 4));
  const fits = stages.length * least < WIDTH;
  const total = blocks.reduce((a, b) => a + Math.log2(2 + b), 0);
  const spare = fits ? WIDTH - stages.length * least : WIDTH;
  let at = 0;
  return stages.map((stage, k) => {
    const width = (fits ? least : 0) + (spare * Math.log2(2 + blocks[k])) / total;
    const part = { stage, k, x: at, width: width - 3, blocks: blocks[k], start: session.network.starts[k] };
    at += width;
    return part;
  });
}

/** @param {Session} session @param {Store} store @param {number} block */
function drawing(session, store, block) {
  const parts = layout(session);
  const svg = picture(WIDTH, HEIGHT, "The stages of the proof; marks are blocks that change this input");
  const run = session.run;
  const here = block === 0 ? -1 : session.network.place(block - 1).index;
  for (const part of parts) {
    const { stage, x, width, blocks, start } = part;
    const at = (/** @type {number} */ k) => x + ((k + 0.5) / Math.max(1, blocks)) * width;
    const current = part.k === here;
    const group = el("g", {
      class: `stage${current ? " current" : ""}${stage.attention ? " attends" : ""}`,
      onclick: () => store.set({ block: start + Math.max(1, blocks) }),
    });
    group.append(
      el("title", {}, `${stage.name}: ${stage.source}`),
      el("rect", { x, y: 24, width, height: 40, rx: 6, class: "stage-box" }),
      label(clipped(lemmaOf(session, stage).short, width), { x: x + 7, y: 41, class: "stage-name" }),
      label(clipped(counted(blocks, "block"), width), { x: x + 7, y: 57, class: "stage-count" }),
      label(clipped(lemmaNumber(stage.source), width), { x: x + 2, y: 17, class: "tick" }),
    );
    if (run) {
      const marks = new Set();
      for (const k of run.changes) if (k > start && k <= start + blocks) marks.add(Math.round(at(k - 1 - start) * 2) / 2);
      for (const px of marks) group.append(el("line", { x1: px, x2: px, y1: 66, y2: 78, class: "change" }));
    }
    svg.append(group);
    if (current) {
      const px = at(block - 1 - start);
      svg.append(el("path", { d: `M${px},80l-6,10h12z`, class: "playhead" }), el("line", { x1: px, x2: px, y1: 62, y2: 80, class: "playhead-line" }));
    }
  }
  if (here < 0) svg.append(el("path", { d: "M5,80l-5,10h10z", class: "playhead" }));
  return svg;
}

/** @param {string} source */
function lemmaNumber(source) {
  const found = /(Lemma|Theorem|Appendix|Proposition) [A-Z0-9.]+/.exec(source);
  return found ? found[0] : "ours";
}

/** @param {string} text @param {number} width */
function clipped(text, width) {
  const room = Math.floor((width - 8) / 7);
  return text.length <= room ? text : room < 3 ? "" : `${text.slice(0, room - 1)}…`;
}

/** @param {Session} session @param {number} block */
function card(session, block) {
  const { stage } = session.network.place(Math.max(0, block - 1));
  const about = lemmaOf(session, stage);
  return [
    el("h3", {}, stage.name, " ", el("span", { class: "quiet" }, stage.source)),
    about.formulas.map((text) => formula(text)),
    el("p", {}, about.words),
    el("p", { class: "code" }, stage.code.file ? ["Built by ", place(stage.code.file, stage.code.fileLink), ", "] : "", "described in ", place(stage.code.docs, stage.code.docsLink)),
  ];
}

/** A file of the project, as a link where its address is known. @param {string} name @param {string} link */
function place(name, link) {
  const shown = el("code", {}, name);
  return link ? el("a", { href: link, target: "_blank", rel: "noopener noreferrer" }, shown) : shown;
}

/** Paths on a square of 14. */
const ICONS = /** @type {Record<string, string>} */ ({
  first: "M1,1h2v12h-2zM13,1v12l-9,-6z",
  previous: "M7,1v12l-6,-6zM13,1v12l-6,-6z",
  back: "M10,1v12l-8,-6z",
  play: "M2,0v14l11,-7z",
  pause: "M2,1h4v12h-4zM8,1h4v12h-4z",
  step: "M4,1v12l8,-6z",
  next: "M1,1v12l6,-6zM7,1v12l6,-6z",
  last: "M1,1v12l9,-6zM11,1h2v12h-2z",
});

/** @param {string} name */
function icon(name) {
  return el("svg", { viewBox: "0 0 14 14", "aria-hidden": "true" }, el("path", { d: ICONS[name] }));
}

/** @param {Session} session @param {Store} store */
function playerOf(session, store) {
  let timer = 0;
  const stop = () => {
    clearInterval(timer);
    timer = 0;
    show();
  };
  /** The next block that changes something; the end, if none does. @param {number} from @param {number} way */
  const change = (from, way) => (session.run ? session.run.change(from, way) : from);
  const goTo = (/** @type {number} */ block) => store.set({ block: Math.min(session.network.blocks, Math.max(0, block)) });
  const play = () => {
    if (timer) return stop();
    if (store.state.block >= session.network.blocks) goTo(0);
    timer = setInterval(() => {
      goTo(idle.checked ? change(store.state.block, 1) : store.state.block + stride());
      if (store.state.block >= session.network.blocks) stop();
    }, SPEEDS[speed.value]);
    show();
  };
  /** With every block shown, a long network is still through in a minute. */
  const stride = () => Math.max(1, Math.ceil((session.network.blocks * SPEEDS[speed.value]) / 60000));
  const button = (/** @type {string} */ sign, /** @type {string} */ name, /** @type {string} */ action, /** @type {() => void} */ act) =>
    el("button", { type: "button", title: name, "aria-label": name, "data-action": action, onclick: act }, icon(sign));
  const toggle = button("play", "Play (space)", "play", play);
  const speed = el("select", { "aria-label": "Speed", onchange: () => { if (timer) { stop(); play(); } } },
    Object.keys(SPEEDS).map((name) => el("option", { value: name, selected: name === "normal" }, name)));
  const idle = el("input", { type: "checkbox", checked: true });
  const node = el(
    "div",
    { class: "player", role: "group", "aria-label": "Run the network block by block" },
    button("first", "To the input (Home)", "first", () => { stop(); goTo(0); }),
    button("previous", "Back to the last change (shift + left)", "previous-change", () => { stop(); goTo(change(store.state.block, -1)); }),
    button("back", "One block back (left)", "back", () => { stop(); goTo(store.state.block - 1); }),
    toggle,
    button("step", "One block on (right)", "step", () => { stop(); goTo(store.state.block + 1); }),
    button("next", "On to the next change (shift + right)", "next-change", () => { stop(); goTo(change(store.state.block, 1)); }),
    button("last", "To the result (End)", "last", () => { stop(); goTo(session.network.blocks); }),
    speed,
    el("label", { class: "quiet", title: "Most blocks change nothing for a given input" }, idle, " skip idle"),
  );
  const show = () => {
    fill(toggle, icon(timer ? "pause" : "play"));
    const name = timer ? "Pause (space)" : "Play (space)";
    toggle.setAttribute("aria-label", name);
    toggle.setAttribute("title", name);
    toggle.classList.toggle("on", Boolean(timer));
  };
  return {
    node, play, stop,
    step: (/** @type {number} */ by) => { stop(); goTo(store.state.block + by); },
    jump: (/** @type {number} */ way) => { stop(); goTo(change(store.state.block, way)); },
    goTo: (/** @type {number} */ block) => { stop(); goTo(block); },
  };
}
