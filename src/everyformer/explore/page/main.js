// The page begins here: which kind of page it is, is in its data.

import { attentionPage } from "./attention.js";
import { comparisonPage } from "./comparison.js";
import { networkPage } from "./network.js";
import { patternPage } from "./pattern.js";

const PAGES = /** @type {Record<string, (app: HTMLElement, data: any) => void>} */ ({
  network: networkPage,
  pattern: patternPage,
  attention: attentionPage,
  comparison: comparisonPage,
});
const text = /** @type {HTMLElement} */ (document.getElementById("data")).textContent || "{}";
const data = JSON.parse(text);
PAGES[data.kind](/** @type {HTMLElement} */ (document.getElementById("app")), data);
