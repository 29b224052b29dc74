// @ts-check
// Arithmetic of positions that the page does itself: rotations of vectors, and the formula behind each number.

/**
 * The pair of coordinates that rotates together.
 * @param {number} pair
 * @param {number} pairs
 * @param {string} pairing "halves" or "interleaved"
 * @returns {[number, number]}
 */
export function pairOf(pair, pairs, pairing) {
  if (pairing === "interleaved") return [2 * pair, 2 * pair + 1];
  if (pairing === "halves") return [pair, pair + pairs];
  throw new Error(`the page does not know the pairing "${pairing}"; add it to pairOf in viewer/static/js/views/positions_math.js.`);
}

/**
 * A vector rotated to a position; coordinates beyond the pairs stay.
 * @param {ArrayLike<number>} vector
 * @param {ArrayLike<number>} frequencies angle per position of each pair
 * @param {number} position
 * @param {string} pairing
 */
export function rotate(vector, frequencies, position, pairing) {
  const out = Float64Array.from(vector);
  for (let pair = 0; pair < frequencies.length; pair++) {
    const [a, b] = pairOf(pair, frequencies.length, pairing);
    const angle = position * frequencies[pair];
    const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
    out[a] = vector[a] * cos - vector[b] * sin;
    out[b] = vector[a] * sin + vector[b] * cos;
  }
  return out;
}

/**
 * @param {ArrayLike<number>} a
 * @param {ArrayLike<number>} b
 */
export function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

/**
 * q at one position times k at another, for all positions: row m, column n.
 * @param {ArrayLike<number>} q
 * @param {ArrayLike<number>} k
 * @param {ArrayLike<number>} frequencies
 * @param {number} length
 * @param {string} pairing
 */
export function rotatedProducts(q, k, frequencies, length, pairing) {
  const queries = Array.from({ length }, (_, m) => rotate(q, frequencies, m, pairing));
  const keys = Array.from({ length }, (_, n) => rotate(k, frequencies, n, pairing));
  const out = new Float64Array(length * length);
  for (let m = 0; m < length; m++) for (let n = 0; n < length; n++) out[m * length + n] = dot(queries[m], keys[n]);
  return out;
}

/**
 * How a coordinate of a sinusoidal position is computed.
 * @param {number} coordinate
 * @param {number} width
 * @param {string} layout "interleaved", "halves" or "fairseq"
 * @returns {{wave: "sin" | "cos" | "zero", exponent: number}} the angle is position / 10000^exponent
 */
export function sinusoidTerm(coordinate, width, layout) {
  if (layout === "interleaved") {
    const pair = Math.floor(coordinate / 2);
    return { wave: coordinate % 2 ? "cos" : "sin", exponent: (2 * pair) / width };
  }
  if (layout === "fairseq") {
    const pairs = Math.floor(width / 2);
    if (coordinate >= 2 * pairs) return { wave: "zero", exponent: 0 };
    return { wave: coordinate < pairs ? "sin" : "cos", exponent: (coordinate % pairs) / Math.max(1, pairs - 1) };
  }
  if (layout !== "halves") throw new Error(`the page does not know the layout "${layout}"; add it to sinusoidTerm in viewer/static/js/views/positions_math.js.`);
  const sines = Math.ceil(width / 2);
  return { wave: coordinate < sines ? "sin" : "cos", exponent: (2 * (coordinate % sines)) / width };
}

/**
 * The mean of a square table along its diagonals, and how far its values stray from that mean.
 * @param {ArrayLike<number>} table
 * @param {number} length
 * @returns {{distance: number[], mean: number[], spread: number}} spread: the largest difference from the mean
 */
export function byDistance(table, length) {
  const distance = [];
  const mean = [];
  let spread = 0;
  for (let d = 1 - length; d < length; d++) {
    let sum = 0;
    let count = 0;
    for (let m = Math.max(0, -d); m < Math.min(length, length - d); m++) {
      sum += table[m * length + m + d];
      count += 1;
    }
    const middle = sum / count;
    for (let m = Math.max(0, -d); m < Math.min(length, length - d); m++) spread = Math.max(spread, Math.abs(table[m * length + m + d] - middle));
    distance.push(d);
    mean.push(middle);
  }
  return { distance, mean, spread };
}

/**
 * How many positions are shown: at most, and at first. An exported page holds the answers for the first (export.py).
 * @param {number | null | undefined} longest that the model has
 */
export function lengthsOf(longest) {
  const most = Math.max(8, Math.min(256, longest ?? 256));
  return { most, first: Math.min(64, most) };
}
