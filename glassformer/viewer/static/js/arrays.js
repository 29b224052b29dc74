// @ts-check
// Arrays as the server sends them: {"shape": […], "type": "f4", "data": base64, little-endian}.

/** @typedef {Float32Array | Uint8Array | Uint16Array | Int32Array} Data */
/** @typedef {{shape: number[], data: Data}} Nd */
/** @typedef {{shape: number[], type: string, data: string}} Dense */
/**
 * Of each row only the largest values, all others are 0: `index` and `value` are (…, K).
 * @typedef {{shape: number[], type: string, index: Dense, value: Dense}} Sparse
 */
/**
 * Several arrays one after the other along the first axis.
 * @typedef {{shape: number[], type: string, parts: (Dense | Sparse)[]}} Stacked
 */

/** @type {WeakMap<object, Nd>} */
const decoded = new WeakMap();

/**
 * Half precision to single.
 * @param {Uint16Array} halves
 */
export function fromHalf(halves) {
  const out = new Float32Array(halves.length);
  for (let i = 0; i < halves.length; i++) {
    const bits = halves[i];
    const sign = bits & 0x8000 ? -1 : 1;
    const exponent = (bits >> 10) & 0x1f;
    const fraction = bits & 0x3ff;
    if (exponent === 0) out[i] = sign * fraction * 2 ** -24;
    else if (exponent === 31) out[i] = fraction ? NaN : sign * Infinity;
    else out[i] = sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
  }
  return out;
}

/**
 * @param {string} text
 * @returns {Uint8Array<ArrayBuffer>}
 */
export function fromBase64(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/**
 * The array in an answer. The same object is decoded once.
 * @param {Dense | Sparse | Stacked} encoded
 * @returns {Nd}
 */
export function decode(encoded) {
  let nd = decoded.get(encoded);
  if (!nd) {
    if ("parts" in encoded) nd = decodeStacked(encoded);
    else nd = "index" in encoded ? decodeSparse(encoded) : decodeDense(encoded);
    decoded.set(encoded, nd);
  }
  return nd;
}

/**
 * @param {Sparse} encoded
 * @returns {Nd}
 */
function decodeSparse({ shape, index, value }) {
  const where = decodeDense(index);
  const what = decodeDense(value).data;
  const kept = where.shape[where.shape.length - 1];
  const columns = shape[shape.length - 1];
  const size = shape.reduce((product, n) => product * n, 1);
  const data = what instanceof Uint8Array ? new Uint8Array(size) : new Float32Array(size);
  for (let i = 0; i < where.data.length; i++) data[Math.floor(i / kept) * columns + where.data[i]] = what[i];
  return { shape, data };
}

/**
 * @param {Stacked} encoded
 * @returns {Nd}
 */
function decodeStacked({ shape, type, parts }) {
  const size = shape.reduce((product, n) => product * n, 1);
  const data = type === "u1" ? new Uint8Array(size) : new Float32Array(size);
  let start = 0;
  for (const part of parts) {
    const values = decode(part).data;
    data.set(values, start);
    start += values.length;
  }
  if (start !== size) throw new Error(`the parts of an array of shape ${shape} have ${start} values`);
  return { shape, data };
}

/**
 * @param {Dense} encoded
 * @returns {Nd}
 */
function decodeDense(encoded) {
  const bytes = fromBase64(encoded.data);
  const { buffer } = bytes;
  /** @type {Data} */
  let data;
  if (encoded.type === "f4") data = new Float32Array(buffer);
  else if (encoded.type === "f2") data = fromHalf(new Uint16Array(buffer));
  else if (encoded.type === "u2") data = new Uint16Array(buffer);
  else if (encoded.type === "i4") data = new Int32Array(buffer);
  else if (encoded.type === "u1") data = bytes;
  else throw new Error(`unknown array type ${encoded.type}`);
  const size = encoded.shape.reduce((product, n) => product * n, 1);
  if (size !== data.length) throw new Error(`an array of shape ${encoded.shape} has ${data.length} values`);
  return { shape: encoded.shape, data };
}

/**
 * Part of an array with the first axes fixed, without a copy: `at(weights, head)` is (queries, keys).
 * @param {Nd} nd
 * @param {...number} indices
 * @returns {Nd}
 */
export function at(nd, ...indices) {
  let size = nd.data.length;
  let start = 0;
  indices.forEach((index, axis) => {
    const n = nd.shape[axis];
    if (index < 0 || index >= n) throw new RangeError(`index ${index} is outside axis ${axis} of length ${n}`);
    size /= n;
    start += index * size;
  });
  return { shape: nd.shape.slice(indices.length), data: nd.data.subarray(start, start + size) };
}

/**
 * @param {ArrayLike<number>} values
 * @returns {{min: number, max: number}} of the finite values; 0 and 0 when there are none
 */
export function extent(values) {
  let min = Infinity;
  let max = -Infinity;
  for (let i = 0; i < values.length; i++) {
    const value = values[i];
    if (!Number.isFinite(value)) continue;
    if (value < min) min = value;
    if (value > max) max = value;
  }
  return min <= max ? { min, max } : { min: 0, max: 0 };
}

/**
 * Softmax of logits divided by a temperature.
 * @param {ArrayLike<number>} logits
 */
export function softmax(logits, temperature = 1) {
  const { max } = extent(logits);
  const out = new Float64Array(logits.length);
  let total = 0;
  for (let i = 0; i < logits.length; i++) {
    out[i] = Math.exp((logits[i] - max) / temperature);
    total += out[i];
  }
  for (let i = 0; i < out.length; i++) out[i] /= total;
  return out;
}

/**
 * Indices of the k largest values, largest first; equal values in their order.
 * @param {ArrayLike<number>} values
 * @param {number} k
 */
export function topIndices(values, k) {
  /** @type {number[]} */
  const best = [];
  for (let i = 0; i < values.length && k > 0; i++) {
    if (best.length === k && !(values[i] > values[best[k - 1]])) continue; // nearly all of a large vocabulary
    let place = best.length === k ? k - 1 : best.length;
    for (; place > 0 && values[i] > values[best[place - 1]]; place--) best[place] = best[place - 1];
    best[place] = i;
  }
  return best;
}

/**
 * A share as a percentage; small ones with two digits.
 * @param {number} share
 */
export function percent(share) {
  if (share > 0 && share < 0.00005) return "< 0.01 %";
  return `${(100 * share).toFixed(share >= 0.0995 || share === 0 ? 1 : 2)} %`;
}

/**
 * A number for reading: four significant digits, a true minus sign, no exponent unless needed.
 * @param {number} value
 */
export function number(value, digits = 3) {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  const text = size !== 0 && (size < 10 ** -digits / 2 || size >= 1e6) ? value.toExponential(2) : value.toFixed(digits);
  return text.replaceAll("-", "−");
}
