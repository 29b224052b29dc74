// @ts-check
// What a model with another head predicts: masked words, labels of texts, labels of words, answers.

import { ApiError, whileCurrent } from "../api.js";
import { percent } from "../arrays.js";
import { fill, h } from "../dom.js";
import { visibleText } from "../tokens.js";
import { bars, lacksPair, maskText } from "./predict_parts.js";

/**
 * @param {import("../types.js").Ctx} ctx
 * @returns {import("./predict_parts.js").Part}
 */
export function fillPart(ctx) {
  const wordRow = h("p", { class: "predict-words", role: "group", "aria-label": ctx.t("hideWord") });
  const result = h("div", { class: "predict-fill" });
  const element = h("div", { class: "panel" }, h("p", { class: "note" }, ctx.t("fillAbout", { mask: maskText(ctx) })), wordRow, result);
  let run = 0;

  /** @param {import("../types.js").State} state */
  function drawWords(state) {
    const pieces = state.text.split(/(\s+)/);
    fill(
      wordRow,
      pieces.map((piece, index) => {
        if (!piece.trim()) return piece;
        const masked = piece.includes(maskText(ctx));
        const [, start, core, end] = /^(\W*)(.*?)(\W*)$/u.exec(piece) ?? ["", "", piece, ""];
        const hide = () => ctx.select({ text: pieces.map((other, i) => (i === index ? `${start}${maskText(ctx)}${end}` : other)).join("") });
        return h("button", { type: "button", class: "predict-word", disabled: masked || !core, title: ctx.t("hideThis", { word: piece }), onclick: hide }, piece);
      }),
    );
  }

  /** @param {import("../types.js").State} state */
  async function load(state) {
    const mine = ++run;
    drawWords(state);
    if (!state.text.includes(maskText(ctx))) {
      fill(result, h("p", { class: "note", "data-part": "hint" }, ctx.t("noBlank")));
      return;
    }
    const answer = await ctx.api("fill", {});
    if (mine !== run) return;
    fill(
      result,
      h("div", { class: "columns" }, answer.blanks.map((/** @type {any} */ blank, /** @type {number} */ index) =>
        h("div", { "data-blank": index }, h("h2", {}, ctx.t("blank", { n: index + 1 })), bars(blank.guesses.map((/** @type {any} */ guess) => ({ id: guess.id, text: guess.token, share: guess.probability })), ctx.t("blank", { n: index + 1 }))))),
      h("h2", {}, ctx.t("fillings")),
      h("ol", { class: "predict-fillings" }, answer.fillings.slice(0, 5).map((/** @type {any} */ filling) => h("li", {}, filling.text, " ", h("span", { class: "note number" }, percent(filling.probability))))),
    );
  }

  return {
    element,
    update(state) {
      void load(state);
    },
  };
}

/**
 * @param {import("../types.js").Ctx} ctx
 * @returns {import("./predict_parts.js").Part}
 */
export function labelsPart(ctx) {
  const element = h("div", { class: "predict-labels" });
  const { abilities } = ctx.model;
  let run = 0;

  async function load() {
    const mine = ++run;
    const asking = whileCurrent(ctx, () => mine === run);
    /** @type {HTMLElement[]} */
    const panels = [];
    if (lacksPair(ctx)) panels.push(h("div", { class: "panel" }, h("h2", {}, ctx.t("classes")), h("p", { class: "note" }, ctx.t("needsPair"))));
    else if (abilities.includes("classify")) {
      const answer = await asking.api("classify", {});
      const rows = answer.labels.map((/** @type {any} */ label) => ({ text: label.name, share: label.probability, note: `logit ${label.score.toFixed(2)}` }));
      panels.push(h("div", { class: "panel", "data-part": "classes" }, h("h2", {}, ctx.t("classes")), bars(rows, ctx.t("classes"))));
    }
    if (abilities.includes("tag")) panels.push(tagged(await asking.api("tag", {})));
    if (abilities.includes("answer")) panels.push(await answered(asking));
    if (mine === run) fill(element, panels);
  }

  /** @param {any} answer */
  function tagged(answer) {
    const { heads } = ctx.colours();
    const kinds = [...new Set((ctx.model.labels ?? []).map((/** @type {string} */ label) => label.replace(/^[BI]-/, "")).filter((/** @type {string} */ kind) => kind !== "O"))];
    const words = answer.words.map((/** @type {any} */ word) => {
      const kind = word.label.replace(/^[BI]-/, "");
      const place = kinds.indexOf(kind);
      const label = `${word.text}: ${word.label}, ${percent(word.probability)}`;
      return h(
        "span",
        { class: `predict-tagged${place < 0 ? "" : " named"}`, title: label, "aria-label": label, "data-label": word.label, style: place < 0 ? {} : { "--head": heads[place % 12] } },
        h("span", {}, word.text), h("span", { class: "predict-tag" }, place < 0 ? "" : word.label),
      );
    });
    const entities = answer.entities.map((/** @type {any} */ entity) => ({ text: `${entity.text} · ${entity.kind}`, share: entity.probability }));
    return h(
      "div",
      { class: "panel", "data-part": "tags" },
      h("h2", {}, ctx.t("tags")), h("p", { class: "predict-tags" }, words),
      h("h2", {}, ctx.t("entities")), entities.length ? bars(entities, ctx.t("entities")) : h("p", { class: "note" }, ctx.t("noEntities")),
    );
  }

  /** @param {import("../types.js").Ctx} asking */
  async function answered(asking) {
    const panel = h("div", { class: "panel" }, h("h2", {}, ctx.t("answers")));
    if (ctx.state().text_b === null) {
      panel.append(h("p", { class: "note" }, ctx.t("needsContext")));
      return panel;
    }
    try {
      const answer = await asking.api("answer", {});
      panel.append(bars(answer.answers.map((/** @type {any} */ each) => ({ text: visibleText(each.text), share: each.probability })), ctx.t("answers")));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
    }
    return panel;
  }

  return {
    element,
    update(_state, changed) {
      if (["text", "text_b", "target", "model", "ablate"].some((key) => changed.has(key)) || !element.children.length) void load();
    },
  };
}
