// @ts-check
import assert from "node:assert/strict";
import test from "node:test";
import { percent } from "../../glassformer/viewer/static/js/arrays.js";
import { align, cosine, divergence, moved } from "../../glassformer/viewer/static/js/views/compare_align.js";
import { distances, distribution, merged } from "../../glassformer/viewer/static/js/views/compare_next.js";

/** @param {string} a @param {string} b */
const sideBySide = (a, b) => {
  const [one, other] = [a.split(" ").filter(Boolean), b.split(" ").filter(Boolean)];
  return align(one, other).map((pair) => `${pair.a === null ? "_" : one[pair.a]}${pair.same ? "=" : "/"}${pair.b === null ? "_" : other[pair.b]}`).join(" ");
};

test("equal tokens stand side by side, others stand in for each other", () => {
  assert.equal(sideBySide("time flies like an arrow", "fruit flies like a banana"), "time/fruit flies=flies like=like an/a arrow/banana");
  assert.equal(sideBySide("a b c", "a b c"), "a=a b=b c=c");
  assert.equal(sideBySide("a c", "a b c"), "a=a _/b c=c");
  assert.equal(sideBySide("a b b c", "b c d"), "a/_ b=b b/_ c=c _/d");
  assert.equal(sideBySide("", "x y"), "_/x _/y");
  assert.equal(sideBySide("", ""), "");
});

test("every token is in one pair, in order", () => {
  const words = "a b c d".split("");
  for (let trial = 0; trial < 300; trial++) {
    const draw = (/** @type {number} */ seed) => Array.from({ length: (trial * seed) % 9 }, (_, i) => words[(trial * seed * (i + 3) * 7 + i * i) % 4]);
    const [a, b] = [draw(3), draw(5)];
    const pairs = align(a, b);
    for (const [side, list] of /** @type {["a" | "b", string[]][]} */ ([["a", a], ["b", b]])) {
      assert.deepEqual(pairs.map((pair) => pair[side]).filter((i) => i !== null), list.map((_, i) => i));
    }
    for (const pair of pairs) if (pair.same) assert.equal(a[/** @type {number} */ (pair.a)], b[/** @type {number} */ (pair.b)]);
  }
});

test("the share of attention that goes elsewhere", () => {
  const pairs = align(["x", "y"], ["x", "y"]);
  assert.equal(moved([1, 0, 0.5, 0.5], [1, 0, 0.5, 0.5], { a: 2, b: 2 }, pairs, pairs), 0);
  assert.equal(moved([1, 0, 1, 0], [0, 1, 1, 0], { a: 2, b: 2 }, pairs, pairs), 0.5);
  const wider = align(["x"], ["x", "new"]);
  assert.equal(moved([1], [0.25, 0.75, 0, 1], { a: 1, b: 2 }, wider, wider), 0.75);
  assert.equal(moved([], [], { a: 0, b: 0 }, [], []), 0);
});

test("cosine and divergence", () => {
  assert.equal(cosine([1, 2], [2, 4]), 1);
  assert.equal(cosine([1, 0], [0, 1]), 0);
  assert.equal(cosine([0, 0], [1, 1]), 0);
  assert.equal(divergence([0.5, 0.5], [0.25, 0.75]), 0.5 * Math.log2(2) + 0.5 * Math.log2(0.5 / 0.75));
  assert.equal(divergence([1, 0], [1, 0]), 0);
});

/** @param {number[]} values */
const encoded = (values) => ({ shape: [values.length], type: "f4", data: Buffer.from(Float32Array.from(values).buffer).toString("base64") });

test("two distributions in one table", () => {
  const top = (/** @type {number[]} */ ids) => ids.map((id) => ({ id, text: `w${id}`, special: false }));
  const a = distribution({ logits: encoded([Math.log(0.5), Math.log(0.3), Math.log(0.2)]), logsumexp: 0, top: top([0, 1, 2]) });
  const b = distribution({ logits: encoded([Math.log(0.1), Math.log(0.1), Math.log(0.8)]), logsumexp: 0, top: top([2, 0, 1]) });
  const rows = merged(a, b, false, 1);
  assert.deepEqual(rows.map(({ text }) => text), ["w2", "w0"]);
  assert.ok(Math.abs(rows[0].a - 0.2) < 1e-6 && Math.abs(rows[0].b - 0.8) < 1e-6);
  assert.ok(Math.abs(distances(a, b).tv - 0.6) < 1e-6);
  assert.deepEqual([percent(0.5), percent(0.05), percent(0), percent(0.00001)], ["50.0 %", "5.00 %", "0.0 %", "< 0.01 %"]);
});
