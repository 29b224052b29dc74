// @ts-check
// Which source words each word of a translation comes from: the cross-attention of all layers and heads, as a table.

import { Stale } from "../api.js";
import { number, topIndices } from "../arrays.js";
import { combine, readBlock, WHOLE } from "../attention.js";
import { h } from "../dom.js";
import { stackOf } from "../state.js";
import { visibleText } from "../tokens.js";

/** @typedef {import("../types.js").Ctx} Ctx */
/** @typedef {import("../types.js").Token} Token */
/** @typedef {{query: number, word: string, keys: number[][], weights: number[]}} Source query: of the word's first piece; keys: the pieces of each source word */
/** @typedef {{listed: Source[], more: number}} Sources more: words of the translation that are not listed */

/** Beyond these the answers take long to fetch, and the table is no longer read. */
const MOST_WEIGHTS = 2_000_000;
const MOST_WORDS = 40;
const SHOWN = 2;
/** Scripts that are written without spaces between words. */
const UNSPACED = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}]/u;
/** A second word is named if its weight is at least this share of the first one's. */
const SECOND = 0.5;

/**
 * The words that pieces make up, each as the indices of its pieces: a piece without a space before it goes on with the
 * word before it, if both are of letters. Special tokens are no words. Chinese has no spaces: each piece is a word.
 * @param {{text: string, special: boolean}[]} pieces
 * @returns {number[][]}
 */
export function wordsOf(pieces) {
  /** @type {number[][]} */
  const words = [];
  const ends = (/** @type {string} */ text) => /[\p{L}\p{N}'’]$/u.test(text) && !UNSPACED.test(text);
  const goesOn = (/** @type {string} */ text) => /^[\p{L}\p{N}'’]/u.test(text) && !UNSPACED.test(text);
  pieces.forEach((piece, index) => {
    if (piece.special) return;
    const before = words.at(-1)?.at(-1);
    if (before === index - 1 && ends(pieces[before].text) && goesOn(piece.text)) /** @type {number[]} */ (words.at(-1)).push(index);
    else words.push([index]);
  });
  return words;
}

/**
 * The source words of each written word, largest first: summed over the pieces of the source word, and averaged over
 * those of the written one. Special tokens are no words: they write none and are no source.
 * @param {Token[]} queries
 * @param {Token[]} keys
 * @param {(query: number) => ArrayLike<number>} row the weights of a query
 * @returns {Sources}
 */
export function sourcesOf(queries, keys, row) {
  const words = wordsOf(keys);
  const written = wordsOf(queries.map((token) => ({ text: token.writes ?? "", special: token.writes === undefined || Boolean(token.writesSpecial) })));
  const listed = written.slice(0, MOST_WORDS).map((pieces) => {
    const rows = pieces.map(row);
    const weights = words.map((word) => word.reduce((sum, key) => sum + rows.reduce((total, one) => total + one[key], 0) / rows.length, 0));
    const best = topIndices(weights, SHOWN);
    const kept = best.filter((word, place) => place === 0 || weights[word] >= SECOND * weights[best[0]]);
    return { query: pieces[0], word: pieces.map((piece) => queries[piece].writes).join(""), keys: kept.map((word) => words[word]), weights: kept.map((word) => weights[word]) };
  });
  return { listed, more: written.length - listed.length };
}

/**
 * Fetch the cross-attention of every layer and average it; null where that is too much or a file does not hold it.
 * @param {Ctx} ctx
 * @param {Token[]} queries
 * @param {Token[]} keys
 * @returns {Promise<Sources | null>}
 */
export async function loadSources(ctx, queries, keys) {
  const stack = stackOf(ctx.model, "cross");
  if (!stack || queries.length > WHOLE || stack.layers * stack.heads * queries.length * keys.length > MOST_WEIGHTS) return null;
  const heads = Array.from({ length: stack.heads }, (_, head) => head);
  /** @type {import("../attention.js").Block[]} */
  const layers = [];
  try {
    for (let layer = 0; layer < stack.layers; layer++) {
      const answer = await ctx.api("attention", { kind: "cross", layer, heads: null, rows: null }, { slot: `sources ${layer}`, quiet: true });
      layers.push(readBlock(answer));
    }
  } catch (error) {
    if (error instanceof Stale) throw error;
    return null;
  }
  return sourcesOf(queries, keys, (query) => combine(layers.flatMap((block) => heads.map((head) => block.row(head, query))), "mean"));
}

/** A token as a word of a sentence: without the space before it. @param {string} text */
const asWord = (text) => visibleText(text.trim() || text);

/**
 * @param {Sources} sources
 * @param {Token[]} keys
 * @param {(key: string, values?: Record<string, string | number>) => string} t
 * @param {(query: number) => void} onPick
 */
export function sourcesTable({ listed, more }, keys, t, onPick) {
  const rows = listed.map(({ query, word, keys: from, weights }) =>
    h("tr", { "data-query": query },
      h("th", { scope: "row" }, h("button", { type: "button", class: "predict-pick token", title: t("sources.pick"), onclick: () => onPick(query) }, asWord(word))),
      h("td", {}, from.map((key, place) => h("span", { class: place ? "token note" : "token" }, place ? ", " : "", asWord(key.map((piece) => keys[piece].text).join(""))))),
      h("td", { class: "number" },
        h("span", { class: "bar-under", style: { width: `${100 * (weights[0] ?? 0)}%` } }), h("span", { class: "bar-value" }, number(weights[0] ?? 0, 2)))));
  return h("table", { class: "readout sources plain" },
    h("caption", {}, h("div", { class: "token" }, t("sources")), h("div", { class: "note" }, t("sources.about"))),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, t("sources.word")), h("th", { scope: "col" }, t("sources.from")), h("th", { scope: "col", class: "number" }, t("sources.weight")))),
    h("tbody", {}, rows),
    more ? h("tfoot", {}, h("tr", {}, h("td", { colspan: 3, class: "note" }, t("sources.more", { n: more })))) : null);
}
