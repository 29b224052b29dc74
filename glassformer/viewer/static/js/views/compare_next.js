// @ts-check
// Two distributions over the next token, labels of words or of a text: side by side, with the differences marked.

import { decode, percent } from "../arrays.js";
import { h } from "../dom.js";
import { divergence } from "./compare_align.js";
import { tokenLabel } from "./figures_draw.js";

/** @typedef {import("../types.js").Ctx} Ctx */
/** @typedef {{id: number, text: string, special?: boolean}} Known */

/**
 * An answer of `predict` as probabilities by id.
 * @param {any} answer
 */
export function distribution(answer) {
  const logits = decode(answer.logits).data;
  return { probs: Float64Array.from(logits, (logit) => Math.exp(logit - answer.logsumexp)), top: /** @type {Known[]} */ (answer.top) };
}

/**
 * The rows of the table: the best tokens of both sides, with both probabilities.
 * @param {ReturnType<typeof distribution>} a
 * @param {ReturnType<typeof distribution>} b
 * @param {boolean} byText the vocabularies differ
 * @param {number} count of each side
 */
export function merged(a, b, byText, count = 8) {
  /** @type {Map<string | number, {text: string, special: boolean, a: number, b: number}>} */
  const rows = new Map();
  const keyOf = (/** @type {Known} */ token) => (byText ? token.text.trim() : token.id);
  const inOther = (/** @type {ReturnType<typeof distribution>} */ side, /** @type {Known} */ token) => {
    if (!byText) return side.probs[token.id];
    const found = side.top.find((other) => other.text.trim() === token.text.trim());
    return found ? side.probs[found.id] : 0;
  };
  for (const side of [a, b]) {
    for (const token of side.top.slice(0, count)) {
      if (rows.has(keyOf(token))) continue;
      rows.set(keyOf(token), { text: token.text, special: Boolean(token.special), a: inOther(a, token), b: inOther(b, token) });
    }
  }
  return [...rows.values()].sort((one, other) => Math.max(other.a, other.b) - Math.max(one.a, one.b));
}

/**
 * Total variation and divergence of two distributions over the same vocabulary.
 * @param {ReturnType<typeof distribution>} a
 * @param {ReturnType<typeof distribution>} b
 */
export function distances(a, b) {
  return { tv: a.probs.reduce((sum, value, i) => sum + Math.abs(value - b.probs[i]) / 2, 0), kl: divergence(a.probs, b.probs) };
}

/** @param {number} value @param {string} colour @param {number} most */
function bar(value, colour, most) {
  return h("td", { class: "number compare-bar" },
    h("span", { class: "compare-fill", style: { width: `${(100 * value) / (most || 1)}%`, background: colour }, "aria-hidden": "true" }),
    h("span", {}, percent(value)));
}

/**
 * A table of shares with bars and the change.
 * @param {Ctx} ctx
 * @param {{text: string, special?: boolean, a: number, b: number}[]} rows
 * @param {string} first heading of the first column
 */
export function shares(ctx, rows, first) {
  const { t } = ctx;
  const colours = ctx.colours();
  const most = Math.max(...rows.flatMap(({ a, b }) => [a, b]), 1e-9);
  return h("table", { class: "plain compare-table" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, first), h("th", { scope: "col", class: "number" }, t("next.a")),
      h("th", { scope: "col", class: "number" }, t("next.b")), h("th", { scope: "col", class: "number" }, t("next.change")))),
    h("tbody", {}, rows.map(({ text, special, a, b }) => {
      const change = b - a;
      const shown = Math.abs(change) < 0.0005 ? "0.0" : `${change > 0 ? "+" : "−"}${Math.abs(100 * change).toFixed(1)}`;
      return h("tr", { "data-token": text },
        h("th", { scope: "row" }, h("span", { class: special ? "token special" : "token" }, text.trim() ? text : tokenLabel({ text }))),
        bar(a, colours.heads[0], most), bar(b, colours.heads[1], most),
        h("td", { class: `number ${change > 0.0005 ? "positive" : change < -0.0005 ? "negative" : ""}` },
          `${change > 0.0005 ? "▲ " : change < -0.0005 ? "▼ " : ""}${t("points", { value: shown })}`));
    })));
}

/**
 * The labels of words, for two texts or two models.
 * @param {Ctx} ctx
 * @param {any} a answer of `tag`
 * @param {any} b
 * @param {import("./compare_align.js").Pair[]} pairs of words
 */
export function tagTable(ctx, a, b, pairs) {
  const { t } = ctx;
  const cell = (/** @type {any} */ word, /** @type {boolean} */ changed) =>
    h("td", { class: changed ? "compare-changed" : "" }, word ? `${word.label} (${percent(word.probability)})` : t("absent"));
  return h("table", { class: "plain" },
    h("thead", {}, h("tr", {}, [t("tags.word"), t("side.a"), t("side.b")].map((text) => h("th", { scope: "col" }, text)))),
    h("tbody", {}, pairs.map((pair) => {
      const inA = pair.a === null ? null : a.words[pair.a];
      const inB = pair.b === null ? null : b.words[pair.b];
      const name = [...new Set([inA?.text, inB?.text].filter(Boolean))].join(" / ");
      const changed = inA?.label !== inB?.label;
      return h("tr", {}, h("th", { scope: "row", class: "token" }, name), cell(inA, changed), cell(inB, changed));
    })));
}
