// Long computations in small pieces, so that the page stays fluent.

/** Milliseconds of a piece, and of the pause after it. */
const PIECE = 8, PAUSE = 8;

/**
 * @template T
 * @param {Iterator<number, T>} work  yields, often, the share that is done
 * @param {(result: T) => void} done
 * @param {{first?: number, progress?: (share: number) => void}} options  `first`: milliseconds
 *     to spend at once; what needs no more is done when this returns
 * @returns {() => void}  stops it
 */
export function inPieces(work, done, { first = PIECE, progress = () => {} } = {}) {
  let timer = 0;
  const go = (/** @type {number} */ budget) => {
    const until = performance.now() + budget;
    for (let step = work.next(); ; step = work.next()) {
      if (step.done) return done(step.value);
      if (performance.now() < until) continue;
      timer = setTimeout(go, PAUSE, PIECE);
      return progress(step.value);
    }
  };
  go(first);
  return () => clearTimeout(timer);
}

/**
 * The same at once.
 * @template T
 * @param {Iterator<number, T>} work
 * @returns {T}
 */
export function atOnce(work) {
  for (;;) {
    const step = work.next();
    if (step.done) return step.value;
  }
}
