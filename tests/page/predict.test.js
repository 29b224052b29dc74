// @ts-check
import assert from "node:assert/strict";
import test from "node:test";
import { distances, distribution, merged } from "../../glassformer/viewer/static/js/views/compare_next.js";
import { NO_FILTERS, countLeft, distance, entropyBits, probabilities, shape } from "../../glassformer/viewer/static/js/views/predict_filters.js";
import { mostProbable, readPrediction } from "../../glassformer/viewer/static/js/views/predict_read.js";

const VOCAB = 150_000; // as large as those of Llama 3 and Qwen

/** Numbers that look random, the same in every run. @param {number} seed */
function gaussian(seed) {
  let now = seed;
  const uniform = () => (now = (now * 1103515245 + 12345) % 2147483648) / 2147483648;
  return () => Math.sqrt(-2 * Math.log(uniform() + 1e-12)) * Math.cos(2 * Math.PI * uniform());
}

/** @param {Float32Array} logits */
const logSumExp = (logits) => {
  const max = logits.reduce((most, logit) => Math.max(most, logit), -Infinity);
  return max + Math.log(logits.reduce((sum, logit) => sum + Math.exp(logit - max), 0));
};

/** The answer of the query `predict`. @param {Float32Array} logits */
function answered(logits) {
  const order = Array.from(logits.keys()).sort((a, b) => logits[b] - logits[a]).slice(0, 200);
  return {
    position: 3, family: "next", next: { id: 77_777 }, token: { id: 5 }, logsumexp: logSumExp(logits),
    logits: { shape: [logits.length], type: "f4", data: Buffer.from(logits.buffer).toString("base64") },
    top: order.map((id) => ({ id, text: `w${id}`, logit: logits[id], special: id === order[1] })),
  };
}

const draw = gaussian(1);
const before = Float32Array.from({ length: VOCAB }, () => 2 * draw());
const after = before.map((logit) => logit + 0.01 * draw());

test("numbers of a large vocabulary are those of all its tokens", () => {
  const [a, b] = [readPrediction(answered(before)), readPrediction(answered(after))];
  assert.equal(a.logits.length, VOCAB);
  // Two almost equal distributions, beside what double precision gives.
  const [p, q] = [before, after].map((logits) => {
    const total = logSumExp(logits);
    return Array.from(logits, (logit) => Math.exp(logit - total));
  });
  const kl = p.reduce((sum, share, i) => sum + share * Math.log2(share / q[i]), 0);
  const moved = p.reduce((sum, share, i) => sum + Math.abs(share - q[i]) / 2, 0);
  const found = distance(probabilities(a.logits), probabilities(b.logits));
  assert.ok(kl < 0.001 && Math.abs(found.kl - kl) < 1e-6, `${found.kl} ${kl}`);
  assert.ok(Math.abs(found.total - moved) < 1e-6);
  const compared = distances(distribution(answered(before)), distribution(answered(after)));
  assert.ok(Math.abs(compared.kl - kl) < 1e-6 && Math.abs(compared.tv - moved) < 1e-6);
});

test("filters of a large vocabulary reach far beyond its best tokens", () => {
  const { logits } = readPrediction(answered(before));
  const sorted = Array.from(probabilities(logits)).sort((x, y) => y - x);
  let nucleus = 0;
  for (let sum = 0; sum < 0.9; nucleus++) sum += sorted[nucleus];
  assert.ok(nucleus > 20_000);
  assert.equal(countLeft(shape(logits, { ...NO_FILTERS, topP: 0.9 })), nucleus);
  const warm = probabilities(shape(logits, { ...NO_FILTERS, temperature: 1.5 }));
  const total = before.reduce((sum, logit) => sum + Math.exp(logit / 1.5), 0);
  const best = before.reduce((most, logit) => Math.max(most, logit), -Infinity);
  assert.ok(Math.abs(Math.max(...warm.slice().sort().slice(-1)) - Math.exp(best / 1.5) / total) < 1e-6);
  assert.ok(entropyBits(warm) > entropyBits(probabilities(logits)));
});

test("the most probable tokens, with their texts", () => {
  const prediction = readPrediction(answered(before));
  const best = mostProbable(prediction, 3);
  const order = Array.from(before.keys()).sort((a, b) => before[b] - before[a]);
  assert.deepEqual(best.map(({ id, text }) => [id, text]), order.slice(0, 3).map((id) => [id, `w${id}`]));
  assert.ok(Math.abs(best[0].prob - Math.exp(before[order[0]] - logSumExp(before))) < 1e-9);
  assert.deepEqual([prediction.actual, prediction.special.has(order[1])], [77_777, true]);
  const rows = merged(distribution(answered(before)), distribution(answered(after)), false, 4);
  assert.ok(rows.every(({ a, b }) => a > 0 && b > 0));
});
