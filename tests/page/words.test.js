// @ts-check
import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import test from "node:test";
import { fileURLToPath } from "node:url";
import { PAGE, fillIn, preferred, translator } from "../../glassformer/viewer/static/js/i18n.js";
import { VIEWS } from "../../glassformer/viewer/static/js/views/index.js";

const JS = new URL("../../glassformer/viewer/static/js/", import.meta.url);
const read = (/** @type {string} */ path) => readFileSync(new URL(path, JS), "utf8");
/** @type {[string, {en: Record<string, string>, zh: Record<string, string>}][]} */
const COLLECTIONS = [["page", PAGE], ...VIEWS.map((view) => /** @type {[string, typeof view.words]} */ ([view.id, view.words]))];
const names = (/** @type {string} */ sentence) => [...sentence.matchAll(/\{(\w+)\}/g)].map((match) => match[1]).sort();

test("English and Chinese have the same keys and the same gaps to fill", () => {
  for (const [name, { en, zh }] of COLLECTIONS) {
    assert.deepEqual(Object.keys(zh).sort(), Object.keys(en).sort(), name);
    for (const key of Object.keys(en)) assert.deepEqual(names(zh[key]), names(en[key]), `${name}: ${key}`);
  }
});

test("every view has a title, a sentence about itself and an id of its own", () => {
  assert.equal(new Set(VIEWS.map((view) => view.id)).size, VIEWS.length);
  for (const { id, words } of VIEWS) assert.ok(words.en.title && words.en.about && words.zh.title && words.zh.about, id);
});

test("Chinese is Chinese", () => {
  for (const [name, { zh }] of COLLECTIONS) {
    const text = Object.values(zh).join("");
    assert.ok(/[\u4e00-\u9fff]/.test(text), name);
    assert.ok(!/[\u4e00-\u9fff]\s*[,;]\s*[\u4e00-\u9fff]/.test(text), `${name} has Western punctuation between Chinese characters`);
  }
});

const has = (/** @type {string} */ key) => (/** @type {{words: {en: Record<string, string>}}} */ { words }) => Object.hasOwn(words.en, key);

test("every key that the scripts name exists", () => {
  const files = ["layout.js", "main.js", ...readdirSync(fileURLToPath(new URL("views/", JS))).map((name) => `views/${name}`)];
  /** @type {string[]} */
  const unknown = [];
  for (const file of files) {
    const own = VIEWS.filter(({ id }) => file === `views/${id}.js` || file.startsWith(`views/${id}_`));
    if (file.startsWith("views/") && !own.length) continue; // shared by several views, or not in the navigation
    const known = (/** @type {string} */ key) => Object.hasOwn(PAGE.en, key) || (own.length ? own.some(has(key)) : VIEWS.every(has(key)));
    for (const [, key] of read(file).matchAll(/\bt\("([^"]+)"/g)) if (!known(key)) unknown.push(`${file}: ${key}`);
  }
  assert.deepEqual(unknown, []);
});

test("sentences are filled in", () => {
  assert.equal(fillIn("{a} and {b} and {c}", { a: 1, b: "{a}" }), "1 and {a} and {c}");
  const own = { en: { title: "T" }, zh: { title: "题" } };
  assert.deepEqual([translator("zh", own, PAGE)("title"), translator("zh", PAGE)("layer"), translator("en", PAGE)("no such key")], ["题", "层", "no such key"]);
});

test("the browser's languages decide at first", () => {
  assert.deepEqual([preferred(["zh-TW", "en"]), preferred(["de", "en-GB", "zh"]), preferred(["fr"]), preferred([])], ["zh", "en", "en", "en"]);
});
