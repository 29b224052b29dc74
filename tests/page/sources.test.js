// @ts-check
import assert from "node:assert/strict";
import test from "node:test";
import { sourcesOf, wordsOf } from "../../glassformer/viewer/static/js/views/heads_sources.js";

/** @param {string} text @param {boolean} special */
const token = (text, special = false) => ({ id: 0, text, special, segment: 0 });
const keys = [token("__en__", true), token("I"), token(" love"), token(" you"), token("</s>", true)];
const queries = [
  { ...token("</s>", true), writes: "__zh__", writesSpecial: true },
  { ...token("__zh__", true), writes: "我爱", writesSpecial: false },
  { ...token("我爱"), writes: "你", writesSpecial: false },
  { ...token("你"), writes: "</s>", writesSpecial: true },
];
const weights = [[1, 0, 0, 0, 0], [0.4, 0.22, 0.3, 0.08, 0], [0.5, 0.05, 0.1, 0.25, 0.1], [0, 0, 0, 0, 1]];

test("special tokens neither are words nor sources of words", () => {
  const found = sourcesOf(queries, keys, (query) => weights[query]).listed;
  assert.deepEqual(found.map(({ query, word }) => [query, word]), [[1, "我爱"], [2, "你"]]);
  assert.deepEqual(found[1], { query: 2, word: "你", keys: [[3]], weights: [0.25] });
});

test("a second source is named if it is at least half as strong as the first", () => {
  assert.deepEqual(sourcesOf(queries, keys, (query) => weights[query]).listed[0].keys, [[2], [1]]);
});

test("pieces are joined to words on both sides: weights are added over the source, averaged over what is written", () => {
  const pieces = [token("The"), token(" anim"), token("al"), token(" didn"), token("'t"), token("."), token("</s>", true)];
  assert.deepEqual(wordsOf(pieces), [[0], [1, 2], [3, 4], [5]]);
  assert.deepEqual(wordsOf([token("动物"), token("穿"), token("Tom"), token("my")]), [[0], [1], [2, 3]]);
  const writing = [{ ...token(""), writes: " st", writesSpecial: false }, { ...token(" st"), writes: "reet", writesSpecial: false }];
  const rows = [[0.1, 0.3, 0.2, 0.1, 0.1, 0.1, 0.1], [0.1, 0.5, 0.1, 0.1, 0.1, 0.05, 0.05]];
  const { listed: [found] } = sourcesOf(writing, pieces, (query) => rows[query]);
  assert.deepEqual([found.word, found.query, found.keys], [" street", 0, [[1, 2]]]);
  assert.ok(Math.abs(found.weights[0] - 0.55) < 1e-9);
});

test("without what the positions write, as in weights of another library, there are no words", () => {
  assert.deepEqual(sourcesOf([token("a")], keys, () => weights[0]), { listed: [], more: 0 });
});

test("words that the table does not list are counted", () => {
  const many = Array.from({ length: 43 }, () => queries[1]);
  const found = sourcesOf(many, keys, () => weights[1]);
  assert.deepEqual([found.listed.length, found.more], [40, 3]);
});
