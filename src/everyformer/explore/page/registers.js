// Registers: what a network without ids holds, number by number.

import { el, fill } from "./dom.js";
import { runLayer } from "./layers.js";
import { short } from "./numbers.js";

/** @typedef {import("./session.js").Session} Session */
/** @typedef {import("./store.js").State} State */

/** @param {Session} session */
export function registersTab(session) {
  const words = el("p", { class: "note" });
  const table = el("div", { class: "scroll registers", tabindex: 0, role: "region", "aria-label": "Registers" });
  const node = el("div", { class: "tab-body" }, words, table);
  /** @param {State} state */
  const update = (state) => {
    if (!session.run) return;
    const program = session.original.program;
    fill(words, program ? program.note : "Every token holds these numbers; those that the block changed are marked.");
    fill(table, program && program.steps.length ? steps(session, state) : numbers(session, state));
  };
  return { node, update };
}

/** A compiled program: every step with its interval, error and value. @param {Session} session @param {State} state */
function steps(session, state) {
  const { n, w, prefix, program } = session.original;
  const run = session.run;
  if (!run) return null;
  /** @type {Map<number, Float64Array>} */
  const after = new Map();
  const stateAfter = (/** @type {number} */ slot) => {
    const block = Math.floor(slot / 2) + 1;
    if (!after.has(slot)) after.set(slot, slot % 2 || !session.network.stages[block - 1]?.feedForward ? run.state(block) : halfway(session, block));
    return /** @type {Float64Array} */ (after.get(slot));
  };
  const rows = program.steps.map((/** @type {any} */ step) => {
    const z = stateAfter(step.slot);
    const block = Math.floor(step.slot / 2) + 1;
    const values = Array.from({ length: n }, (_, j) =>
      step.reads.reduce((/** @type {number} */ sum, /** @type {[number, number]} */ [r, c]) => sum + c * z[(prefix + j) * w + r], 0));
    const proved = step.low <= step.high;
    return el(
      "tr",
      { class: block === state.block ? "now" : block > state.block ? "future" : "" },
      el("td", {}, `${block - 1} ${step.slot % 2 ? "ff" : "attn"}`),
      el("td", { class: "line", title: `${step.what}\n${step.line}` }, step.what, step.line ? el("code", {}, step.line) : null),
      values.map((v, j) => el("td", { class: `name-${j % 8}`, title: block <= state.block ? String(v) : null }, block <= state.block ? short(v, 4) : "")),
      el("td", {}, proved ? `[${short(step.low, 3)}, ${short(step.high, 3)}]` : ""),
      el("td", {}, proved ? upwards(step.e + step.r) : ""),
    );
  });
  const heads = ["block", "step, your line", ...Array.from({ length: n }, (_, j) => `token ${j + 1}`), "interval", "error ≤"];
  return el("table", {}, el("thead", {}, el("tr", {}, heads.map((t) => el("th", { scope: "col" }, t)))), el("tbody", {}, rows));
}

/** A proved error to two digits, never rounded down. @param {number} value */
function upwards(value) {
  return value === 0 ? "0" : short(value * 1.06, 2);
}

/** The state after the attention half of a block. @param {Session} session @param {number} block */
function halfway(session, block) {
  const run = session.run;
  const { stage, layer } = session.network.place(block - 1);
  const z = run ? run.state(block - 1).slice() : new Float64Array();
  runLayer(session.network, { ...stage, feedForward: null }, layer, z, session.softness);
  return z;
}

/** @param {Session} session @param {State} state */
function numbers(session, state) {
  const { n, w, prefix } = session.network;
  const run = session.run;
  if (!run) return null;
  const block = Math.min(state.block, session.network.blocks);
  const now = run.state(block), before = block ? run.state(block - 1) : now;
  const heads = ["token", ...Array.from({ length: w }, (_, c) => `r${c}`)];
  const rows = Array.from({ length: n }, (_, j) =>
    el("tr", {}, el("th", { scope: "row", class: `name-${j % 8}` }, `${j + 1}`),
      Array.from({ length: w }, (_, c) => {
        const at = (prefix + j) * w + c;
        return el("td", { class: now[at] !== before[at] ? "changed" : "" }, short(now[at], 5));
      })));
  return [
    el("table", {}, el("thead", {}, el("tr", {}, heads.map((t) => el("th", { scope: "col" }, t)))), el("tbody", {}, rows)),
    prefix ? anchors(session, block) : null,
  ];
}

/** Which prefix tokens a token of a partition listens to. @param {Session} session @param {number} block */
function anchors(session, block) {
  const { n, prefix, tokens } = session.network;
  const place = block ? session.network.place(block - 1) : null;
  if (!place || !place.stage.attention || !session.run) return el("p", { class: "note" }, `${prefix} anchors stand before the sequence. Go to a block with attention to see which of them are heard.`);
  const probe = session.run.probe(block - 1);
  const rows = Array.from({ length: n }, (_, j) => {
    const weights = Array.from(probe.weights[0].slice((prefix + j) * tokens, (prefix + j + 1) * tokens));
    const best = weights.map((share, k) => ({ share, k })).sort((a, b) => b.share - a.share).slice(0, 6);
    return el("tr", {}, el("th", { scope: "row", class: `name-${j % 8}` }, `${j + 1}`), best.map(({ share, k }) => el("td", {}, `${k < prefix ? `anchor ${k + 1}` : `token ${k - prefix + 1}`}: ${short(share, 3)}`)));
  });
  return el("table", {}, el("caption", {}, "What each token hears most, by the weights of softmax"), el("tbody", {}, rows));
}
