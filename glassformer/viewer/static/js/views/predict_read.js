// @ts-check
// The answer to the query `predict`, ready for filters: the logits of all ids, and the texts that came with them.

import { decode, topIndices } from "../arrays.js";

/**
 * @typedef {object} Prediction
 * @property {number} position
 * @property {boolean} next whether the token after the position is predicted, and not the one at it
 * @property {number | null} actual the id that the text has there
 * @property {Float32Array} logits of all ids
 * @property {Map<number, string>} texts of the most probable ids
 * @property {Set<number>} special those of them that are special tokens
 * @property {Set<number>} fragments those that are part of a character, which no text can be continued with
 * @property {number} logsumexp of all logits
 */

/** @type {WeakMap<object, Prediction>} */
const known = new WeakMap();

/**
 * @param {any} answer
 * @returns {Prediction}
 */
export function readPrediction(answer) {
  const before = known.get(answer);
  if (before) return before;
  const logits = /** @type {Float32Array} */ (decode(answer.logits).data);
  const next = answer.family === "next";
  const actual = next ? answer.next?.id : answer.family === "token" ? answer.token.id : null;
  /** @type {Prediction} */
  const prediction = {
    position: answer.position, next, actual: actual ?? null, logsumexp: answer.logsumexp, logits,
    texts: new Map(answer.top.map((/** @type {any} */ word) => [word.id, word.text])),
    special: new Set(answer.top.filter((/** @type {any} */ word) => word.special).map((/** @type {any} */ word) => word.id)),
    fragments: new Set(answer.top.filter((/** @type {any} */ word) => word.fragment).map((/** @type {any} */ word) => word.id)),
  };
  known.set(answer, prediction);
  return prediction;
}

/**
 * The most probable tokens under the model itself, without any filter.
 * @param {Prediction} prediction
 * @param {number} count
 * @returns {{id: number, text: string, logit: number, prob: number}[]}
 */
export function mostProbable(prediction, count) {
  return topIndices(prediction.logits, count).map((id) => ({
    id, text: prediction.texts.get(id) ?? `#${id}`, logit: prediction.logits[id], prob: Math.exp(prediction.logits[id] - prediction.logsumexp),
  }));
}
