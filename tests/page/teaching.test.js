// @ts-check
import assert from "node:assert/strict";
import test from "node:test";
import { lookUp } from "../../glassformer/viewer/static/js/views/figures_dictionary.js";
import { layout } from "../../glassformer/viewer/static/js/views/figures_tree.js";
import { logTicks, nearest, roundTicks, smoothed, tickText } from "../../glassformer/viewer/static/js/views/learn_chart.js";
import { duration, RunData, short } from "../../glassformer/viewer/static/js/views/learn_data.js";
import { defaultToken } from "../../glassformer/viewer/static/js/tokens.js";

test("ticks are round", () => {
  assert.deepEqual(roundTicks(0, 10, 5), [0, 2, 4, 6, 8, 10]);
  assert.deepEqual(roundTicks(0.13, 0.58, 5), [0.2, 0.3, 0.4, 0.5]);
  assert.deepEqual(roundTicks(3, 3, 4).length > 0, true);
  assert.deepEqual(logTicks(0.5, 20, 8), [0.5, 1, 2, 5, 10, 20]);
  assert.deepEqual(logTicks(1e-6, 1, 8), [1e-6, 1e-5, 1e-4, 0.001, 0.01, 0.1, 1]);
  assert.deepEqual([0, 0.25, 1200, 25000, 2e7, -3].map(tickText), ["0", "0.25", "1200", "25k", "2e7", "−3"]);
});

test("a mean with neighbours; gaps are left out", () => {
  assert.deepEqual([...smoothed([1, 2, 3, 4, 5], 1)], [1, 2, 3, 4, 5]);
  assert.deepEqual([...smoothed([0, 3, 0], 1)], [0, 1, 0]);
  assert.deepEqual([...smoothed([1, NaN, 3], 1)], [1, 2, 3]);
  assert.deepEqual([...smoothed([], 2)], []);
});

test("the nearest point", () => {
  assert.deepEqual([0, 1.4, 1.6, 9].map((x) => nearest([1, 2, 5], x)), [0, 0, 1, 2]);
});

test("sizes for people", () => {
  assert.deepEqual([3.21, 12.6, 95, 3700, 200000].map(duration), ["3.2 s", "13 s", "1 min 35 s", "1 h 1 min", "2 d 7 h"]);
  assert.deepEqual([12, 1234, 23040000, 5e9].map(short), ["12", "1.23 k", "23 M", "5 G"]);
});

/** @param {number[]} values @param {"f4" | "i4"} type */
const encoded = (values, type) => ({ shape: [values.length], type, data: Buffer.from((type === "f4" ? Float32Array.from(values) : Int32Array.from(values)).buffer).toString("base64") });

/** @param {number[]} steps @param {any} [more] */
const answer = (steps, more = {}) => ({
  file: 7, next: 10, again: false, steps: encoded(steps, "i4"), validation: [], samples: [], checkpoints: [],
  values: Object.fromEntries(["loss", "lr", "grad_norm", "tokens_seen", "tokens_per_second"].map((name) => [name, encoded(steps.map((step) => 1 / step), "f4")])), ...more,
});

test("answers add up, and a new log replaces the old one", () => {
  const run = new RunData();
  assert.deepEqual(run.cursor, { after: 0, file: null });
  assert.equal(run.add(answer([1, 2])), true);
  assert.equal(run.add(answer([3], { validation: [{ step: 3, loss: 0.5 }, { step: 4, loss: 0.4 }, { step: 5, loss: 0.6 }] })), true);
  assert.deepEqual([run.steps, run.cursor, run.best?.step], [[1, 2, 3], { after: 10, file: 7 }, 4]);
  assert.equal(run.add(answer([])), false);
  assert.equal(run.add(answer([1], { again: true, validation: [{ step: 1, loss: 9, best: true }] })), true);
  assert.deepEqual([run.steps, run.best?.loss], [[1], 9]);
});

test("a soft dictionary", () => {
  const fruit = lookUp([2, Math.log(1.5) / 2], 1);
  assert.ok(Math.abs(fruit.answer - 8) < 0.005 && Math.abs(fruit.weights[0] - 0.6) < 0.001);
  assert.ok(Math.abs(lookUp([2, 1], 0).answer - 17 / 3) < 1e-9, "a scale of 0 averages the values");
  assert.ok(lookUp([2, 2], 8).answer > 9.99, "a large scale picks one");
});

test("the family tree has a place for each lineage", () => {
  const lineages = Array.from({ length: 20 }, (_, i) => ({ name: `l${i}`, year: 2017 + (i % 4), family: ["encoder", "decoder", "encoder-decoder"][i % 3] }));
  const { places, bands, rows } = layout(lineages);
  assert.equal(new Set(Object.values(places).map(({ x, y }) => `${x} ${y}`)).size, 20);
  assert.deepEqual(bands.map(({ year }) => year), [2017, 2018, 2019, 2020]);
  for (const { x, y } of Object.values(places)) assert.ok(x >= 0 && x < 8 && y >= 0 && y < rows);
});

test("the tour follows a token that is worth it", () => {
  const tokens = (/** @type {string} */ text) => text.split(" ").map((word) => ({ id: 0, text: ` ${word}`, special: word.startsWith("<"), segment: 0 }));
  assert.equal(defaultToken(tokens("once upon a time"), "decoder"), 3);
  assert.equal(defaultToken(tokens("<zh> the cat is tired ."), "decoder", tokens("the cat is tired . </s>")), 3);
  assert.equal(defaultToken(tokens("<cls> a [MASK] here"), "encoder"), 2);
  assert.equal(defaultToken(tokens("<cls> so it was"), "encoder"), 2);
  assert.equal(defaultToken(tokens("<cls> Marie Curie was born in Warsaw ."), "encoder", undefined, true), 6);
  assert.equal(defaultToken([], "decoder"), 0);
  assert.equal(defaultToken(tokens("<cls>"), "encoder"), 0);
});
