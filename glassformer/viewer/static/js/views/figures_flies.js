// @ts-check
// Figure: one word in two sentences. The same vector goes in; layer by layer the context makes two of it.

import { ApiError, explained } from "../api.js";
import { at, decode, number } from "../arrays.js";
import { css, inkOn } from "../colour.js";
import { choice, field, fill, h, slider } from "../dom.js";
import { reach, strip, tokenLabel } from "./figures_draw.js";
import { lineChart } from "./learn_chart.js";
import { readWeights } from "./compare_weights.js";

export const SENTENCES = ["time flies like an arrow", "fruit flies like a banana"];

/** @type {import("./figures_types.js").Figure} */
export const flies = {
  id: "flies",
  supports: (model) => Boolean(model?.facts),
  mount(root, ctx) {
    const { t } = ctx;
    let turn = 0;
    const inputs = SENTENCES.map((sentence, i) => {
      const input = h("input", { type: "text", class: "compare-text", value: ctx.setting(i ? "second" : "first", sentence) });
      input.addEventListener("change", () => ctx.set({ [i ? "second" : "first"]: input.value === sentence ? null : input.value, word: null }));
      return input;
    });
    const controls = h("div", { class: "controls" });
    const chart = lineChart({ label: t("flies.chart"), series: [], colours: ctx.colours(), height: 280, announce: ctx.announce });
    const strips = h("div", {});
    const read = h("div", {});
    const note = h("p", { class: "note" });
    const key = h("div", { class: "row" });
    const refusal = h("p", { class: "note", "data-part": "refusal", hidden: true });
    const pictures = h("div", {}, controls, h("h3", {}, t("flies.cosine")), chart.element, key, note, h("h3", {}, t("flies.vectors")), strips, h("h3", {}, t("flies.reads")), read);
    fill(root, h("p", {}, t("flies.text")), h("div", { class: "controls" }, field(t("flies.first"), inputs[0], "compare-grow"), field(t("flies.second"), inputs[1], "compare-grow")), refusal, pictures);

    return {
      async update() {
        const mine = ++turn;
        const texts = [ctx.setting("first", SENTENCES[0]), ctx.setting("second", SENTENCES[1])];
        const stack = ctx.model.stacks.encoder ?? ctx.model.stacks.decoder;
        const layers = stack?.layers ?? 1;
        const layer = Math.max(-1, Math.min(layers - 1, Number(ctx.setting("layer", String(layers - 1)))));
        const about = (/** @type {string} */ word) => ctx.api("words", { word, texts }, { quiet: true });
        const answer = await about(ctx.setting("word", "flies")).catch((error) => {
          if (!(error instanceof ApiError) || error.code !== "word") throw error;
          return about(String(error.values.shared).split(", ")[0]); // texts of the reader's own share other words
        }).catch((error) => {
          if (!(error instanceof ApiError) || error.missing) throw error;
          refusal.textContent = explained(error, t); // in the figure, beside the texts that it is about
          return null;
        });
        if (mine !== turn) return;
        refusal.hidden = Boolean(answer);
        pictures.hidden = !answer;
        if (!answer) return;
        const colours = ctx.colours();
        const names = answer.shared.map((/** @type {any} */ one) => one.word);
        const level = slider({ label: t("layer"), min: -1, max: answer.layers - 1, step: 1, value: layer, format: (value) => (value < 0 ? t("flies.embedding") : String(value)), onInput: (value) => ctx.set({ layer: value }) });
        const held = controls.contains(document.activeElement) && document.activeElement instanceof HTMLInputElement;
        if (!held) fill(controls, field(t("flies.word"), choice(names.map((/** @type {string} */ name) => [name, name]), answer.word, (value) => ctx.set({ word: value }), { name: "word" })), level);
        const x = Array.from({ length: answer.layers + 1 }, (_, i) => i - 1);
        const format = (/** @type {number} */ value) => (value < 0 ? t("flies.embedding") : String(value));
        chart.update({
          colours, xLabel: t("layer"), yLabel: t("flies.cosine.axis"), xFormat: format, xTicks: x.length > 14 ? x.filter((_, i) => i % 4 === 0) : x, yValue: (y) => number(y, 3),
          series: answer.shared.map((/** @type {any} */ one, /** @type {number} */ i) => ({ name: one.word, colour: one.word === answer.word ? colours.accent : colours.heads[(i + 6) % 12], x, y: decode(one.cosine).data, dots: one.word === answer.word, width: one.word === answer.word ? 3 : 1.2, dash: one.word === answer.word ? "" : "4 4" })),
          rings: [{ x: layer, y: decode(answer.shared[names.indexOf(answer.word)].cosine).data[layer + 1], colour: colours.ink, label: format(layer) }],
        });
        fill(key, answer.shared.map((/** @type {any} */ one, /** @type {number} */ i) => h("span", { class: "legend" },
          h("span", { class: `line-key${one.word === answer.word ? "" : " dashed"}`, style: { "border-color": one.word === answer.word ? colours.accent : colours.heads[(i + 6) % 12] } }), one.word)));
        const vectors = answer.vectors.map((/** @type {any} */ vector) => at(decode(vector), layer + 1).data);
        const most = Math.max(...vectors.map(reach));
        const own = decode(answer.shared[names.indexOf(answer.word)].cosine).data;
        const difference = Float32Array.from(vectors[0], (value, i) => value - vectors[1][i]);
        fill(strips, texts.map((text, i) => strip(ctx, vectors[i], { label: t("flies.vector", { word: answer.word, text }), caption: `“${answer.word}” ${i + 1}`, most })),
          strip(ctx, difference, { label: t("flies.difference"), caption: t("flies.difference"), most }),
          h("p", { class: "flies-value" }, t("flies.value", { word: answer.word, layer: format(layer), cosine: number(own[layer + 1], 3) })));
        note.textContent = t(answer.stack === "decoder" ? "flies.causal" : "flies.both");
        await drawReads(texts, answer, Math.max(0, layer), mine).catch((error) => {
          if (!error?.missing) throw error; // a saved page holds the attention of one text only
          fill(read, h("p", { class: "note" }, t("error.missing")));
        });
      },
      destroy() {
        turn += 1;
        chart.destroy();
      },
    };

    /** What the word reads from, in each sentence: the mean over the heads of one layer. */
    async function drawReads(/** @type {string[]} */ texts, /** @type {any} */ answer, /** @type {number} */ layer, /** @type {number} */ mine) {
      const target = ctx.model.family === "encoder-decoder" ? "" : null;
      const colours = ctx.colours();
      const rows = await Promise.all(texts.map(async (text, i) => {
        const input = { text, text_b: null, target, ablate: [] };
        const [tokens, attention] = await Promise.all([
          ctx.api("tokens", { input }, { slot: `flies-tokens-${i}` }),
          ctx.api("attention", { kind: answer.stack, layer, heads: null, rows: null, input }, { slot: `flies-attention-${i}` })]);
        const weights = readWeights(attention);
        const [heads, queries, keys] = weights.shape;
        const place = answer.shared.find((/** @type {any} */ one) => one.word === answer.word).tokens[i].at(-1);
        const mean = Array.from({ length: keys }, (_, key) => {
          let sum = 0;
          for (let head = 0; head < heads; head++) sum += weights.data[(head * queries + place) * keys + key];
          return sum / heads;
        });
        return { tokens: tokens[answer.stack], mean, place };
      }));
      if (mine !== turn) return;
      fill(read, h("p", { class: "note" }, t("flies.reads.text", { word: answer.word, layer })), rows.map(({ tokens, mean, place }) => {
        const most = Math.max(...mean);
        return h("p", { class: "flies-line" }, tokens.map((/** @type {any} */ token, /** @type {number} */ i) => {
          const background = colours.sequential(mean[i] / most);
          return h("span", { class: `chip${i === place ? " flies-word" : ""}`, title: number(mean[i], 3), style: { background: css(background), color: inkOn(background) } }, tokenLabel(token), h("small", {}, number(mean[i], 2)));
        }));
      }));
    }
  },
};
