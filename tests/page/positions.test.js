// @ts-check
import assert from "node:assert/strict";
import test from "node:test";
import { byDistance, dot, rotate, rotatedProducts, sinusoidTerm } from "../../glassformer/viewer/static/js/views/positions_math.js";

const FREQUENCIES = [1, 0.1];
const Q = [0.3, -1.2, 2, 0.5, 7];
const K = [1.1, 0.4, -0.6, 0.9, -2];

test("a rotation keeps lengths, and coordinates beyond the pairs", () => {
  for (const pairing of ["halves", "interleaved"]) {
    const turned = rotate(Q, FREQUENCIES, 5, pairing);
    assert.ok(Math.abs(dot(turned, turned) - dot(Q, Q)) < 1e-12);
    assert.equal(turned[4], 7);
    assert.deepEqual([...rotate(Q, FREQUENCIES, 0, pairing)], Q);
  }
  const quarter = rotate([1, 0], [Math.PI / 2], 1, "interleaved");
  assert.ok(Math.abs(quarter[0]) < 1e-12 && Math.abs(quarter[1] - 1) < 1e-12);
});

test("products depend on the distance alone", () => {
  const table = rotatedProducts(Q, K, FREQUENCIES, 9, "halves");
  const { distance, mean, spread } = byDistance(table, 9);
  assert.ok(spread < 1e-12);
  assert.equal(distance.length, 17);
  assert.ok(Math.abs(mean[8] - dot(Q, K)) < 1e-12); // no distance: the product itself
  assert.ok(Math.abs(mean[11] - dot(rotate(Q, FREQUENCIES, 2, "halves"), rotate(K, FREQUENCIES, 5, "halves"))) < 1e-12);
});

test("where sines and cosines stand", () => {
  assert.deepEqual(sinusoidTerm(5, 8, "interleaved"), { wave: "cos", exponent: 0.5 });
  assert.deepEqual(sinusoidTerm(5, 8, "halves"), { wave: "cos", exponent: 0.25 });
  assert.deepEqual(sinusoidTerm(2, 8, "halves"), { wave: "sin", exponent: 0.5 });
  assert.deepEqual(sinusoidTerm(7, 8, "fairseq"), { wave: "cos", exponent: 1 });
  assert.equal(sinusoidTerm(8, 9, "fairseq").wave, "zero");
});
