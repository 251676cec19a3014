// The certificate as a budget: a bar of its parts, each with its reason.

import { el, fill } from "./dom.js";
import { distance, short } from "./numbers.js";

/** @typedef {import("./session.js").Session} Session */

/**
 * @typedef {object} Bound
 * @property {number|null} value
 * @property {string} shown
 * @property {string} reason
 * @property {string} source
 * @property {string} rule
 * @property {Bound[]} terms
 */

/** The bounds that have no parts. @param {Bound} bound @returns {Bound[]} */
function leaves(bound) {
  return bound.terms.length ? bound.terms.flatMap(leaves) : [bound];
}

/** A part in a word or two. @param {Bound} bound */
function named(bound) {
  const text = bound.reason;
  if (text.startsWith("softmax")) return "softmax";
  if (text.startsWith("float64")) return "rounding";
  if (text.startsWith("|g - f|")) return "cells";
  if (text.startsWith("values of the network")) return "values";
  if (text.startsWith("every step, ")) return text.slice(12);
  const head = text.split(/[:,]/)[0];
  return head.length > 22 ? `${head.slice(0, 21)}…` : head;
}

/**
 * A bound that was rounded up, as a decimal: its digits are moved, never rounded again.
 * @param {string} shown  such as 8.888e-01
 */
function decimal(shown) {
  const found = /^(\d)\.(\d+)e([+-]\d+)$/.exec(shown);
  if (!found) return shown;
  const power = Number(found[3]);
  if (power > 6 || power < -5) return shown;
  const digits = found[1] + found[2];
  const text = power < 0 ? `0.${"0".repeat(-power - 1)}${digits}` : `${digits.slice(0, power + 1).padEnd(power + 1, "0")}.${digits.slice(power + 1)}`;
  return text.replace(/\.?0+$/, "") || "0";
}

/** What no one will miss is not spelled out. @param {Bound} part */
function amount(part) {
  return part.value !== null && part.value > 0 && part.value < 1e-11 ? "< 10⁻¹¹" : decimal(part.shown);
}

/** @param {Session} session */
export function certificateView(session) {
  const certificate = session.data.certificate;
  const node = el("div", { class: "certificate" });
  if (!certificate) {
    fill(node, el("h3", {}, "Certificate"), el("p", { class: "note" }, "This network comes without a certificate: nothing is proved of its distance to a function."));
    return { node, update: () => {} };
  }
  const bounds = [certificate.real, certificate.float64].filter(Boolean);
  const parts = certificate.real ? leaves(certificate.real) : [];
  if (certificate.float64) {
    const known = new Set(parts.map((p) => p.reason));
    parts.push(...leaves(certificate.float64).filter((p) => !known.has(p.reason)));
  }
  let chosen = 0;
  const reason = el("p", { class: "reason", "aria-live": "polite" });
  const changed = el("p", { class: "note bad", hidden: true }, "The network that runs now was changed: the certificate is not about it.");
  const p = certificate.p === null ? 1 : Number(certificate.p.split("/")[0]) / Number(certificate.p.split("/")[1] || 1);
  const weights = parts.map((part) => (part.value === null ? 0 : part.value ** p));
  const total = weights.reduce((a, b) => a + b, 0) || 1;
  const choose = (/** @type {number} */ k) => () => {
    chosen = k;
    show();
  };
  const shares = parts.map((part, k) =>
    el("div", { class: `share part-${k % 6}`, style: `flex:${Math.max(0.0005, weights[k] / total)}`, title: part.reason, onclick: choose(k) }));
  const buttons = parts.map((part, k) =>
    el(
      "button",
      { type: "button", class: "part", title: part.reason, "data-part": named(part), onclick: choose(k) },
      el("span", { class: `dot part-${k % 6}` }),
      el("span", { class: "part-name" }, named(part), " "),
      el("span", { class: "part-value" }, amount(part)),
    ));
  const bar = [
    el("div", { class: "budget", "aria-hidden": "true" }, shares),
    el("div", { class: "parts", role: "group", "aria-label": "Parts of the bound" }, buttons),
  ];
  const show = () => {
    buttons.forEach((button, k) => button.setAttribute("aria-pressed", String(k === chosen)));
    shares.forEach((share, k) => share.classList.toggle("on", k === chosen));
    if (!parts.length) return;
    const part = parts[chosen];
    fill(reason, el("strong", {}, `≤ ${decimal(part.shown)}  `), part.reason, part.source ? ` [${part.source}]` : "");
  };
  const norm = distance(certificate.p);
  const best = bounds.length ? bounds.reduce((a, b) => ((a.value ?? Infinity) > (b.value ?? Infinity) ? a : b)) : null;
  const word = certificate.unchecked ? "Claimed" : certificate.conditional ? "CONDITIONAL" : certificate.verdict;
  const kind = word === "PROVED" ? "good" : "open";
  const verdict = el("span", { class: `chip ${kind}` }, word);
  fill(
    node,
    el("h3", {}, verdict, " ", best ? `${norm} ≤ ${decimal(best.shown)}` : "no bound"),
    bounds.length ? bar : null,
    reason,
    changed,
    certificate.unchecked ? el("p", { class: "note" }, "This is what the file says. `everyformer verify` proves it from the weights.") : null,
    certificate.obstacles.map((/** @type {string} */ text) => el("p", { class: "note" }, text)),
    certificate.measured !== null ? el("p", { class: "note" }, `Measured at random points, not proved: ${short(certificate.measured, 3)}.`) : null,
    certificate.hypotheses.length ? el("details", {}, el("summary", {}, "What it rests on"), certificate.hypotheses.map((/** @type {string} */ text) => el("p", { class: "note" }, text))) : null,
  );
  show();
  return {
    node,
    update: () => {
      changed.hidden = session.asBuilt;
      verdict.textContent = session.asBuilt ? word : "as built only:";
      verdict.className = `chip ${session.asBuilt ? kind : "open"}`;
    },
  };
}
