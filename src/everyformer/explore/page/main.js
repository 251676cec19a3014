// The page begins here: which kind of page it is, is in its data.

import { networkPage } from "./network.js";

const text = /** @type {HTMLElement} */ (document.getElementById("data")).textContent || "{}";
const data = JSON.parse(text);
const app = /** @type {HTMLElement} */ (document.getElementById("app"));
networkPage(app, data);
