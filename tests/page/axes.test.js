// @ts-check
import assert from "node:assert/strict";
import test from "node:test";
import { drawAxis, ticksOf } from "../../glassformer/viewer/static/js/axes.js";

test("numbers of an axis are at round steps, far enough apart", () => {
  assert.deepEqual(ticksOf(12, 20, "left"), [0, 2, 4, 6, 8, 10]);
  assert.deepEqual(ticksOf(256, 0.6, "top"), [0, 100, 200]);
});

test("the last number above a map is not cut off", () => {
  /** @type {Map<string, number>} */
  const drawn = new Map();
  const nothing = () => {};
  const context = /** @type {any} */ ({
    save: nothing, restore: nothing, beginPath: nothing, rect: nothing, clip: nothing,
    measureText: (/** @type {string} */ text) => ({ width: 7 * text.length }),
    fillText: (/** @type {string} */ text, /** @type {number} */ x) => drawn.set(text, x),
  });
  const middle = (/** @type {number} */ index) => 30 + 0.6 * (index + 0.5);
  drawAxis(context, { side: "top", name: "dimension", ticks: [0, 100, 250], text: String, middle, start: 30, end: 30 + 0.6 * 256, edge: 32, ink: "black" }, "sans");
  assert.equal(drawn.get("100"), middle(100));
  assert.ok(/** @type {number} */ (drawn.get("250")) + 21 / 2 <= 30 + 0.6 * 256 + 6, "within what is drawn on");
});
