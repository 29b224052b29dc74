// @ts-check
import assert from "node:assert/strict";
import test from "node:test";
import { at, decode, extent, fromHalf, number, softmax, topIndices } from "../../glassformer/viewer/static/js/arrays.js";

/** @param {ArrayBufferView} view */
const base64 = (view) => Buffer.from(view.buffer, view.byteOffset, view.byteLength).toString("base64");

test("every type is decoded", () => {
  const floats = new Float32Array([1.5, -2, Infinity, NaN, 0, 3]);
  const f4 = decode({ shape: [2, 3], type: "f4", data: base64(floats) });
  assert.deepEqual([...f4.data], [...floats]);
  assert.deepEqual(f4.shape, [2, 3]);
  assert.deepEqual([...decode({ shape: [2], type: "i4", data: base64(new Int32Array([-7, 70000])) }).data], [-7, 70000]);
  assert.deepEqual([...decode({ shape: [3], type: "u1", data: base64(new Uint8Array([0, 128, 255])) }).data], [0, 128, 255]);
  assert.deepEqual([...decode({ shape: [2], type: "u2", data: base64(new Uint16Array([1, 65535])) }).data], [1, 65535]);
  assert.deepEqual([...decode({ shape: [0, 4], type: "f4", data: "" }).data], []);
});

test("half precision", () => {
  const halves = new Uint16Array([0x3c00, 0xc000, 0x3555, 0x0001, 0x7c00, 0xfc00, 0x7e00, 0x8000]);
  const values = [...fromHalf(halves)];
  assert.deepEqual(values.slice(0, 2), [1, -2]);
  assert.ok(Math.abs(values[2] - 1 / 3) < 1e-4);
  assert.equal(values[3], 2 ** -24);
  assert.deepEqual(values.slice(4, 6), [Infinity, -Infinity]);
  assert.ok(Number.isNaN(values[6]) && Object.is(values[7], -0));
});

test("the largest values of each row, and stacked parts", () => {
  const sparse = {
    shape: [1, 2, 5], type: "u1",
    index: { shape: [1, 2, 2], type: "u2", data: base64(new Uint16Array([4, 0, 2, 1])) },
    value: { shape: [1, 2, 2], type: "u1", data: base64(new Uint8Array([200, 9, 100, 50])) },
  };
  const dense = { shape: [1, 2, 5], type: "u1", data: base64(new Uint8Array([1, 2, 3, 4, 5, 6, 7, 8, 9, 10])) };
  const expected = [9, 0, 0, 0, 200, 0, 50, 100, 0, 0];
  assert.deepEqual([...decode(sparse).data], expected);
  assert.deepEqual([...decode({ shape: [2, 2, 5], type: "u1", parts: [dense, sparse] }).data], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ...expected]);
  assert.throws(() => decode({ shape: [3, 2, 5], type: "u1", parts: [dense] }), /have 10 values/);
});

test("a wrong size or type is refused", () => {
  assert.throws(() => decode({ shape: [3], type: "f4", data: base64(new Float32Array(2)) }), /shape 3 has 2 values/);
  assert.throws(() => decode({ shape: [1], type: "f8", data: "" }), /unknown array type/);
});

test("an answer is decoded once", () => {
  const encoded = { shape: [1], type: "f4", data: base64(new Float32Array([1])) };
  assert.equal(decode(encoded), decode(encoded));
});

test("parts of an array share its memory", () => {
  const nd = { shape: [2, 3, 4], data: Float32Array.from({ length: 24 }, (_, i) => i) };
  assert.deepEqual([...at(nd, 1, 2).data], [20, 21, 22, 23]);
  assert.deepEqual(at(nd, 1).shape, [3, 4]);
  at(nd, 0, 0).data[0] = 99;
  assert.equal(nd.data[0], 99);
  assert.throws(() => at(nd, 2), RangeError);
  assert.throws(() => at(nd, 0, -1), RangeError);
});

test("softmax, largest values, extent", () => {
  const probs = softmax([1, 2, 3, -Infinity]);
  assert.ok(Math.abs(probs.reduce((a, b) => a + b) - 1) < 1e-12);
  assert.equal(probs[3], 0);
  assert.ok(Math.abs(probs[2] - 0.66524) < 1e-5);
  assert.ok(softmax([1, 2], 0.1)[1] > 0.9999);
  assert.deepEqual(topIndices([3, 9, 9, 1], 3), [1, 2, 0]);
  assert.deepEqual(extent([-Infinity, 4, NaN, -2]), { min: -2, max: 4 });
  assert.deepEqual(extent([]), { min: 0, max: 0 });
});

test("numbers for reading", () => {
  assert.deepEqual([number(0), number(-1.23456), number(0.00001), number(-Infinity), number(NaN), number(12345678), number(0.12345, 4), number(-0.00001)],
    ["0.000", "−1.235", "1.00e−5", "−∞", "NaN", "1.23e+7", "0.1235", "−1.00e−5"]);
});
