// @ts-check
// Two sequences side by side: which tokens are the same, which stand in for each other, which have no partner.

/** @typedef {{a: number | null, b: number | null, same: boolean}} Pair */

/**
 * Align two lists of texts: the longest common subsequence, and between its members replacements one by one.
 * @param {string[]} a
 * @param {string[]} b
 * @returns {Pair[]}
 */
export function align(a, b) {
  // Equal ends need no table: two long texts that differ in one word are cheap.
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start++;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
  const rows = a.length - start - end;
  const columns = b.length - start - end;
  const best = new Uint16Array((rows + 1) * (columns + 1));
  for (let i = rows - 1; i >= 0; i--) {
    for (let j = columns - 1; j >= 0; j--) {
      best[i * (columns + 1) + j] = a[start + i] === b[start + j]
        ? best[(i + 1) * (columns + 1) + j + 1] + 1
        : Math.max(best[(i + 1) * (columns + 1) + j], best[i * (columns + 1) + j + 1]);
    }
  }
  /** @type {Pair[]} */
  const pairs = [];
  for (let k = 0; k < start; k++) pairs.push({ a: k, b: k, same: true });
  /** @type {number[]} */
  let onlyA = [];
  /** @type {number[]} */
  let onlyB = [];
  const flush = () => {
    for (let k = 0; k < Math.max(onlyA.length, onlyB.length); k++) {
      pairs.push({ a: onlyA[k] ?? null, b: onlyB[k] ?? null, same: false });
    }
    onlyA = [];
    onlyB = [];
  };
  let i = 0;
  let j = 0;
  while (i < rows || j < columns) {
    if (i < rows && j < columns && a[start + i] === b[start + j]) {
      flush();
      pairs.push({ a: start + i, b: start + j, same: true });
      i++;
      j++;
    } else if (j >= columns || (i < rows && best[(i + 1) * (columns + 1) + j] >= best[i * (columns + 1) + j + 1])) {
      onlyA.push(start + i);
      i++;
    } else {
      onlyB.push(start + j);
      j++;
    }
  }
  flush();
  for (let k = end; k > 0; k--) pairs.push({ a: a.length - k, b: b.length - k, same: true });
  return pairs;
}

/**
 * How much of the attention goes elsewhere, from 0 to 1: half the sum of the differences, averaged over the queries
 * that have a partner. Weight on a key without a partner counts as moved.
 * @param {ArrayLike<number>} a weights of one head, (queries, keys)
 * @param {ArrayLike<number>} b
 * @param {{a: number, b: number}} keys how many keys each has
 * @param {Pair[]} queryPairs
 * @param {Pair[]} keyPairs
 */
export function moved(a, b, keys, queryPairs, keyPairs) {
  let total = 0;
  let rows = 0;
  for (const query of queryPairs) {
    if (query.a === null || query.b === null) continue;
    rows += 1;
    for (const key of keyPairs) {
      const inA = key.a === null ? 0 : a[query.a * keys.a + key.a];
      const inB = key.b === null ? 0 : b[query.b * keys.b + key.b];
      total += Math.abs(inA - inB) / 2;
    }
  }
  return rows ? total / rows : 0;
}

/**
 * The cosine of two vectors.
 * @param {ArrayLike<number>} a
 * @param {ArrayLike<number>} b
 */
export function cosine(a, b) {
  let dot = 0;
  let aa = 0;
  let bb = 0;
  for (let i = 0; i < a.length; i++) {
    dot += a[i] * b[i];
    aa += a[i] * a[i];
    bb += b[i] * b[i];
  }
  return aa && bb ? dot / Math.sqrt(aa * bb) : 0;
}

/**
 * Kullback–Leibler divergence of b from a, in bits: what coding a with b costs beyond a's own entropy.
 * @param {ArrayLike<number>} a
 * @param {ArrayLike<number>} b
 */
export function divergence(a, b) {
  let bits = 0;
  for (let i = 0; i < a.length; i++) {
    if (a[i] > 0) bits += a[i] * Math.log2(a[i] / Math.max(b[i], 1e-38));
  }
  return bits;
}
