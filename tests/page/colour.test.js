// @ts-check
import assert from "node:assert/strict";
import test from "node:test";
import { HEADS_DARK, HEADS_LIGHT, css, inkOn, luminance, parseHex, ramp } from "../../glassformer/viewer/static/js/colour.js";
import { rgbOf } from "../../glassformer/viewer/static/js/canvas.js";

/** @param {number} a @param {number} b */
const contrast = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);

test("a ramp goes from its first to its last colour", () => {
  const map = ramp(["#000000", "#ff0000", "#ffffff"]);
  assert.deepEqual([map(0), map(1), map(-3), map(7), map(NaN)], [[0, 0, 0], [255, 255, 255], [0, 0, 0], [255, 255, 255], [0, 0, 0]]);
  assert.ok(map(0.5)[0] >= 254 && map(0.5)[1] <= 3);
});

test("twelve heads, all different, each to be seen on its paper", () => {
  for (const [heads, paper] of /** @type {[string[], string][]} */ ([[HEADS_LIGHT, "#fcfcfa"], [HEADS_DARK, "#0f1216"]])) {
    assert.equal(new Set(heads).size, 12);
    for (const head of heads) {
      assert.ok(contrast(luminance(parseHex(head)), luminance(parseHex(paper))) > 2.5, `${head} on ${paper}`);
    }
  }
});

test("colours as text", () => {
  assert.equal(css([1, 2, 3]), "rgb(1, 2, 3)");
  assert.equal(css([1, 2, 3], 0.5), "rgba(1, 2, 3, 0.5)");
  assert.deepEqual([rgbOf("#0b7285"), rgbOf("rgb(1, 2, 3)"), rgbOf("nonsense")], [[11, 114, 133], [1, 2, 3], [0, 0, 0]]);
});

test("text on a colour can be read", () => {
  for (const background of ["#000000", "#ffffff", "#2a788e", "#fde725", "#1d5590", "#7a7a00"]) {
    const rgb = parseHex(background);
    assert.ok(contrast(luminance(rgb), luminance(parseHex(inkOn(rgb)))) > 4, background);
  }
});
