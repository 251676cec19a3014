// Tokens: the input, to be dragged; beside it f, g and their gap.

import { el, fill, keepers, label, mark, picture } from "./dom.js";
import { linear } from "./scales.js";
import { fraction, short } from "./numbers.js";

/** @typedef {import("./session.js").Session} Session */
/** @typedef {import("./store.js").Store} Store */
/** @typedef {import("./store.js").State} State */

const WIDTH = 266, ROW = 40, SQUARE = 150;

/**
 * @param {Session} session
 * @param {Store} store
 */
export function tokensPane(session, store) {
  const { n, d } = session.original;
  const drawing = d === 2 ? square(session, store) : lines(session, store);
  const values = el("div", { class: "values", tabindex: 0, role: "region", "aria-label": "Values of tokens" });
  const note = el("p", { class: "note", "aria-live": "polite" });
  const pane = el(
    "section",
    { class: "pane tokens", id: "tokens", "aria-labelledby": "tokens-title" },
    el(
      "header",
      {},
      el("h2", { id: "tokens-title" }, "Tokens"),
      el("span", { class: "quiet" }, `n = ${n}, d = ${d}`),
      keepers(() => pane, "tokens"),
    ),
    el("div", { class: "scroll drawing" }, drawing.node),
    buttons(session, store),
    values,
    note,
  );
  /** @param {State} state */
  const update = (state) => {
    drawing.update(state);
    fill(values, table(session, state));
    fill(note, remark(session, state));
  };
  return { node: pane, update };
}

/** @param {Session} session @param {Store} store */
function buttons(session, store) {
  const { n, d } = session.original;
  const draw = () => Array.from({ length: n * d }, (_, k) => session.inBox(Math.random(), k % d));
  const ramp = session.original.construction ? session.original.construction.ramp : 0;
  /** @type {[string, string, boolean, () => number[]][]} */
  const all = [
    ["Random", "Draw new tokens", true, draw],
    ["Permute", "Move every token one place on: watch equivariance", n > 1, () => {
      const x = store.state.x;
      return [...x.slice(d), ...x.slice(0, d)];
    }],
    ["Equal", "Make all tokens equal: Theorem 2 gives 0 there", n > 1, () => {
      const x = store.state.x;
      return x.map((_, k) => x[k % d]);
    }],
    ["Outside", session.reach ? "Put a token outside the box" : "This construction says nothing outside its box", session.reach > 0, () => {
      const x = store.state.x.slice();
      const k = store.state.token * d;
      x[k] = session.inBox(1 + session.reach / 2, 0);
      return x;
    }],
    ["Ramp", ramp ? "Put a token on a ramp of the quantiser" : "This network has no ramps", ramp > 0 && session.K !== null, () => {
      const x = store.state.x.slice();
      const k = store.state.token * d, K = session.K || 1;
      const share = (x[k] - session.lows[0]) / (session.highs[0] - session.lows[0]);
      const border = Math.min(K - 1, Math.max(1, Math.round(share * K)));
      x[k] = session.inBox(border / K - ramp / 2, 0);
      return x;
    }],
  ];
  return el(
    "div",
    { class: "buttons", role: "group", "aria-label": "Choose tokens" },
    all.map(([name, title, possible, next]) =>
      el(
        "button",
        { type: "button", title, disabled: !possible, "data-action": name.toLowerCase(), onclick: () => store.set({ x: next() }) },
        name,
      ),
    ),
  );
}

/**
 * Steps of the keyboard for a handle.
 * @param {KeyboardEvent} event
 * @param {number} delta
 * @returns {[number, number]|null}
 */
function stepOf(event, delta) {
  const size = event.shiftKey ? delta : delta / 10;
  const steps = /** @type {Record<string, [number, number]>} */ ({
    ArrowRight: [size, 0], ArrowLeft: [-size, 0], ArrowUp: [0, size], ArrowDown: [0, -size],
  });
  return steps[event.key] || null;
}

/** @param {Session} session @param {number} value @param {number} i */
function clamped(session, value, i) {
  const slack = session.reach * (session.highs[i] - session.lows[i]);
  return Math.min(session.highs[i] + slack, Math.max(session.lows[i] - slack, value));
}

/** A line for every entry of the input. @param {Session} session @param {Store} store */
function lines(session, store) {
  const { n, d } = session.original;
  const rows = n * d, height = rows * ROW + 34;
  const left = d > 1 ? 38 : 26, right = WIDTH - 16;
  const scales = session.lows.map((low, i) => {
    const slack = session.reach * (session.highs[i] - low);
    return linear(low - slack, session.highs[i] + slack, left, right);
  });
  const svg = picture(WIDTH, height, "The tokens of the input, each on its line");
  svg.setAttribute("role", "group");
  /** @type {any[]} */
  const handles = [];
  for (let k = 0; k < rows; k++) {
    const j = Math.floor(k / d), i = k % d, y = 22 + k * ROW;
    const scale = scales[i];
    const grid = session.drawnCells;
    svg.append(
      el("line", { x1: left, x2: right, y1: y, y2: y, class: "axis" }),
      ...Array.from({ length: grid + 1 }, (_, cell) => {
        const at = scale.to(session.inBox(cell / grid, i));
        return el("line", { x1: at, x2: at, y1: y - 6, y2: y + 6, class: "grid" });
      }),
      label(d > 1 ? `${j + 1}.${i + 1}` : `${j + 1}`, { x: 8, y: y + 4, class: "strong" }),
    );
    const handle = mark(j, 0, y, 9, {
      class: `token token-${j % 8} handle`,
      tabindex: 0,
      role: "slider",
      "aria-label": d > 1 ? `Token ${j + 1}, coordinate ${i + 1}` : `Token ${j + 1}`,
      "aria-valuemin": session.lows[i],
      "aria-valuemax": session.highs[i],
      "data-entry": k,
    });
    handle.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      const step = stepOf(event, (session.highs[i] - session.lows[i]) / (session.K || 10));
      if (!step) return;
      event.preventDefault();
      event.stopPropagation();
      moveTo(k, store.state.x[k] + step[0] + step[1]);
    });
    handle.addEventListener("focus", () => store.set({ token: j }));
    handles.push(handle);
    svg.append(handle);
  }
  const foot = 22 + (rows - 1) * ROW + 26;
  const ends = [session.lows[0], session.highs[0]];
  ends.forEach((end) => svg.append(label(short(end), { x: scales[0].to(end), y: foot, class: "tick", "text-anchor": "middle" })));
  /** @param {number} k @param {number} value */
  const moveTo = (k, value) => {
    const x = store.state.x.slice();
    x[k] = clamped(session, value, k % d);
    store.set({ x, token: Math.floor(k / d) });
  };
  let held = -1;
  svg.addEventListener("pointerdown", (event) => {
    const [px, py] = pointIn(svg, event);
    const k = Math.round((py - 22) / ROW);
    if (k < 0 || k >= rows) return;
    held = k;
    svg.setPointerCapture(event.pointerId);
    handles[k].focus({ preventScroll: true });
    moveTo(k, scales[k % d].from(px));
  });
  svg.addEventListener("pointermove", (event) => {
    if (held >= 0) moveTo(held, scales[held % d].from(pointIn(svg, event)[0]));
  });
  svg.addEventListener("pointerup", () => (held = -1));
  svg.addEventListener("pointercancel", () => (held = -1));
  /** @param {State} state */
  const update = (state) => {
    handles.forEach((handle, k) => {
      const y = 22 + k * ROW;
      handle.setAttribute("transform", `translate(${scales[k % d].to(clamped(session, state.x[k], k % d))},${y})`);
      handle.setAttribute("aria-valuenow", String(state.x[k]));
      handle.setAttribute("aria-valuetext", short(state.x[k]));
    });
  };
  return { node: svg, update };
}

/** Points in a square, d = 2. @param {Session} session @param {Store} store */
function square(session, store) {
  const { n } = session.original;
  const left = 24, top = 8, size = SQUARE;
  const slack = session.reach;
  const scaleOf = (/** @type {number} */ i, /** @type {number} */ a, /** @type {number} */ b) => {
    const width = session.highs[i] - session.lows[i];
    return linear(session.lows[i] - slack * width, session.highs[i] + slack * width, a, b);
  };
  const xs = scaleOf(0, left, left + size), ys = scaleOf(1, top + size, top);
  const svg = picture(WIDTH, size + 30, "The tokens of the input, points in a square");
  svg.setAttribute("role", "group");
  const K = session.drawnCells;
  for (let cell = 0; cell <= K; cell++) {
    const px = xs.to(session.inBox(cell / K, 0)), py = ys.to(session.inBox(cell / K, 1));
    svg.append(
      el("line", { x1: px, x2: px, y1: ys.to(session.lows[1]), y2: ys.to(session.highs[1]), class: "grid" }),
      el("line", { y1: py, y2: py, x1: xs.to(session.lows[0]), x2: xs.to(session.highs[0]), class: "grid" }),
    );
  }
  for (const end of [session.lows[0], session.highs[0]])
    svg.append(label(short(end), { x: xs.to(end), y: top + size + 16, class: "tick", "text-anchor": "middle" }));
  /** @param {number} j @param {number} a @param {number} b */
  const moveTo = (j, a, b) => {
    const x = store.state.x.slice();
    x[2 * j] = clamped(session, a, 0);
    x[2 * j + 1] = clamped(session, b, 1);
    store.set({ x, token: j });
  };
  const handles = Array.from({ length: n }, (_, j) => {
    const handle = mark(j, 0, 0, 9, {
      class: `token token-${j % 8} handle`, tabindex: 0, role: "slider", "aria-label": `Token ${j + 1}`,
      "aria-valuemin": session.lows[0], "aria-valuemax": session.highs[0], "data-entry": 2 * j,
    });
    handle.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      const step = stepOf(event, (session.highs[0] - session.lows[0]) / (session.K || 10));
      if (!step) return;
      event.preventDefault();
      event.stopPropagation();
      moveTo(j, store.state.x[2 * j] + step[0], store.state.x[2 * j + 1] + step[1]);
    });
    handle.addEventListener("focus", () => store.set({ token: j }));
    svg.append(handle);
    return handle;
  });
  let held = -1;
  svg.addEventListener("pointerdown", (event) => {
    const [px, py] = pointIn(svg, event);
    const x = store.state.x;
    const gaps = handles.map((_, j) => Math.hypot(xs.to(x[2 * j]) - px, ys.to(x[2 * j + 1]) - py));
    held = gaps.indexOf(Math.min(...gaps));
    svg.setPointerCapture(event.pointerId);
    handles[held].focus({ preventScroll: true });
    moveTo(held, xs.from(px), ys.from(py));
  });
  svg.addEventListener("pointermove", (event) => {
    if (held < 0) return;
    const [px, py] = pointIn(svg, event);
    moveTo(held, xs.from(px), ys.from(py));
  });
  svg.addEventListener("pointerup", () => (held = -1));
  svg.addEventListener("pointercancel", () => (held = -1));
  /** @param {State} state */
  const update = (state) => {
    handles.forEach((handle, j) => {
      const a = clamped(session, state.x[2 * j], 0), b = clamped(session, state.x[2 * j + 1], 1);
      handle.setAttribute("transform", `translate(${xs.to(a)},${ys.to(b)})`);
      handle.setAttribute("aria-valuenow", String(state.x[2 * j]));
      handle.setAttribute("aria-valuetext", `${short(state.x[2 * j])}, ${short(state.x[2 * j + 1])}`);
    });
  };
  return { node: svg, update };
}

/**
 * Where in a picture the pointer is.
 * @param {SVGSVGElement} svg
 * @param {PointerEvent} event
 * @returns {[number, number]}
 */
export function pointIn(svg, event) {
  const matrix = svg.getScreenCTM();
  if (!matrix) return [0, 0];
  const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(matrix.inverse());
  return [at.x, at.y];
}

/** @param {Session} session @param {State} state */
function table(session, state) {
  const { n, d } = session.original;
  const run = session.run;
  if (!run) return null;
  const f = session.f, g = run.output;
  const all = [...g, ...(f || [])].filter(Number.isFinite);
  const low = Math.min(0, ...all), high = Math.max(...all, low + 1e-9);
  const bar = linear(low, high, 2, 58);
  const rows = Array.from({ length: n * d }, (_, k) => {
    const j = Math.floor(k / d), i = k % d;
    const gap = f ? Math.abs(f[k] - g[k]) : NaN;
    const drawing = el(
      "svg",
      { viewBox: "0 0 60 22", class: "bar", "aria-hidden": "true" },
      el("rect", { x: bar.to(Math.min(0, g[k])), y: 12, width: Math.abs(bar.to(g[k]) - bar.to(0)), height: 7, class: "bar-g" }),
      f && Number.isFinite(f[k])
        ? el("rect", { x: bar.to(Math.min(0, f[k])), y: 3, width: Math.abs(bar.to(f[k]) - bar.to(0)), height: 7, class: "bar-f" })
        : null,
      el("line", { x1: bar.to(0), x2: bar.to(0), y1: 1, y2: 21, class: "grid" }),
    );
    return el(
      "tr",
      {},
      el("th", { scope: "row", class: `name-${j % 8}` }, d > 1 ? `${j + 1}.${i + 1}` : `${j + 1}`),
      el("td", { "data-x": k, "data-value": state.x[k] }, nearBorder(session, state.x[k], i)),
      el("td", { "data-f": k, "data-value": f ? f[k] : "" }, f ? short(f[k], 3) : "–"),
      el("td", { "data-g": k, "data-value": g[k] }, short(g[k], 3)),
      el("td", {}, f ? short(gap, 2) : "–"),
      el("td", {}, drawing),
    );
  });
  return el(
    "table",
    {},
    el("caption", { class: "hidden" }, "Input, target and network, entry by entry"),
    el("thead", {}, el("tr", {}, ["", "x", "f", "g", "gap"].map((t) => el("th", { scope: "col" }, t)), el("th", { scope: "col" }, el("span", { class: "key-f" }, "f"), " ", el("span", { class: "key-g" }, "g")))),
    el("tbody", {}, rows),
  );
}

/** A number so close below a border that its digits would not show it. @param {Session} session @param {number} value @param {number} i */
function nearBorder(session, value, i) {
  const K = session.K;
  if (K) {
    const share = (value - session.lows[i]) / (session.highs[i] - session.lows[i]);
    const gap = share * K - Math.round(share * K);
    if (gap !== 0 && Math.abs(gap) < 1e-5)
      return `${fraction(Math.round(share * K) / K, K)} ${gap < 0 ? "−" : "+"} ${short(Math.abs(gap) / K, 2)}`;
  }
  return short(value, 3);
}

/** @param {Session} session @param {State} state */
function remark(session, state) {
  const { n, d, construction } = session.original;
  const run = session.run;
  if (!run) return "";
  if (session.target && !session.target.exact) return "f is known here by its values at sampled points: the nearest one is shown.";
  const cell = (/** @type {number} */ j) =>
    Array.from({ length: d }, (_, i) => {
      const v = (state.x[j * d + i] - session.lows[i]) / (session.highs[i] - session.lows[i]);
      return session.K ? Math.min(session.K - 1, Math.floor(v * session.K)) : v;
    }).join();
  const cells = Array.from({ length: n }, (_, j) => cell(j));
  if (session.outside(state.x)) return "A token lies outside the box: there the network gives 0.";
  const equal = n > 1 && new Set(cells).size < n;
  if (equal && construction && construction.theorem === "Theorem 2")
    return "Two tokens share a cell: their ids cannot differ, and the network gives 0. Such cells are a small part of the domain (Proposition 4).";
  if (equal && construction && construction.theorem === "Theorem 3")
    return construction.paper.startsWith("Luo")
      ? "Tokens share a cell, yet the outputs may differ: the matrix C told the positions apart."
      : "Tokens share a cell, yet the outputs may differ: the positions E told them apart.";
  return "";
}
