// @ts-check
import assert from "node:assert/strict";
import test from "node:test";
import {
  around, blockOf, costOf, full, keyHead, layerCost, partsOf, pathTo, sharers, short, stepsOf, tokenOf, weightGroups,
} from "../../glassformer/viewer/static/js/views/flow_parts.js";
import { layerBars } from "../../glassformer/viewer/static/js/views/flow_model_parts.js";
import { activationOf, erf } from "../../glassformer/viewer/static/js/mechanisms.js";
import { emptyState } from "../../glassformer/viewer/static/js/state.js";

const STACK = { layers: 12, unique_layers: 12, heads: 8, kv_heads: 8, cross: false, placement: "pre" };

/** @param {any} stack */
const written = (stack) => stepsOf(stack).map((step) => `${step.kind} ${step.of}${step.onStream ? " on the stream" : ""}`);

test("norms stand where the placement puts them", () => {
  assert.deepEqual(written(STACK), ["norm attention", "sublayer attention", "add attention on the stream", "norm ffn", "sublayer ffn", "add ffn on the stream"]);
  assert.deepEqual(written({ ...STACK, placement: "post", cross: true }).slice(3, 6), ["sublayer cross", "add cross on the stream", "norm cross on the stream"]);
  assert.deepEqual(written({ ...STACK, placement: "parallel" }), ["norm attention", "sublayer attention", "sublayer ffn", "add ffn on the stream"]);
  assert.equal(written({ ...STACK, placement: "parallel_norms" }).filter((step) => step.startsWith("norm")).length, 2);
});

test("the bars of a layer: one after another, or side by side", () => {
  const bars = (/** @type {any} */ more) => layerBars({ ...STACK, ...more }, 100, 26).map(({ kind, of, ...place }) => [kind === "norm" ? `norm ${of}` : of, ...Object.values(place)]);
  assert.deepEqual(bars({}), [["norm attention", 0, 5, 0, 26], ["attention", 7, 42, 0, 26], ["norm ffn", 51, 5, 0, 26], ["ffn", 58, 42, 0, 26]]);
  assert.deepEqual(bars({ placement: "post" }).map(([name, along]) => [name, along]), [["attention", 0], ["norm attention", 44], ["ffn", 51], ["norm ffn", 95]]);
  assert.deepEqual(bars({ placement: "parallel" }), [["norm attention", 0, 5, 0, 26], ["attention", 7, 93, 0, 12], ["ffn", 7, 93, 14, 12]]);
  assert.deepEqual(bars({ placement: "parallel_norms" }), [["norm attention", 0, 5, 0, 12], ["norm ffn", 0, 5, 14, 12], ["attention", 7, 93, 0, 12], ["ffn", 7, 93, 14, 12]]);
  assert.deepEqual(bars({ placement: "post", cross: true }).map(([name]) => name), ["attention", "norm attention", "cross", "norm cross", "ffn", "norm ffn"]);
});

test("a convolution belongs to the first layer", () => {
  const convolving = { ...STACK, convolution: { kernel: 3, groups: 1, activation: "gelu" } };
  assert.deepEqual([0, 1].map((layer) => partsOf(convolving, layer)), [["attention", "ffn", "convolution"], ["attention", "ffn"]]);
  assert.deepEqual(partsOf(STACK, 0), ["attention", "ffn"]);
});

test("layers that share weights", () => {
  assert.deepEqual(weightGroups({ ...STACK, unique_layers: 1 }), [{ block: 0, first: 0, last: 11 }]);
  assert.equal(weightGroups(STACK).length, 12);
  assert.deepEqual([0, 5, 6, 11].map((layer) => blockOf({ ...STACK, unique_layers: 2 }, layer)), [0, 0, 1, 1]);
});

test("heads that share keys", () => {
  const grouped = { ...STACK, kv_heads: 2 };
  assert.deepEqual([0, 3, 4, 7].map((head) => keyHead(grouped, head)), [0, 0, 1, 1]);
  assert.deepEqual(sharers(grouped, 5), [4, 5, 6, 7]);
  assert.deepEqual(sharers(STACK, 5), [5]);
});

test("costs by path; a layer that runs again costs its share", () => {
  const part = (/** @type {string} */ path, /** @type {any[]} */ parts = []) => ({ path, parameters: 10, flops: 1200, parts });
  const costs = { parameters: 20, bytes: { weights: 80 }, parts: part("", [part("encoder", [part("encoder.blocks", [part("encoder.blocks.0")])])]) };
  assert.deepEqual(costOf(costs, "encoder"), { parameters: 10, bytes: 40, flops: 1200 });
  assert.equal(costOf(costs, "nowhere"), null);
  assert.equal(costOf(null, "encoder"), null);
  assert.equal(layerCost(costs, { ...STACK, unique_layers: 1 }, "encoder", 7)?.flops, 100);
});

test("numbers for reading", () => {
  assert.deepEqual([999, 1048576, 33554432, 4513e9].map((n) => short(n)), ["999", "1.05 M", "33.6 M", "4.51 T"]);
  assert.equal(short(4246272 * 4, "B"), "17.0 MB");
  assert.equal(full(1048576), "1,048,576");
});

test("activations", () => {
  assert.ok(Math.abs(erf(0.5) - 0.5204998778) < 2e-7);
  assert.ok(Math.abs(activationOf("gelu").value(1) - 0.8413447461) < 2e-7);
  assert.ok(Math.abs(activationOf("gelu_tanh").value(1) - 0.8411919906) < 1e-9);
  assert.ok(Math.abs(activationOf("silu").value(-1) + 0.2689414214) < 1e-9);
  assert.equal(activationOf("relu").value(-1), 0);
});

test("the token that is followed, and those around it", () => {
  const own = ["<s>", "a", "[MASK]"].map((word, i) => ({ word, text: word, special: i === 0 }));
  const tokens = { encoder: own, decoder: own };
  assert.equal(tokenOf(emptyState(), tokens, "decoder", false), 2);
  assert.equal(tokenOf(emptyState(), { ...tokens, expected: [{ text: "a", special: false }, { text: ".", special: false }] }, "decoder", false), 0, "before the last word");
  assert.equal(tokenOf(emptyState(), tokens, "encoder", false), 2, "the blank");
  assert.equal(tokenOf({ ...emptyState(), pins: [2, 0] }, tokens, "encoder", false), 0);
  assert.equal(tokenOf({ ...emptyState(), pins: [9] }, tokens, "decoder", false), 2);
  assert.deepEqual(around(100, 99, 10), { first: 90, last: 100 });
  assert.deepEqual(around(100, 50, 10), { first: 45, last: 55 });
  assert.deepEqual(around(4, 1, 10), { first: 0, last: 4 });
  assert.deepEqual(pathTo("attention"), ["model", "stack", "layer", "attention"]);
});
