// @ts-check
import assert from "node:assert/strict";
import test from "node:test";
import { neighbour, pathOf, placeNodes } from "../../glassformer/viewer/static/js/views/beams_tree.js";

/** @typedef {import("../../glassformer/viewer/static/js/views/beams_tree.js").Node} Node */

/**
 * @param {number} id
 * @param {number | null} parent
 * @param {number} step
 * @param {number} score
 * @param {Node["status"]} status
 * @returns {Node}
 */
const node = (id, parent, step, score, status, winner = false) => ({
  id, parent, step, score, status, winner, token: id, text: `t${id}`, special: false, logprob: score, final: null, rank: null,
});

const NODES = [
  node(0, null, 0, -1, "kept", true), node(1, null, 0, -2, "kept"), node(2, null, 0, -3, "dropped"),
  node(3, 1, 1, -2.5, "kept"), node(4, 0, 1, -1.5, "ended", true), node(5, 0, 1, -4, "dropped"), node(6, 1, 1, -5, "dropped"),
];

test("children follow their parents, the best first", () => {
  const { placed, steps, rows } = placeNodes(NODES, true);
  assert.deepEqual([steps, rows], [2, 4]);
  const order = [4, 5, 3, 6].map((id) => placed.get(id)?.row ?? -1);
  assert.deepEqual(order, [0, 1, 2, 3]);
  assert.equal(placed.get(0)?.row, 0.5); // the shorter column is centred
});

test("without those that were dropped", () => {
  const { placed } = placeNodes(NODES, false);
  assert.deepEqual([...placed.keys()].sort(), [0, 1, 3, 4]);
});

test("paths and arrow keys", () => {
  const { placed } = placeNodes(NODES, true);
  assert.deepEqual(pathOf(placed, 6).map(({ id }) => id), [1, 6]);
  assert.equal(neighbour(placed, 0, "ArrowRight"), 4);
  assert.equal(neighbour(placed, 4, "ArrowLeft"), 0);
  assert.equal(neighbour(placed, 4, "ArrowDown"), 5);
  assert.equal(neighbour(placed, 4, "ArrowUp"), null);
  assert.equal(neighbour(placed, 0, "ArrowLeft"), null);
});
