// @ts-check
// Attention weights of one head as numbers, asked for in the form that a saved page holds, or that travels best.

import { at, decode } from "../arrays.js";

/**
 * The answer of `attention` for one layer: (heads, queries, keys) as numbers.
 * @param {any} answer
 */
export function readWeights(answer) {
  const nd = decode(answer.weights);
  let data = nd.data;
  if (answer.scale) {
    const scale = decode(answer.scale).data;
    const keys = nd.shape[2];
    data = Float32Array.from(nd.data, (value, i) => (value / 255) * scale[Math.floor(i / keys)]);
  }
  return { shape: nd.shape, data };
}

/** @typedef {{data: ArrayLike<number>, shape: number[], allowed: ArrayLike<number> | null}} HeadWeights */

const WHOLE = 400_000; // weights of a layer that are fetched at once, so that changing the head needs no new question

/**
 * The weights of one head, (queries, keys), and which of them are allowed.
 * @param {(name: string, params: Record<string, any>) => Promise<any>} ask
 * @param {{kind: string, layer: number, head: number}} which
 * @param {{queries: number, keys: number, heads: number, saved: boolean}} size a saved page holds whole layers
 * @returns {Promise<HeadWeights>}
 */
export async function headWeights(ask, { kind, layer, head }, { queries, keys, heads, saved }) {
  const whole = saved || queries * keys * heads <= WHOLE;
  const answer = await ask("attention", { kind, layer, heads: whole ? null : [head], rows: null });
  const index = whole ? head : 0;
  const weights = at(/** @type {any} */ (readWeights(answer)), index);
  const allowed = answer.per_head_allowed ? at(decode(answer.per_head_allowed), index) : answer.allowed ? decode(answer.allowed) : null;
  return { data: weights.data, shape: weights.shape, allowed: allowed?.data ?? null };
}
