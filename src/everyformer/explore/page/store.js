// What is shown, and the same in the address: a link reproduces what is seen.

/**
 * @typedef {object} State
 * @property {number[]} x       the input, token by token
 * @property {number} block     how many blocks have run
 * @property {string} tab       of the ids
 * @property {string[]} broken  which parts of the lemma are left out
 * @property {number} sharp     softmax: log2 of the factor on the scores; 1 for hardmax
 * @property {number} out       entry of the output that the function pane shows
 * @property {number} axis      entry of the input along which a slice runs
 * @property {number} token     the token that sentences and the magnifier are about
 * @property {number} zoom      of the magnifier, as a power of ten
 * @property {number} tour      stop of the tour; -1 for none
 * @property {string} network   which one runs: "" for the page's own, or a name of the tour
 */

export class Store {
  /**
   * @param {(network: string) => State} first  where a network begins; "" for other names
   * @param {(state: State) => State} sane      what an address says, within what there is
   */
  constructor(first, sane) {
    this.first = first;
    this.sane = sane;
    /** @type {State} */
    this.state = this.read();
    /** @type {((state: State, changed: Set<string>) => void)[]} */
    this.listeners = [];
    /** @type {Set<string>} */
    this.pending = new Set();
    this.timer = 0;
    window.addEventListener("hashchange", () => {
      const next = this.read();
      if (this.address(next) !== this.address(this.state)) this.set(next);
    });
  }

  /** @param {(state: State, changed: Set<string>) => void} listener */
  listen(listener) {
    this.listeners.push(listener);
  }

  /**
   * Change what is shown; listeners hear of it once, before the next frame is drawn.
   * @param {Partial<State>} patch
   */
  set(patch) {
    const was = /** @type {any} */ (this.state);
    const keys = Object.keys(patch).filter((key) => !same(was[key], /** @type {any} */ (patch)[key]));
    if (!keys.length) return;
    this.state = { ...this.state, ...patch };
    if (!this.pending.size) requestAnimationFrame(() => this.flush());
    keys.forEach((key) => this.pending.add(key));
  }

  flush() {
    const changed = this.pending;
    if (!changed.size) return;
    this.pending = new Set();
    for (const listener of this.listeners) listener(this.state, changed);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.write(), 120);
  }

  /** @param {State} state */
  address(state) {
    const first = /** @type {any} */ (this.first(state.network));
    const parts = Object.entries(state)
      .filter(([key, value]) => (key === "network" ? value : !same(first[key], value)))
      .map(([key, value]) => `${key}=${encodeURIComponent(String(value))}`);
    return parts.join("&");
  }

  write() {
    try {
      history.replaceState(null, "", `#${this.address(this.state)}`);
    } catch {
      // A frame without an address of its own has nothing to remember.
    }
  }

  /** The state that the address says. @returns {State} */
  read() {
    const named = /(?:^|&)network=([\w-]+)(?:&|$)/.exec(location.hash.slice(1));
    const first = /** @type {any} */ (this.first(named ? named[1] : ""));
    /** @type {any} */
    const found = {};
    for (const part of location.hash.slice(1).split("&")) {
      const [key, text] = part.split("=");
      if (!Object.hasOwn(first, key) || key === "network" || text === undefined) continue;
      let words;
      try {
        words = decodeURIComponent(text);
      } catch {
        continue;
      }
      const kind = first[key];
      if (typeof kind === "string") found[key] = words;
      else if (typeof kind === "number") {
        const number = Number(words);
        if (Number.isFinite(number)) found[key] = number;
      } else if (key === "x") {
        const numbers = words.split(",").map(Number);
        if (numbers.length === kind.length && numbers.every(Number.isFinite)) found[key] = numbers;
      } else found[key] = words ? words.split(",") : [];
    }
    return this.sane({ ...first, ...found });
  }
}

/** @param {any} a @param {any} b */
function same(a, b) {
  return Array.isArray(a) && Array.isArray(b)
    ? a.length === b.length && a.every((v, k) => Object.is(v, b[k]))
    : Object.is(a, b);
}
