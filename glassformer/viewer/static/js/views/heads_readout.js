// @ts-check
// The exact numbers behind the lines: what a token reads from, as a table.

import { number, topIndices } from "../arrays.js";
import { combine } from "../attention.js";
import { h } from "../dom.js";
import { visibleText } from "../tokens.js";

const SHOWN = 8;
const COLUMNS = 3;

/** @typedef {import("../types.js").Token} Token */

/**
 * @param {object} options
 * @param {Token} options.query
 * @param {number} options.index of the query
 * @param {Token[]} options.tokens all keys
 * @param {number[]} options.keys the keys that are shown
 * @param {number[]} options.heads
 * @param {Float32Array[]} options.rows one for each head
 * @param {"sum" | "mean"} options.how
 * @param {string[]} options.colours of the heads
 * @param {(key: number) => boolean} options.allowed
 * @param {(key: string, values?: Record<string, string | number>) => string} options.t
 * @param {(() => void) | null} options.onRemove
 */
export function readout({ query, index, tokens, keys, heads, rows, how, colours, allowed, t, onRemove }) {
  const all = combine(rows, how);
  const open = keys.filter(allowed);
  const shown = topIndices(open.map((key) => all[key]), SHOWN).map((i) => open[i]);
  const most = Math.max(all[shown[0]] ?? 0, 1e-9);
  const columns = heads.length > 1 && heads.length <= COLUMNS ? heads : [];
  const masked = keys.length - open.length;
  const caption = h("caption", {},
    h("span", { class: "token" }, visibleText(query.text)), h("span", { class: "note" }, ` ${query.writes === undefined ? t("reads.from", { index }) : t("writes.from", { index, token: visibleText(query.writes) })}`),
    onRemove && h("button", { type: "button", class: "quiet small unpin", "aria-label": t("unpin", { token: visibleText(query.text) }), onclick: onRemove }, "×"));
  const name = heads.length === 1 ? `${t("head")} ${heads[0]}` : t(how);
  const header = h("tr", {}, h("th", { scope: "col" }, t("key")), h("th", { scope: "col", class: "number" }, name),
    columns.map((head, i) => h("th", { scope: "col", class: "number", style: { color: colours[i] } }, `${t("head.short")}${head}`)));
  const body = shown.map((key) =>
    h("tr", {},
      h("th", { scope: "row", class: "token" }, visibleText(tokens[key].text), h("span", { class: "note" }, ` ${key}`)),
      h("td", { class: "number" },
        h("span", { class: "bar-under", style: { width: `${(100 * all[key]) / most}%` } }),
        h("span", { class: "bar-value" }, number(all[key], 4))),
      columns.map((_, i) => h("td", { class: "number" }, number(rows[i][key], 3)))));
  return h("table", { class: "readout plain", "data-query": index }, caption, h("thead", {}, header), h("tbody", {}, body),
    masked > 0 && h("tfoot", {}, h("tr", {}, h("td", { colspan: 2 + columns.length, class: "note" }, t("masked.count", { count: masked })))));
}
