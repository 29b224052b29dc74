// @ts-check
// Attention weights of one layer, fetched whole for short texts and in blocks of rows for long ones.

import { at, decode } from "./arrays.js";

/** @typedef {import("./types.js").Ctx} Ctx */
/** @typedef {import("./types.js").Kind} Kind */

export const WHOLE = 256;
export const BLOCK = 128;

/**
 * Which rows to ask for so that some rows are there: null is all of them.
 * @param {number} queries
 * @param {number} first
 * @param {number} last the one after
 * @returns {([number, number] | null)[]}
 */
export function blocksFor(queries, first, last) {
  if (queries <= WHOLE) return [null];
  /** @type {[number, number][]} */
  const blocks = [];
  for (let start = Math.floor(first / BLOCK) * BLOCK; start < Math.min(last, queries); start += BLOCK) {
    blocks.push([start, Math.min(start + BLOCK, queries)]);
  }
  return blocks;
}

/**
 * One answer to the query `attention`, with its weights as numbers.
 * @param {any} answer
 */
export function readBlock(answer) {
  const weights = decode(answer.weights);
  const scale = answer.scale ? decode(answer.scale) : null;
  const allowed = answer.per_head_allowed ? decode(answer.per_head_allowed) : answer.allowed ? decode(answer.allowed) : null;
  const perHead = Boolean(answer.per_head_allowed);
  const [start, stop] = answer.rows ?? [0, weights.shape[1]];
  const keys = weights.shape[2];
  /** @type {Map<number, Float32Array>} */
  const rows = new Map();
  return {
    start,
    stop,
    keys,
    /**
     * The weights of one query in one head.
     * @param {number} head
     * @param {number} query
     * @returns {Float32Array}
     */
    row(head, query) {
      const data = at(weights, head, query - start).data;
      if (!scale) return /** @type {Float32Array} */ (data);
      const key = head * 65536 + query;
      let row = rows.get(key);
      if (!row) {
        const factor = at(scale, head).data[query - start] / 255;
        row = Float32Array.from(data, (value) => value * factor);
        rows.set(key, row);
      }
      return row;
    },
    /**
     * Whether a query may see a key at all.
     * @param {number} head
     * @param {number} query
     * @param {number} key
     */
    allowed(head, query, key) {
      if (!allowed) return true;
      const row = perHead ? at(allowed, head, query - start) : at(allowed, query - start);
      return row.data[key] !== 0;
    },
  };
}

/** @typedef {ReturnType<typeof readBlock>} Block */

/**
 * Holds the blocks of the layer that is shown.
 * @param {Ctx} ctx
 */
export function attentionSource(ctx) {
  let current = "";
  /** @type {Map<number, Block>} */
  let blocks = new Map();
  /** @type {Set<number>} */
  let asked = new Set();

  return {
    /**
     * Ask for what is not there yet. Resolves to true when something new arrived.
     * @param {number} queries
     * @param {number} first
     * @param {number} last
     * @returns {Promise<boolean>}
     */
    async need(queries, first, last) {
      const { kind, layer, model, text, text_b, target, ablate } = ctx.state();
      const key = JSON.stringify([kind, layer, model, text, text_b, target, ablate]);
      if (key !== current) {
        current = key;
        blocks = new Map();
        asked = new Set();
      }
      const wanted = blocksFor(queries, first, last).filter((rows) => !asked.has(rows?.[0] ?? 0));
      if (!wanted.length) return false;
      const mine = asked;
      const into = blocks;
      await Promise.all(
        wanted.map(async (rows) => {
          const start = rows?.[0] ?? 0;
          mine.add(start);
          try {
            const answer = await ctx.api("attention", { kind, layer, heads: null, rows }, { slot: `attention ${start}` });
            into.set(start, readBlock(answer));
          } catch (error) {
            mine.delete(start);
            throw error;
          }
        }),
      );
      return into === blocks;
    },
    /**
     * The block that has a query, if it is there.
     * @param {number} query
     * @param {number} queries
     */
    block(query, queries) {
      return blocks.get(queries <= WHOLE ? 0 : Math.floor(query / BLOCK) * BLOCK);
    },
    clear() {
      current = "";
      blocks = new Map();
      asked = new Set();
    },
  };
}

/**
 * The weights of several heads as one row.
 * @param {Float32Array[]} rows
 * @param {"sum" | "mean"} how
 */
export function combine(rows, how) {
  const out = new Float32Array(rows[0]?.length ?? 0);
  for (const row of rows) for (let i = 0; i < out.length; i++) out[i] += row[i];
  if (how === "mean" && rows.length) for (let i = 0; i < out.length; i++) out[i] /= rows.length;
  return out;
}
