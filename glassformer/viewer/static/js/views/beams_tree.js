// @ts-check
// Beam search as a tree: where every continuation is drawn, and which ones belong to a text.

/**
 * One continuation, as the query `beams` describes it.
 * @typedef {object} Node
 * @property {number} id
 * @property {number | null} parent
 * @property {number} token
 * @property {string} text
 * @property {boolean} special
 * @property {number} logprob of this token
 * @property {boolean} forced whether it was no choice: the sum does not count it
 * @property {number} score sum of log-probabilities so far
 * @property {number} step
 * @property {"kept" | "ended" | "dropped"} status
 * @property {number | null} final score divided by the length penalty, of texts that ended
 * @property {number | null} rank of texts that were returned
 * @property {boolean} winner
 */

/** @typedef {Node & {row: number}} Placed */

/**
 * Give every node a row within its step: children follow the order of their parents, the best first.
 * @param {Node[]} nodes
 * @param {boolean} withDropped
 * @returns {{placed: Map<number, Placed>, steps: number, rows: number}}
 */
export function placeNodes(nodes, withDropped) {
  const shown = nodes.filter((node) => withDropped || node.status !== "dropped" || node.winner);
  const steps = shown.reduce((most, node) => Math.max(most, node.step + 1), 0);
  /** @type {Map<number, Placed>} */
  const placed = new Map();
  let rows = 0;
  for (let step = 0; step < steps; step++) {
    const here = shown.filter((node) => node.step === step);
    const above = (/** @type {Node} */ node) => (node.parent === null ? 0 : placed.get(node.parent)?.row ?? Infinity);
    here.sort((a, b) => above(a) - above(b) || b.score - a.score || a.id - b.id);
    here.forEach((node, row) => placed.set(node.id, { ...node, row }));
    rows = Math.max(rows, here.length);
  }
  // Centre each step, so that lines run level where a beam has no rival.
  for (let step = 0; step < steps; step++) {
    const here = [...placed.values()].filter((node) => node.step === step);
    for (const node of here) node.row += (rows - here.length) / 2;
  }
  return { placed, steps, rows };
}

/**
 * A node and those before it, from the first token on.
 * @param {Map<number, Node> | Map<number, Placed>} nodes
 * @param {number} id
 */
export function pathOf(nodes, id) {
  /** @type {Node[]} */
  const path = [];
  for (let node = nodes.get(id); node; node = node.parent === null ? undefined : nodes.get(node.parent)) path.unshift(node);
  return path;
}

/**
 * The node that an arrow key leads to.
 * @param {Map<number, Placed>} placed
 * @param {number} id
 * @param {string} key
 * @returns {number | null}
 */
export function neighbour(placed, id, key) {
  const node = placed.get(id);
  if (!node) return null;
  if (key === "ArrowLeft") return node.parent;
  const all = [...placed.values()];
  if (key === "ArrowRight") {
    const children = all.filter((other) => other.parent === id);
    children.sort((a, b) => Number(b.winner) - Number(a.winner) || b.score - a.score);
    return children[0]?.id ?? null;
  }
  const step = { ArrowUp: -1, ArrowDown: 1 }[key];
  if (!step) return null;
  const beside = all.filter((other) => other.step === node.step).sort((a, b) => a.row - b.row);
  return beside[beside.findIndex((other) => other.id === id) + step]?.id ?? null;
}

/**
 * The score that ranks a text: the sum divided by its length to the power of the penalty.
 * @param {number} sum
 * @param {number} length
 * @param {number} penalty
 */
export function finalScore(sum, length, penalty) {
  return sum / length ** penalty;
}
