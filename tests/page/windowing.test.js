// @ts-check
import assert from "node:assert/strict";
import test from "node:test";
import { BLOCK, WHOLE, blocksFor, combine, readBlock } from "../../glassformer/viewer/static/js/attention.js";
import { inSight } from "../../glassformer/viewer/static/js/canvas.js";
import { FAINT, bundles, strength } from "../../glassformer/viewer/static/js/views/heads_draw.js";
import { columnsOf } from "../../glassformer/viewer/static/js/views/heads.js";
import { visibleText } from "../../glassformer/viewer/static/js/tokens.js";
import { lensBlocks } from "../../glassformer/viewer/static/js/views/predict_lens.js";

/** @param {ArrayBufferView} view */
const base64 = (view) => Buffer.from(view.buffer, view.byteOffset, view.byteLength).toString("base64");

test("what is in sight", () => {
  assert.deepEqual(inSight(0, 100, 10, 1000), { first: 0, last: 10 });
  assert.deepEqual(inSight(95, 100, 10, 1000), { first: 9, last: 20 });
  assert.deepEqual(inSight(9990, 100, 10, 1000), { first: 999, last: 1000 });
  assert.deepEqual(inSight(-50, 20, 10, 3), { first: 0, last: 0 });
  assert.deepEqual(inSight(0, 100, 10, 0), { first: 0, last: 0 });
  assert.deepEqual(inSight(99999, 100, 10, 4), { first: 4, last: 4 });
});

test("short texts are asked for whole, long ones in blocks", () => {
  assert.deepEqual(blocksFor(WHOLE, 0, 40), [null]);
  assert.deepEqual(blocksFor(1000, 0, 40), [[0, BLOCK]]);
  assert.deepEqual(blocksFor(1000, 120, 140), [[0, 128], [128, 256]]);
  assert.deepEqual(blocksFor(1000, 990, 1000), [[896, 1000]]);
});

test("a block gives exact rows, and 8-bit rows with their factor", () => {
  const weights = new Float32Array([0.25, 0.75, 0.5, 0.5, 1, 0, 0.1, 0.9]);
  const exact = readBlock({ weights: { shape: [2, 2, 2], type: "f4", data: base64(weights) }, scale: null, allowed: null, rows: [10, 12] });
  assert.deepEqual([...exact.row(1, 10)], [1, 0]);
  assert.equal(exact.allowed(0, 10, 1), true);
  const rough = readBlock({
    weights: { shape: [1, 2, 2], type: "u1", data: base64(new Uint8Array([255, 51, 0, 255])) },
    scale: { shape: [1, 2], type: "f4", data: base64(new Float32Array([0.5, 0.25])) },
    allowed: { shape: [2, 2], type: "u1", data: base64(new Uint8Array([1, 1, 0, 1])) }, rows: [0, 2],
  });
  assert.ok(Math.abs(rough.row(0, 0)[0] - 0.5) < 1e-6 && Math.abs(rough.row(0, 0)[1] - 0.1) < 1e-6);
  assert.deepEqual([rough.allowed(0, 1, 0), rough.allowed(0, 1, 1)], [false, true]);
});

test("heads are summed and averaged", () => {
  const rows = [new Float32Array([0.5, 0.5]), new Float32Array([1, 0])];
  assert.deepEqual([...combine(rows, "sum")], [1.5, 0.5]);
  assert.deepEqual([...combine(rows, "mean")], [0.75, 0.25]);
});

test("lines below the threshold are not drawn", () => {
  const sources = [{ place: 3, rows: [new Float32Array([0.9, 0.05, FAINT / 2]), new Float32Array([0.2, 0.2, 0.6])] }];
  const count = (/** @type {number} */ threshold, /** @type {number | null} */ onlyKey = null) =>
    bundles({ sources, keys: [0, 1, 2], threshold, onlyKey }).reduce((sum, bundle) => sum + bundle.from.length, 0);
  assert.equal(count(0), 5);
  assert.equal(count(0.2), 4 - Number(new Float32Array([0.2])[0] < 0.2) * 2);
  assert.equal(count(0.5), 2);
  assert.equal(count(0, 2), 1);
  const strong = bundles({ sources, keys: [0, 1, 2], threshold: 0.5, onlyKey: null });
  assert.deepEqual(strong.map(({ slot, from, to }) => [slot, from, to]), [[1, [3], [2]], [0, [3], [0]]]);
  assert.ok(strength(15) <= 1 && strength(0) > 0);
});

test("columns of sentence pairs and without special tokens", () => {
  const token = (/** @type {number} */ segment, special = false) => ({ id: 0, text: "x", special, segment });
  const tokens = [token(0, true), token(0), token(0, true), token(1), token(1, true)];
  assert.deepEqual(columnsOf(tokens, tokens, "ab", false), { rows: [0, 1, 2], columns: [3, 4] });
  assert.deepEqual(columnsOf(tokens, tokens, "bb", true), { rows: [3], columns: [3] });
  assert.deepEqual(columnsOf(tokens, tokens, "all", true), { rows: [1, 3], columns: [1, 3] });
});

test("what cannot be seen in a token is made visible", () => {
  assert.deepEqual(["", " the", "a b ", "\n", "\u0000", "\u202e", "\ud800", "</script>", "😀"].map(visibleText),
    ["∅", "·the", "a b·", "⏎", "␀", "⟨U+202E⟩", "\ufffd", "</script>", "😀"]);
});

test("the lens is asked for the positions in sight of a long text, and for all of a short one", () => {
  assert.deepEqual(lensBlocks(64, { first: 10, last: 26 }), [null]);
  assert.deepEqual(lensBlocks(1024, { first: 1008, last: 1024 }), [[992, 1024]]);
  assert.deepEqual(lensBlocks(1000, { first: 984, last: 1000 }), [[960, 992], [992, 1000]]);
  assert.deepEqual(lensBlocks(100, { first: 60, last: 80 }), [[32, 64], [64, 96]]);
});
