// Break the lemma: networks with a part of the contextual map left out or changed.

/** @typedef {import("./executor.js").Network} Network */
/** @typedef {import("./executor.js").Stage} Stage */

const SHIFTS = ["selective shifts", "chain shifts"];
const LAST = ["global shift", "max shifts"];

/**
 * @typedef {object} Break
 * @property {string} name
 * @property {string} label
 * @property {string} why  what the lemma loses
 */

/** @type {Break[]} */
const BREAKS = [
  {
    name: "no-global",
    label: "leave out the global shift",
    why: "Only one token of a sequence knows the whole of it; the others keep small ids that many sequences share.",
  },
  {
    name: "fewer",
    label: "one shift fewer",
    why: "The last shift is left out: the token with the largest id never moves, and does not hear of the others.",
  },
  {
    name: "small",
    label: "V too small",
    why: "The shift adds 1 · (max − min) instead of V · (max − min): digits overlap, and sums of different tokens agree.",
  },
  {
    name: "down",
    label: "sweep downwards",
    why: "Large ids move first, so later shifts see a maximum that has already moved: ids leave their interval.",
  },
];

/**
 * The breaks that a network has room for.
 * @param {Network} network
 * @returns {Break[]}
 */
export function breaksOf(network) {
  const has = (/** @type {string[]} */ kinds) =>
    network.stages.some((stage) => stage.kind !== null && kinds.includes(stage.kind));
  const names = [
    ...(has(LAST) ? ["no-global"] : []),
    ...(has(SHIFTS) ? ["fewer", "small"] : []),
    ...(has(["selective shifts"]) ? ["down"] : []),
  ];
  return BREAKS.filter((one) => names.includes(one.name));
}

/**
 * @param {Network} network
 * @param {string[]} names
 * @returns {Network}  the same one where nothing is broken
 */
export function brokenNetwork(network, names) {
  const known = breaksOf(network).map((one) => one.name);
  const chosen = names.filter((name) => known.includes(name));
  if (!chosen.length) return network;
  return network.withStages(
    network.stages.map((stage) => {
      if (stage.kind === null) return stage;
      if (LAST.includes(stage.kind) && chosen.includes("no-global")) return { ...stage, order: [] };
      return SHIFTS.includes(stage.kind) ? brokenShifts(stage, chosen) : stage;
    }),
  );
}

/** @param {Stage} stage @param {string[]} chosen @returns {Stage} */
function brokenShifts(stage, chosen) {
  const order = Array.from({ length: stage.blocks }, (_, k) => k);
  if (chosen.includes("down")) order.reverse();
  const rest = chosen.includes("fewer") ? order.filter((k) => k !== stage.blocks - 1) : order;
  const attention = stage.attention;
  if (!attention || !chosen.includes("small")) return { ...stage, order: rest };
  const W_O = { ...attention.W_O, data: attention.W_O.data.map(Math.sign) };
  return { ...stage, order: rest, attention: { ...attention, W_O } };
}
