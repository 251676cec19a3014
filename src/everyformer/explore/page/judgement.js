// Verdicts of the checks, as people read them.

import { el } from "./dom.js";

/** @param {string} verdict */
export function verdictKind(verdict) {
  return verdict === "PROVED" ? "good" : verdict === "REFUTED" ? "bad" : "open";
}

/** @param {any} data */
export function judgement(data) {
  return el(
    "div",
    { class: "judgement" },
    data.answers.map((/** @type {any} */ one) => el("p", {}, el("span", { class: `chip ${verdictKind(one.verdict)}` }, one.verdict), " ", one.text)),
    el(
      "details",
      { open: true },
      el("summary", {}, "What was checked"),
      el("div", { class: "scroll findings", tabindex: 0, role: "region", "aria-label": "Findings" },
        data.findings.map((/** @type {any} */ one) =>
          el("p", {}, el("strong", {}, `${one.code} ${one.name}`), ` (${one.kind}): `, el("span", { class: one.news }, told(one)), ` ${one.reason}`))),
      data.findings.some((/** @type {any} */ one) => one.kind === "obstacle") &&
        el("p", { class: "quiet" }, "An obstacle that is PROVED refutes universality, so REFUTED is good news there. Conditions are those of a theorem: PROVED is good news; where one is not, its theorem does not apply."),
    ),
  );
}

/**
 * The verdict of a rule, and what it means for the layer.
 * @param {any} one
 */
function told(one) {
  return one.news ? `${one.verdict}, ${one.news} news:` : `${one.verdict}:`;
}

/**
 * A matrix as a square of cells.
 * @param {any} svg
 * @param {(i: number, j: number) => {share: number, kind?: string, title: string}} cell
 * @param {number} n
 * @param {number} x
 * @param {number} y
 * @param {number} size
 */
export function matrixCells(svg, cell, n, x, y, size) {
  const step = size / n;
  for (let i = 0; i < n; i++)
    for (let j = 0; j < n; j++) {
      const { share, kind, title } = cell(i, j);
      if (share <= 0) continue;
      svg.append(el("rect", { x: x + j * step, y: y + i * step, width: Math.max(0.5, step - 0.6), height: Math.max(0.5, step - 0.6), class: kind || "cell", "fill-opacity": Math.min(1, share) }, el("title", {}, title)));
    }
  svg.append(el("rect", { x, y, width: size, height: size, class: "frame" }));
}
