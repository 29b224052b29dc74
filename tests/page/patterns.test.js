// @ts-check
import assert from "node:assert/strict";
import test from "node:test";
import { isFramed, markOf, ranked, strongest } from "../../glassformer/viewer/static/js/views/grid_patterns.js";
import { columnsFor, largest, productOf } from "../../glassformer/viewer/static/js/views/neuron_draw.js";

const patterns = ["previous", "first", "broad"];
const stats = {
  patterns,
  values: { shape: [2, 2, 3], data: new Float32Array([0.9, 0.05, 0.3, 0.1, 0.2, 0.95, 0.55, 0.6, 0.92, 0.1, 0.1, 0.5]) },
  even: { shape: [2, 3], data: new Float32Array([0.1, 0.1, 1, 0.1, 0.1, 1]) },
};

test("a head is named after a pattern only above what an even spread would give; evenness when nothing else is", () => {
  const marks = [[0, 0], [0, 1], [1, 0], [1, 1]].map(([layer, head]) => strongest(stats, layer, head)?.pattern ?? null);
  assert.deepEqual(marks, ["previous", "broad", "first", null]);
  const short = { ...stats, even: { shape: [2, 3], data: new Float32Array([0.45, 0.45, 1, 0.45, 0.45, 1]) } }; // few tokens
  assert.equal(strongest(short, 1, 0)?.pattern, "broad", "0.6 is little where an even spread gives 0.45");
  assert.deepEqual([markOf(stats, 0, 0, "previous"), markOf(stats, 1, 1, "previous"), markOf(stats, 0, 1, "broad")].map(isFramed), [true, false, true]);
});

test("heads by a pattern", () => {
  assert.deepEqual(ranked(stats, "previous").map(({ layer, head }) => `${layer}.${head}`), ["0.0", "1.0", "0.1", "1.1"]);
  assert.ok(ranked(stats, "unknown").every(({ share }) => share === 0));
});

test("columns of the neuron view fit, with and without a bias", () => {
  for (const width of [320, 560, 1100]) {
    for (const bias of [false, true]) {
      const columns = columnsFor(width, bias);
      const last = columns[columns.length - 1];
      assert.equal(columns.length, bias ? 6 : 5);
      assert.ok(last.x + last.width <= width + 80, `${width} ${last.x + last.width}`);
      columns.slice(1).forEach((column, i) => assert.ok(column.x >= columns[i].x + columns[i].width));
    }
  }
});

test("products dimension by dimension", () => {
  const row = { query: "", keys: ["a", "b"], q: new Float32Array([2, -1]), k: new Float32Array([1, 1, 0.5, 4]), dims: 2, scores: new Float32Array(2), bias: null, weights: new Float32Array(2), allowed: () => true };
  assert.deepEqual([...productOf(row, 1)], [1, -4]);
  assert.equal(largest([1, -4]), 4);
  assert.equal(largest([]), 1);
});
