// All sequences of the grid and their ids: is the map a contextual mapping (Definition 5.1)?

/** @typedef {import("./executor.js").Network} Network */
/** @typedef {import("./executor.js").Softness} Softness */
/** @typedef {import("./session.js").Session} Session */

const LAST = ["global shift", "lift", "max shifts"];

/** Sequences up to which all of them are run. */
export const MOST = 20000;

/**
 * @typedef {object} Context
 * @property {number[]} columns  the cell of each token
 * @property {number[]} ids
 * @property {boolean} distinct  whether the cells of its tokens differ
 */

/**
 * @typedef {object} Collision
 * @property {Context} a
 * @property {number} tokenA
 * @property {Context} b
 * @property {number} tokenB
 * @property {number} id
 * @property {number} idB
 */

/**
 * Properties 6.3 and 6.4: ids of distinct tokens lie in [t_l, t_r), others do not.
 * @typedef {{context: Context, id: number, inside: boolean}} Stray
 */

/**
 * @typedef {object} Mapping
 * @property {Context[]} contexts   those that Definition 5.1 speaks of
 * @property {Context[]} duplicates sequences with equal tokens, in Theorem 2
 * @property {number} gap           smallest distance of ids that must differ
 * @property {Collision|null} closest
 * @property {number} collisions    pairs of neighbours that share an id
 * @property {Collision|null} collision
 * @property {Stray[]} strays       sequences on the wrong side of [t_l, t_r)
 */

/** Whether the network makes ids by shifts. @param {Session} session */
export function hasContexts(session) {
  const known = session.original.construction;
  const shifts = session.original.stages.some((s) => s.kind !== null && LAST.includes(s.kind));
  return Boolean(known && known.ids && session.K && shifts);
}

/** @param {Session} session */
export function countContexts(session) {
  return (session.K || 0) ** (session.original.n * session.original.d);
}

/** Whether order does not matter: Theorem 2. @param {Network} network */
export function isEquivariant(network) {
  const known = network.construction;
  return network.positions === null && !network.registers && known.theorem === "Theorem 2";
}

/** @param {Network} network */
export function endOfContext(network) {
  const at = network.stages.findIndex((stage) => stage.kind !== null && LAST.includes(stage.kind));
  return at < 0 ? network.stages.length : at + 1;
}

/**
 * Every sequence in turn; yields the share of those that have run.
 * @param {Session} session
 * @param {Network} network
 * @param {Softness} softness
 * @returns {Generator<number, Mapping>}
 */
export function* mappingSteps(session, network, softness) {
  const { n, d } = network;
  const K = session.K || 1;
  const count = countContexts(session);
  const equivariant = isEquivariant(network);
  const end = endOfContext(network);
  /** @type {Context[]} */ const contexts = [];
  /** @type {Context[]} */ const duplicates = [];
  const x = new Float64Array(n * d);
  const cells = K ** d;
  for (let number = 0; number < count; number++) {
    if (number % 8 === 0) yield number / count;
    /** @type {number[]} */
    const columns = [];
    for (let j = n - 1, rest = number; j >= 0; j--, rest = Math.floor(rest / cells)) columns[j] = rest % cells;
    const distinct = new Set(columns).size === n;
    if (equivariant && distinct && columns.some((c, j) => j > 0 && c < columns[j - 1])) continue;
    columns.forEach((column, j) => {
      for (let i = 0, rest = column; i < d; i++, rest = Math.floor(rest / K))
        x[j * d + i] = session.inBox(((rest % K) + 0.5) / K, i);
    });
    const ids = network.ids(network.until(x, end, softness)) || [];
    (equivariant && !distinct ? duplicates : contexts).push({ columns, ids, distinct });
  }
  return { contexts, duplicates, strays: straysOf(network, contexts, duplicates), ...nearest(contexts) };
}

/** @param {Network} network @param {Context[]} contexts @param {Context[]} duplicates */
function straysOf(network, contexts, duplicates) {
  const { low, high } = network.construction.ids;
  /** @type {Stray[]} */
  const strays = [];
  for (const [list, expected] of /** @type {[Context[], boolean][]} */ ([[contexts, true], [duplicates, false]])) {
    for (const context of list) {
      const id = context.ids.find((v) => (v >= low && v < high) !== expected);
      if (id !== undefined) strays.push({ context, id, inside: !expected });
    }
  }
  return strays;
}

/** @param {Context[]} contexts */
function nearest(contexts) {
  const all = contexts.flatMap((context) => context.ids.map((id, token) => ({ id, token, context })));
  all.sort((a, b) => a.id - b.id);
  let gap = Infinity, collisions = 0;
  /** @type {Collision|null} */ let closest = null;
  /** @type {Collision|null} */ let collision = null;
  for (let k = 1; k < all.length; k++) {
    const a = all[k - 1], b = all[k];
    const between = b.id - a.id;
    const pair = () => ({
      a: a.context, tokenA: a.token, b: b.context, tokenB: b.token, id: a.id, idB: b.id,
    });
    if (between < gap) {
      gap = between;
      closest = pair();
    }
    if (between === 0) {
      collisions++;
      if (!collision || (collision.a === collision.b && a.context !== b.context)) collision = pair();
    }
  }
  return { gap, closest, collisions, collision };
}
