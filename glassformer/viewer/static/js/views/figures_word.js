// @ts-check
// Figure: from the last vector to a word. One score for every token of the vocabulary, then probabilities.

import { whileCurrent } from "../api.js";
import { number, percent } from "../arrays.js";
import { fill, h } from "../dom.js";
import { activationOf } from "../mechanisms.js";
import { lmOf } from "../state.js";
import { distribution } from "./compare_next.js";
import { bars, vectorsOf, shape, strip, tokenChips, tokenLabel } from "./figures_draw.js";

/** @type {import("./figures_types.js").Figure} */
export const word = {
  id: "word",
  supports: (model) => Boolean(model && ["generate", "fill"].some((name) => model.abilities.includes(name))),
  mount(root, ctx) {
    const { t } = ctx;
    let turn = 0;
    return {
      async update(state) {
        const mine = ++turn;
        const stack = ctx.model.stacks.decoder ? "decoder" : "encoder";
        const asking = whileCurrent(ctx, () => mine === turn);
        const tokens = (await asking.api("tokens"))[stack];
        const asked = state.pins[0] ?? -1;
        const predicted = await asking.api("predict", asked >= 0 && asked < tokens.length ? { position: asked } : {});
        const at = predicted.position;
        const hidden = await vectorsOf(asking, `${stack}.output`, [at]);
        if (mine !== turn) return;
        const vector = hidden?.data;
        const width = ctx.model.stacks[stack]?.width ?? 0;
        const { top, probs } = distribution(predicted);
        const best = top.slice(0, 12);
        const vocab = ctx.model.vocab;
        const lm = lmOf(ctx.model);
        const logit = (/** @type {any} */ token) => token.logit ?? Math.log(probs[token.id]);
        const shown = best.map((token) => ({ name: tokenLabel(token), special: token.special, value: logit(token), shown: number(logit(token), 2) }));
        const rest = 1 - best.reduce((sum, { id }) => sum + probs[id], 0);
        const after = stack === "decoder";
        const held = document.activeElement?.closest(".token-chips");
        fill(root,
          h("p", {}, t("word.text")),
          h("p", { class: "label" }, t(after ? "word.after" : "word.at")),
          tokenChips(tokens, at, (index) => ctx.select({ pins: [index] }), t(after ? "word.after" : "word.at")),
          h("div", { class: "word-flow" },
            h("section", {}, h("section", {}, h("h3", {}, t("word.vector")), vector && strip(ctx, vector, { label: t("word.vector.label", { token: tokenLabel(tokens[at]) }), height: 26 }), shape(width)),
            h("section", { class: "word-op" }, h("span", { class: "op" }, "·"), h("div", {}, h("h3", {}, t("word.table")), h("div", { class: "blank-matrix" }), shape(width, vocab),
              h("p", { class: "note" }, t(lm?.tied ? "word.tied" : "word.untied")),
              lm?.transform ? h("p", { class: "note" }, t("word.transform", { activation: activationOf(lm.transform).name })) : null,
              lm && lm.scale !== 1 ? h("p", { class: "note" }, t("word.scale", { scale: number(lm.scale, 4) })) : null,
              lm?.bias ? h("p", { class: "note" }, t("word.bias")) : null))),
            h("section", {}, h("h3", {}, t("word.logits"), " ", shape(vocab)), bars(ctx, shown, { label: t("word.logits") }),
              h("p", { class: "note" }, t("word.more", { count: (vocab - best.length).toLocaleString("en") }))),
            h("section", {}, h("h3", {}, t("word.softmax"), " ", shape(vocab)),
              bars(ctx, [...best.map((token, i) => ({ name: tokenLabel(token), special: token.special, value: probs[token.id], shown: percent(probs[token.id]), strong: i === 0 })),
                { name: t("word.others"), value: Math.max(0, rest), shown: percent(Math.max(0, rest)), special: true }], { label: t("word.softmax"), most: 1 }),
            h("section", { class: "word-best" }, h("h3", {}, t("word.word")), h("p", { class: "big-word" }, h("span", { class: best[0].special ? "token special" : "token" }, tokenLabel(best[0]))),
              h("p", { class: "note" }, t("word.greedy"))))),
          predicted.next ? h("p", { class: "note" }, t(after ? "word.actual" : "word.actual.at", { token: tokenLabel(predicted.next), prob: percent(probs[predicted.next.id]) })) : null,
          h("p", { class: "arithmetic mono" }, t("word.formula", { token: tokenLabel(best[0]), a: number(logit(best[0]), 2) }), ` p = e^${number(logit(best[0]), 2)} / Σ e^logit = ${percent(probs[best[0].id])}`));
        if (held) /** @type {HTMLElement | null} */ (root.querySelector(".token-chips [aria-checked=true]"))?.focus();
      },
      destroy() {
        turn += 1;
      },
    };
  },
};
