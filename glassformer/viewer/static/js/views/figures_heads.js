// @ts-check
// Figure: every head makes its own queries, keys and values; their outputs are put side by side and projected.

import { whileCurrent } from "../api.js";
import { at, decode } from "../arrays.js";
import { fill, h } from "../dom.js";
import { headOf, stackOf } from "../state.js";
import { shape, thumb, tokenLabel } from "./figures_draw.js";

const ROWS = 24; // tokens in the pictures

/** @type {import("./figures_types.js").Figure} */
export const heads = {
  id: "heads",
  supports: (model) => Boolean(model?.facts),
  mount(root, ctx) {
    const { t } = ctx;
    let turn = 0;
    return {
      async update(state) {
        const mine = ++turn;
        const stack = /** @type {import("../types.js").Stack} */ (stackOf(ctx.model, state.kind));
        const sublayer = `${state.kind === "encoder" ? "encoder" : "decoder"}.blocks.${state.layer}.${state.kind === "cross" ? "cross" : "attention"}`;
        const asking = whileCurrent(ctx, () => mine === turn);
        const tokens = await asking.api("tokens");
        const own = tokens[state.kind === "encoder" ? "encoder" : "decoder"];
        const others = tokens[state.kind === "decoder" ? "decoder" : "encoder"];
        const rows = (/** @type {any[]} */ list) => Array.from({ length: Math.min(ROWS, list.length) }, (_, i) => i);
        const ask = (/** @type {string} */ name, /** @type {any[]} */ list) =>
          asking.api("values", { name: `${sublayer}.${name}`, tokens: rows(list) }, { slot: name }).then((answer) => decode(answer.values));
        const [input, q, k, v, weights, outputs, output] = await Promise.all([
          ask("input", own), ask("q", own), ask("k", others), ask("v", others), ask("weights", own), ask("heads", own), ask("output", own)]);
        if (mine !== turn) return;
        const [queries, keys] = [rows(own).length, rows(others).length];
        const high = (/** @type {number} */ count) => Math.max(36, Math.min(count * 6, 110));
        const wide = Math.max(72, Math.min(stack.head_dim * 4, 128));
        const name = (/** @type {any[]} */ list, /** @type {string} */ what) =>
          (/** @type {number} */ row, /** @type {number} */ column) => `${what}[${tokenLabel(list[row])}, ${column}]`;
        const part = (/** @type {string} */ title, /** @type {HTMLElement} */ picture, /** @type {(number | string)[]} */ sizes, kind = "") =>
          h("figure", { class: `part ${kind}`.trim() }, h("figcaption", {}, title), picture, shape(...sizes));
        const chosen = headOf(state);
        const most = { q: Math.max(...q.data.map(Math.abs)), k: Math.max(...k.data.map(Math.abs)), v: Math.max(...v.data.map(Math.abs)) };
        const small = (/** @type {string} */ what, /** @type {any} */ nd, /** @type {number} */ head, /** @type {any[]} */ list) =>
          thumb(ctx, at(nd, head), { label: t("heads.part", { what, head }), width: wide, height: high(Math.min(ROWS, list.length)), most: /** @type {any} */ (most)[what], name: name(list, what) });
        const lines = Array.from({ length: stack.heads }, (_, head) => {
          const group = Math.floor((head * stack.kv_heads) / stack.heads);
          const shown = at(weights, head);
          const square = { shape: [queries, keys], data: Float32Array.from({ length: queries * keys }, (__, i) => shown.data[Math.floor(i / keys) * shown.shape[1] + (i % keys)]) };
          return h("div", { class: `head-row${head === chosen ? " chosen" : ""}`, "data-head": head },
            h("button", { type: "button", class: "swatch", "aria-pressed": String(head === chosen), style: { "--head": ctx.colours().heads[head % 12] },
              "aria-label": t("heads.choose", { head }), onclick: () => ctx.select({ heads: [head] }) }, String(head)),
            part("q", small("q", q, head, own), [queries, stack.head_dim]),
            part(stack.kv_heads < stack.heads ? t("heads.shared", { name: "k", group }) : "k", small("k", k, group, others), [keys, stack.head_dim]),
            h("span", { class: "op" }, "→"),
            part(t("heads.softmax"), thumb(ctx, square, { label: t("heads.part", { what: t("heads.weights"), head }), width: Math.max(44, keys * 5), height: high(queries), map: "share",
              name: (row, column) => `${tokenLabel(own[row])} → ${tokenLabel(others[column])}` }), [queries, keys]),
            h("span", { class: "op" }, "·"),
            part(stack.kv_heads < stack.heads ? t("heads.shared", { name: "v", group }) : "v", small("v", v, group, others), [keys, stack.head_dim]),
            h("span", { class: "op" }, "="),
            part(t("heads.out"), thumb(ctx, at(outputs, head), { label: t("heads.part", { what: t("heads.out"), head }), width: wide, height: high(queries), name: name(own, "z") }), [queries, stack.head_dim], "framed"));
        });
        const inner = stack.heads * stack.head_dim;
        const joined = new Float32Array(queries * inner);
        for (let head = 0; head < stack.heads; head++) {
          const one = at(outputs, head);
          for (let row = 0; row < queries; row++) {
            for (let column = 0; column < stack.head_dim; column++) joined[row * inner + head * stack.head_dim + column] = one.data[row * stack.head_dim + column];
          }
        }
        const swatches = h("div", { class: "concat-heads", "aria-hidden": "true" }, Array.from({ length: stack.heads }, (_, head) =>
          h("span", { style: { background: ctx.colours().heads[head % 12] } })));
        fill(root,
          h("p", {}, t(stack.kv_heads < stack.heads ? "heads.text.grouped" : "heads.text", { heads: stack.heads, dim: stack.head_dim, inner, width: stack.width, groups: stack.kv_heads })),
          stack.kv_heads < stack.heads ? h("p", { class: "note" }, t("heads.grouped", { heads: stack.heads, groups: stack.kv_heads })) : null,
          part("X", thumb(ctx, input, { label: t("heads.input"), width: 320, height: high(queries), name: name(own, "x") }), [queries, stack.width]),
          own.length > ROWS || others.length > ROWS ? h("p", { class: "note" }, t("first", { count: ROWS })) : null,
          h("div", { class: "head-rows scroll" }, lines),
          h("h3", {}, t("heads.concat")),
          h("div", { class: "row concat" },
            h("figure", { class: "part" }, h("figcaption", {}, t("heads.joined")), swatches,
              thumb(ctx, { shape: [queries, inner], data: joined }, { label: t("heads.joined"), width: 360, height: high(queries), name: name(own, "z") }), shape(queries, inner)),
            h("span", { class: "op" }, "·"),
            h("figure", { class: "part" }, h("figcaption", {}, h("span", {}, "W", h("sub", {}, "o"))), h("div", { class: "blank-matrix" }), shape(inner, stack.width)),
            h("span", { class: "op" }, "="),
            part(t("heads.output"), thumb(ctx, output, { label: t("heads.output"), width: 320, height: high(queries), name: name(own, "y") }), [queries, stack.width])),
          stack.kv_heads < stack.heads ? null : h("p", { class: "note" }, t("heads.count", { inner, width: stack.width })));
      },
      destroy() {
        turn += 1;
      },
    };
  },
};
