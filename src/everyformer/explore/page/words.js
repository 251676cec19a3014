// The proof in words: what each stage is, and what one block does to one input.

import { counted, fraction, listed, short } from "./numbers.js";

/** @typedef {import("./executor.js").Network} Network */
/** @typedef {import("./executor.js").Stage} Stage */
/** @typedef {import("./executor.js").FeedForward} FeedForward */
/** @typedef {import("./session.js").Session} Session */

/**
 * @typedef {object} Lemma
 * @property {string} short     the name on the track
 * @property {string} words     what it does and why, in a few sentences
 * @property {string[]} formulas in the notation of formula.js
 */

/**
 * What a stage does, with this network's constants put in.
 * @param {Session} session
 * @param {Stage} stage
 * @returns {Lemma}
 */
export function lemmaOf(session, stage) {
  const network = session.network;
  const known = network.construction;
  const n = network.n, d = network.d, K = session.K || 1, V = K ** d;
  const about = stage.kind || stage.name;
  switch (about) {
    case "position layer":
      return {
        short: "positions",
        words: `One attention layer whose weights are multiplied by a Toeplitz matrix C. Softmax gives 1/${n} everywhere; C keeps the entries below the diagonal, so row i sums to (i − 1)/${n}: the layer counts, and every token learns its position.`,
        formulas: ["(\\text{softmax} * C) 1 = ((i - 1)/n)_i", `x_i += (i - 1) · ${short((K + 1) / K)}`],
      };
    case "read in":
      return {
        short: "read in",
        words: `The box of the target is mapped to [0, 1], one feed-forward layer for each of the ${counted(d, "coordinate")}.`,
        formulas: ["z_i := (x_i - low_i)/(high_i - low_i)"],
      };
    case "out of range":
      return {
        short: "range",
        words: `A coordinate outside [0, 1] is sent far below 0, to −δ^(−nd) = −${short(K ** (n * d))}. The network will give 0 there, as f does.`,
        formulas: [`z_i := -δ^{-nd} = -${K}^{${n * d}} \\text{ outside } [0, 1]`],
      };
    case "quantise":
      return {
        short: "quantise",
        words: `Every coordinate is rounded down to the grid of width δ = 1/${K}: one feed-forward layer for each cell, a step made of four ReLUs with a ramp of width ${short(known ? known.ramp : 0, 2)}. From here on the sequence is one of finitely many.`,
        formulas: [`z_i := δ ⌊ z_i / δ ⌋, δ = 1/${K}`, "z_i += φ(z_i - k δ), φ(t) = -t \\text{ on } [0, δ)"],
      };
    case "selective shifts":
      return {
        short: "shifts",
        words: `One block for each possible id l, upwards. In head 1 a token above l − δ/2 hears the largest id, one below it the smallest; in head 2 at l + δ/2. They differ for the id l alone: that token moves by V = ${V} times the spread, and so writes down what else is in the sequence.`,
        formulas: [
          "X_{1j} += δ^{-d} ( ψ(X; l - δ/2) - ψ(X; l + δ/2) )_j",
          `u^T X_j = l ⟹ u^T X_j += ${V} ( max_k u^T X_k - min_k u^T X_k )`,
        ],
      };
    case "global shift": {
      const C = stage.attention ? stage.attention.W_O.data[0] : 0;
      return {
        short: "global",
        words: `After the sweep the largest id determines the whole sequence (Lemma 10). One more head adds ${short(C, 7)} times that largest id to every token: now every token knows the whole sequence, and its own place in it.`,
        formulas: [`X_{1j} += ${short(C, 7)} · max_k u^T X_k`],
      };
    }
    case "lift":
      return {
        short: "lift",
        words: "A single token has no context. All that is left of Lemma 6 is to lift its id far above the values that are written later.",
        formulas: ["z_1 += \\text{const}"],
      };
    case "chain shifts":
      return {
        short: "chain",
        words: `Attention is sparse: a token hears few others. Along a path through all tokens each one is shifted by V = ${V} times what it hears of the one before, so that the last token of the path knows them all.`,
        formulas: [`z_{γ(i)} += ${V} ( max - min )_{A_{γ(i)}}, i = 2, …, ${n}`],
      };
    case "max shifts":
      return {
        short: "maxima",
        words: "The last token of the path names the sequence. Every token adds a large multiple of the largest id that it hears; after as many rounds as the pattern needs, all have heard.",
        formulas: ["z_k += C max_{j ∈ A_k} z_j"],
      };
    case "cap ids":
      return {
        short: "cap",
        words: "Ids beside an out-of-range token are too large for the next layers to cancel in float64. They are brought down to a cap above t_r.",
        formulas: ["Z_1 := min(u^T Z, cap)"],
      };
    case "push down":
      return {
        short: "push",
        words: `Ids outside [t_l, t_r)${known && known.ids ? ` = [${short(known.ids.low, 6)}, ${short(known.ids.high, 6)})` : ""} belong to sequences with equal tokens, or with one outside the box. Their tokens are pushed far below 0.`,
        formulas: ["Z := Z - M \\text{ where } u^T Z ∉ [t_l, t_r)"],
      };
    case "negative to zero":
      return { short: "to zero", words: "What is negative becomes 0.", formulas: ["Z_i := max(Z_i, 0)"] };
    case "ids to codes":
      return {
        short: "codes",
        words: `There is one block for every id that can occur: ${counted(stage.blocks, "block")}. A window of four ReLUs around an id replaces it by a small code, so that the value written next is not rounded away beside a huge number.`,
        formulas: ["Z := code(q) \\text{ if } | u^T Z - q | < δ/2"],
      };
    case "value map":
      return {
        short: "values",
        words: `The context is known; what remains is a table. One block for each entry: ${counted(stage.blocks, "block")}. A window around the entry's number writes the value of f in the middle of that cell.`,
        formulas: ["Z_j := f(L)_j \\text{ if } | u^T Z_j - q(L)_j | < δ/2"],
      };
    case "clamp":
      return {
        short: "clamp",
        words: "Off the plateaus, on the ramps, anything may have come out. Cutting off at the smallest and largest value of the table keeps the damage bounded.",
        formulas: ["Z_i := min(max(Z_i, low), high)"],
      };
    case "average attention":
    case "bi-linear projection":
    case "separable convolution":
    case "sum":
      return {
        short: about,
        words: "One attention layer with all scores 0: softmax is the plain mean. Each token wrote its digit at its own place of one number, so the mean is a number that names the whole sequence.",
        formulas: ["s = \\frac{1}{n} Σ_j digit(x_j) B^j"],
      };
    case "digits":
      return {
        short: "digits",
        words: `Every token reads off in which of the ${K} cells of each axis it lies, and writes that as a digit.`,
        formulas: [`digit_i = ⌊ ${K} x_i ⌋`],
      };
    case "sum and look-up":
    case "look-up":
      return {
        short: about,
        words: "The mean over tokens names the sequence. A wide feed-forward layer, a staircase, looks the value up.",
        formulas: ["Z_j := \\text{table}_j [ s ]"],
      };
    default:
      return other(session, stage);
  }
}

/** @param {Session} session @param {Stage} stage @returns {Lemma} */
function other(session, stage) {
  const { program, prefix } = session.original;
  if (program) {
    const number = session.network.stages.indexOf(stage);
    const steps = program.steps.filter((/** @type {any} */ s) => Math.floor(s.slot / 2) === number);
    return {
      short: stage.name,
      words: `The target's own program, operation by operation. This block computes ${counted(steps.length, "step")}: ${listed(steps.slice(0, 4).map((/** @type {any} */ s) => s.what)) || "moves of registers"}${steps.length > 4 ? ", …" : "."}`,
      formulas: [],
    };
  }
  if (prefix) {
    return {
      short: stage.name,
      words: `${counted(prefix, "anchor")} stand before the sequence as prefix tokens and hold values of f. Softmax over distances to them is a partition of unity: the network is a smooth mean of the nearest values.`,
      formulas: ["g(x) = Σ_a softmax_a ( -D | x - a |^2 ) f(a)"],
    };
  }
  return { short: stage.name, words: `A stage of ${counted(stage.blocks, "block")}.`, formulas: [] };
}

/**
 * The window that the four ReLUs of a feed-forward layer look at: its ends, and the plateau
 * between its ramps.
 * @param {Network} network
 * @param {FeedForward} ff
 * @param {number} layer
 */
export function windowOf(network, ff, layer) {
  const { w } = network;
  const at = layer * ff.W_1.stride, b = layer * ff.b_1.stride;
  let row = -1;
  for (let i = 0; i < w && row < 0; i++) if (ff.W_1.data[at + i] !== 0) row = i;
  if (row < 0) return null;
  if (ff.phi) {
    const breaks = ff.phi.breaks, shift = ff.b_1.data[b] / ff.W_1.data[at + row];
    const k = layer * breaks.stride;
    const [low, high] = [breaks.data[k] - shift, breaks.data[k + 1] - shift];
    return { row, low, high, inner: [low, high] };
  }
  const knots = [];
  for (let k = 0; k < ff.r; k++) {
    const slope = ff.W_1.data[at + k * w + row];
    if (slope !== 0) knots.push(-ff.b_1.data[b + k] / slope);
  }
  knots.sort((a, b) => a - b);
  return { row, low: knots[0], high: knots[knots.length - 1], inner: [knots[1] ?? knots[0], knots[knots.length - 2] ?? knots[0]] };
}

/**
 * What a block did, in one sentence made from the numbers.
 * @param {Session} session
 * @param {number} block  from 1; 0 is the input
 * @returns {string}
 */
export function sentenceOf(session, block) {
  const run = session.run;
  if (!run) return "";
  const network = session.network;
  if (block === 0) return "The input, before the first block.";
  const { stage, layer } = network.place(block - 1);
  const before = run.state(block - 1), after = run.state(block);
  const moved = [];
  const { n, w, prefix } = network;
  for (let j = 0; j < n; j++) {
    const at = (prefix + j) * w;
    for (let c = 0; c < w; c++) {
      if (before[at + c] !== after[at + c]) {
        moved.push(j);
        break;
      }
    }
  }
  const text = inWords(session, stage, layer, before, after, moved);
  return `Block ${block}: ${text}`;
}

/**
 * @param {Session} session
 * @param {Stage} stage
 * @param {number} layer
 * @param {Float64Array} before
 * @param {Float64Array} after
 * @param {number[]} moved
 */
function inWords(session, stage, layer, before, after, moved) {
  const network = session.network;
  const K = session.K || 1;
  const show = (/** @type {number} */ v) => fraction(v, K);
  const ids = network.ids(before), then = network.ids(after);
  const name = (/** @type {number} */ j) => `token ${j + 1}`;
  const a = stage.attention, ff = stage.feedForward;
  const kind = stage.kind || stage.name;
  if (kind === "out of range" && moved.length && moved.every((j) => Math.abs(after[j * network.w] - before[j * network.w]) < 1e-9))
    return `all tokens lie in the box. They are lifted by ${short(after[moved[0] * network.w] - before[moved[0] * network.w], 2)}, so that rounding never carries one across a border.`;
  if (kind === "selective shifts" && a && ids && then) {
    const at = layer * a.b_Q.stride;
    const l = (a.b_Q.data[at] + a.b_Q.data[at + 1]) / 2;
    const V = a.W_O.data[layer * a.W_O.stride];
    if (!moved.length) return `no token has the id l = ${show(l)}; both heads hear the same for every token, so nothing moves.`;
    const max = Math.max(...ids), min = Math.min(...ids);
    if (!session.asBuilt && moved.some((j) => then[j] - ids[j] !== V * (max - min)))
      return `${listed(moved.map(name))} moved, some by only a part of max − min: softmax leaks.`;
    const verb = moved.length > 1 ? "have" : "has";
    if (moved.some((j) => Math.abs(ids[j] - l) > 1e-9))
      return `${listed(moved.map((j) => `${name(j)} has ${short(ids[j], 6)}`))}, off the grid but within δ/2 of l = ${show(l)}, and ${moved.length > 1 ? "move" : "moves"} by ${short(V)} (max − min) = ${short(V * (max - min), 6)}.`;
    return `${listed(moved.map(name))} ${verb} the id ${show(l)} = l and ${moved.length > 1 ? "move" : "moves"} by ${short(V)} (max − min) = ${short(V)} (${show(max)} − ${show(min)}) = ${show(V * (max - min))}, to ${listed(moved.map((j) => show(then[j])))}.`;
  }
  if (kind === "global shift" && a && ids && then) {
    const C = a.W_O.data[layer * a.W_O.stride];
    const max = Math.max(...ids);
    return `every token moves by ${short(C, 7)} · max = ${short(C, 7)} · ${show(max)} = ${show(C * max)}, to ${listed(then.map(show))}.${session.asBuilt ? " Now each id names the whole sequence." : ""}`;
  }
  if ((kind === "chain shifts" || kind === "max shifts") && ids && then) {
    if (!moved.length) return "no token is in the window of this block, so nothing moves.";
    const what = kind === "chain shifts" ? "by what it hears of the token before it on the path" : "by a multiple of the largest id that it hears";
    return `${listed(moved.map((j) => `${name(j)} moves from ${show(ids[j])} to ${show(then[j])}`))}, ${what}.`;
  }
  if (!moved.length) return idle(session, stage, layer, before);
  if (["quantise", "ids to codes", "value map"].includes(kind) && ff && !network.registers) {
    const window = windowOf(network, ff, layer);
    if (window) {
      const { w } = network;
      if (kind === "quantise") {
        const parts = moved.map((j) => offGrid(after[j * w + window.row], K)
          ? `${name(j)} has ${short(before[j * w + window.row], 6)}, on the ramp below a border of cells: it comes to ${short(after[j * w + window.row], 6)}, which is not on the grid`
          : `${name(j)} has ${short(before[j * w + window.row], 6)}, in the cell that begins at ${show(Math.round(window.low * K) / K)}, and is rounded down to ${short(after[j * w + window.row], 6)}`);
        return `${listed(parts)}.`;
      }
      const what = kind === "value map" ? "value" : "code";
      const parts = moved.map((j) => {
        const id = ids ? ids[j] : NaN;
        if (id < window.inner[0] || id > window.inner[1])
          return `${name(j)} has ${short(id, 6)}, on a ramp of the window of this block, and moves to ${short(then ? then[j] : NaN, 6)}`;
        const now = Array.from(after.slice(j * w, j * w + w), (v) => short(v, 6)).join(", ");
        return `${name(j)} has ${ids ? show(ids[j]) : ""}, the number of this block, and receives the ${what} ${w > 1 ? `(${now})` : now}`;
      });
      return `${listed(parts)}.`;
    }
  }
  const from = network.prefix * network.w;
  // A change that its digits do not show is not told, unless there is no other.
  const seen = (/** @type {number} */ at) => short(before[at], 6) !== short(after[at], 6);
  const visible = moved.filter((j) => Array.from({ length: network.w }, (_, c) => from + j * network.w + c).some(seen));
  const told = visible.length ? visible : moved;
  const parts = told.slice(0, 3).map((j) => {
    const w = network.w, at = from + j * w;
    for (let c = 0; c < w; c++) {
      if (before[at + c] !== after[at + c] && (!visible.length || seen(at + c))) {
        const where = w > 1 ? network.registers ? ` in register r${c}` : ` in coordinate ${c + 1}` : "";
        return `${name(j)} goes from ${short(before[at + c], 6)} to ${short(after[at + c], 6)}${where}`;
      }
    }
    return name(j);
  });
  return `${listed(parts)}${told.length > 3 ? ", and others too" : ""}.`;
}

/** Whether a number is not a multiple of 1/K, apart from the guard. @param {number} value @param {number} K */
function offGrid(value, K) {
  return Math.abs(value * K - Math.round(value * K)) > 1e-9 * K;
}

/** @param {Session} session @param {Stage} stage @param {number} layer @param {Float64Array} before */
function idle(session, stage, layer, before) {
  const K = session.K || 1;
  const kind = stage.kind || stage.name;
  const window = stage.feedForward && windowOf(session.network, stage.feedForward, layer);
  if (kind === "quantise" && window) {
    const at = Math.round(window.low * K) / K;
    return `no token has to be rounded down in the cell that begins at ${fraction(at, K)}; nothing changes.`;
  }
  if ((kind === "ids to codes" || kind === "value map") && window) {
    const middle = (window.low + window.high) / 2;
    return `this block waits for ${fraction(Math.round(middle * 2 * K) / (2 * K), K)}; no token has it, and nothing changes.`;
  }
  if (kind === "out of range") return "all tokens lie in the box; nothing changes.";
  return "nothing changes for this input.";
}
