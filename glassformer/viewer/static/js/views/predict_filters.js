// @ts-check
// From logits to the probabilities that a sampler draws from: the same rules, in the same order and with the same ties,
// as `glassformer.generation.filters`. Forbidden tokens have the score −∞.

/**
 * @typedef {object} Filters
 * @property {number} temperature 0: only the most probable token is left
 * @property {number | null} topK null: off
 * @property {number | null} topP
 * @property {number | null} minP
 */

/** @type {Filters} */
export const NO_FILTERS = { temperature: 1, topK: null, topP: null, minP: null };

/** The smallest positive normal number of single precision. */
const TINY = 2 ** -126;

/** @param {ArrayLike<number>} scores */
function largest(scores) {
  let max = -Infinity;
  for (let i = 0; i < scores.length; i++) if (scores[i] > max) max = scores[i];
  return max;
}

/**
 * Softmax in double precision; −∞ becomes 0.
 * @param {ArrayLike<number>} scores
 */
export function probabilities(scores) {
  const max = largest(scores);
  const out = new Float64Array(scores.length);
  if (max === -Infinity) return out;
  let total = 0;
  for (let i = 0; i < out.length; i++) {
    out[i] = Math.exp(scores[i] - max);
    total += out[i];
  }
  for (let i = 0; i < out.length; i++) out[i] /= total;
  return out;
}

/**
 * Divide by the temperature, after the largest score has been subtracted; 0 keeps only the first of the largest.
 * @param {Float32Array} scores
 * @param {number} degree
 */
export function temperature(scores, degree) {
  if (degree < 0) throw new RangeError(`temperature must be 0 or above, got ${degree}`);
  const max = largest(scores);
  const out = new Float32Array(scores.length);
  if (degree === 0) {
    out.fill(-Infinity);
    const first = scores.indexOf(max);
    out[first] = scores[first];
    return out;
  }
  const divisor = Math.fround(Math.max(degree, TINY));
  const shift = max === -Infinity ? 0 : max;
  for (let i = 0; i < out.length; i++) out[i] = Math.fround(scores[i] - shift) / divisor;
  return out;
}

/**
 * Forbid all but the k most probable tokens; of equals, lower ids stay.
 * @param {Float32Array} scores
 * @param {number} k
 */
export function topK(scores, k) {
  if (k < 1) throw new RangeError(`top-k must be at least 1, got ${k}`);
  if (k >= scores.length) return scores;
  const sorted = Float32Array.from(scores).sort();
  const edge = sorted[sorted.length - k];
  let above = 0;
  for (let i = 0; i < scores.length; i++) if (scores[i] > edge) above += 1;
  let ties = k - above; // how many tokens at the edge stay
  const out = new Float32Array(scores.length).fill(-Infinity);
  for (let i = 0; i < scores.length; i++) {
    if (scores[i] > edge) out[i] = scores[i];
    else if (scores[i] === edge && ties > 0) {
      out[i] = scores[i];
      ties -= 1;
    }
  }
  return out;
}

/**
 * Forbid all but the nucleus: the fewest most probable tokens whose probabilities add up to p.
 * @param {Float32Array} scores
 * @param {number} p
 */
export function topP(scores, p) {
  if (p >= 1) return scores; // rounding would drop the rarest
  const probs = probabilities(scores).sort();
  let count = 0;
  for (let sum = 0; count < probs.length && sum < p; count++) sum += probs[probs.length - 1 - count];
  return topK(scores, Math.max(1, count));
}

/**
 * Forbid tokens with less than p times the highest probability.
 * @param {Float32Array} scores
 * @param {number} p
 */
export function minP(scores, p) {
  const probs = probabilities(scores);
  const edge = p * largest(probs);
  const out = Float32Array.from(scores);
  for (let i = 0; i < out.length; i++) if (probs[i] < edge) out[i] = -Infinity;
  return out;
}

/**
 * Temperature, then top-k, top-p, min-p, each on what the one before has kept.
 * @param {Float32Array} logits
 * @param {Filters} filters
 */
export function shape(logits, filters) {
  let scores = logits;
  if (filters.temperature !== 1) scores = temperature(scores, filters.temperature);
  if (filters.topK !== null) scores = topK(scores, filters.topK);
  if (filters.topP !== null) scores = topP(scores, filters.topP);
  if (filters.minP !== null) scores = minP(scores, filters.minP);
  return scores;
}

/**
 * How many tokens are left.
 * @param {ArrayLike<number>} scores
 */
export function countLeft(scores) {
  let count = 0;
  for (let i = 0; i < scores.length; i++) if (scores[i] !== -Infinity) count += 1;
  return count;
}

/**
 * −Σ p · log₂ p: how many bits the choice of a token holds.
 * @param {ArrayLike<number>} probs
 */
export function entropyBits(probs) {
  let sum = 0;
  for (let i = 0; i < probs.length; i++) if (probs[i] > 0) sum -= probs[i] * Math.log2(probs[i]);
  return sum;
}

/**
 * Differences between two distributions over the same tokens.
 * @param {ArrayLike<number>} before
 * @param {ArrayLike<number>} after
 * @returns {{kl: number, total: number}} KL(before ‖ after) in bits, and half the sum of absolute differences
 */
export function distance(before, after) {
  let kl = 0;
  let total = 0;
  for (let i = 0; i < before.length; i++) {
    if (before[i] > 0) kl += before[i] * Math.log2(before[i] / Math.max(after[i], Number.MIN_VALUE));
    total += Math.abs(before[i] - after[i]);
  }
  return { kl, total: total / 2 };
}
