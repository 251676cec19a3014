// What all pages share: the head of the page, and light or dark.

import { el } from "./dom.js";

/** A button that turns light into dark and back. */
export function themeButton() {
  const dark = () => {
    const set = document.documentElement.getAttribute("data-theme");
    return set ? set === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  const button = el(
    "button",
    {
      type: "button", class: "quiet", title: "Light or dark", "aria-label": "Change between light and dark",
      onclick: () => {
        document.documentElement.setAttribute("data-theme", dark() ? "light" : "dark");
        window.dispatchEvent(new Event("themechange"));
      },
    },
    "◐",
  );
  return button;
}

/**
 * @param {string} title
 * @param {any[]} chips
 * @param {any[]} buttons
 */
export function pageHead(title, chips, buttons) {
  return el(
    "header",
    { class: "head" },
    el("h1", {}, title),
    el("div", { class: "chips" }, chips),
    el("div", { class: "head-buttons" }, buttons, themeButton()),
  );
}

/** @param {any} text @param {string} kind */
export function chip(text, kind = "") {
  return el("span", { class: `chip ${kind}` }, text);
}
