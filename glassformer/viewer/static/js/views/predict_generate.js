// @ts-check
// Generation step by step: what was chosen, what else was probable, and where the chosen head looked.

import { whileCurrent } from "../api.js";
import { decode, percent } from "../arrays.js";
import { css, inkOn } from "../colour.js";
import { fill, h, reducedMotion, segmented, slider } from "../dom.js";
import { headOf } from "../state.js";
import { visibleText } from "../tokens.js";
import { bars, filterSliders } from "./predict_parts.js";

/**
 * @param {import("../types.js").Ctx} ctx
 * @returns {import("./predict_parts.js").Part}
 */
export function generatePart(ctx) {
  const sliders = filterSliders(ctx, () => {});
  const mode = segmented([["greedy", ctx.t("greedy")], ["sample", ctx.t("sample")]], ctx.setting("mode", "greedy"), (value) => ctx.set({ mode: value === "greedy" ? null : value }), ctx.t("mode"));
  const steps = slider({ label: ctx.t("steps"), min: 1, max: 40, step: 1, value: Number(ctx.setting("n", "16")), onInput: (value) => later({ n: value }) });
  const seed = h("input", { type: "number", min: 0, max: 999999, step: 1, name: "seed", id: "predict-seed" });
  seed.value = ctx.setting("seed", "0");
  seed.addEventListener("change", () => ctx.set({ seed: Math.max(0, Math.floor(Number(seed.value) || 0)) }));
  const buttons = {
    back: h("button", { type: "button", class: "quiet", onclick: () => go(step - 1) }, ctx.t("back")),
    next: h("button", { type: "button", class: "primary", onclick: () => go(step + 1) }, ctx.t("next")),
    play: h("button", { type: "button", class: "quiet", onclick: () => play() }, ctx.t("play")),
    start: h("button", { type: "button", class: "quiet", onclick: () => go(-1) }, ctx.t("start")),
    end: h("button", { type: "button", class: "quiet", onclick: () => go(Infinity) }, ctx.t("end")),
  };
  const text = h("p", { class: "predict-text", "data-part": "text" });
  const status = h("p", { class: "note", "data-part": "status", "aria-live": "polite" });
  const attention = h("div", { class: "panel" });
  const choices = h("div", { class: "panel" });
  const sampling = h("div", {}, sliders.element, h("div", { class: "controls" }, h("div", { class: "field" }, h("label", { for: "predict-seed" }, ctx.t("seed")), seed)));
  const element = h(
    "div",
    {},
    h("div", { class: "panel" },
      h("div", { class: "controls" }, mode, steps, h("div", { class: "row" }, Object.values(buttons))),
      sampling, text, status),
    h("div", { class: "columns predict-below" }, choices, attention),
  );
  /** @type {any} */
  let answer = null;
  let step = -1;
  let run = 0;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let waiting;

  /** @param {Record<string, number>} patch */
  function later(patch) {
    clearTimeout(waiting);
    waiting = setTimeout(() => ctx.set(patch), 200);
  }

  /** @param {import("../types.js").State} state */
  async function load(state) {
    const mine = ++run;
    clearTimeout(timer);
    const { temperature, topK, topP, minP } = sliders.filters;
    const greedy = ctx.setting("mode", "greedy") === "greedy" || temperature === 0;
    const settings = {
      max_new_tokens: Number(ctx.setting("n", "16")), greedy, temperature: greedy ? 1 : temperature, top_k: greedy ? null : topK,
      top_p: greedy ? null : topP, min_p: greedy ? null : minP, seed: greedy ? 0 : Number(ctx.setting("seed", "0")),
    };
    const kind = state.kind === "encoder" ? "decoder" : state.kind; // an encoder may be deeper, and wider in heads
    const stack = /** @type {any} */ (ctx.model.stacks.decoder);
    const asking = whileCurrent(ctx, () => mine === run);
    const layer = Math.min(state.layer, stack.layers - 1);
    const head = Math.min(headOf(state), stack.heads - 1);
    const found = await asking.api("generate", { settings, kind, layer, head });
    const tokens = await asking.api("tokens", {});
    if (mine !== run) return;
    const again = answer && JSON.stringify(found.given) === JSON.stringify(answer.given) && answer.source.length === (tokens.encoder ?? []).length;
    const same = answer && JSON.stringify(found.steps.map((/** @type {any} */ each) => each.id)) === JSON.stringify(answer.steps.map((/** @type {any} */ each) => each.id));
    answer = { ...found, source: tokens.encoder ?? [], layer, head };
    if (!same) step = again ? Math.min(step, found.steps.length - 1) : 0; // a new text begins with its first step
    draw();
  }

  /** @param {number} next */
  function go(next) {
    clearTimeout(timer);
    if (!answer) return;
    step = Math.max(-1, Math.min(answer.steps.length - 1, next));
    draw();
    const said = answer.steps[step];
    if (said) ctx.announce(`${visibleText(said.text)}, ${percent(said.prob)}`);
  }

  function play() {
    if (!answer) return;
    if (step >= answer.steps.length - 1) step = -1;
    const tick = () => {
      if (step >= answer.steps.length - 1) return;
      step += 1;
      draw();
      timer = setTimeout(tick, reducedMotion() ? 900 : 650);
    };
    clearTimeout(timer);
    tick();
  }

  function draw() {
    if (!answer) return;
    const { sequential } = ctx.colours();
    const given = answer.given.map((/** @type {any} */ token) => h("span", { class: "predict-given token" }, visibleText(token.text)));
    const made = answer.steps.slice(0, step + 1).map((/** @type {any} */ each, /** @type {number} */ index) => {
      const colour = sequential(0.15 + 0.7 * each.prob);
      return h(
        "button",
        {
          type: "button", class: `predict-made token${each.special ? " special" : ""}`, "data-step": index, "aria-pressed": String(index === step),
          style: { background: css(colour), color: inkOn(colour) }, title: percent(each.prob), onclick: () => go(index),
        },
        visibleText(each.text),
      );
    });
    fill(text, given, made);
    buttons.back.disabled = step < 0;
    buttons.start.disabled = step < 0;
    buttons.next.disabled = step >= answer.steps.length - 1;
    buttons.end.disabled = buttons.next.disabled;
    const total = answer.steps.length;
    status.textContent = step + 1 < total ? ctx.t("status", { step: step + 1, total }) : ctx.t(`ended.${answer.ended}`, { total });
    drawStep();
  }

  function drawStep() {
    const now = answer.steps[step];
    if (!now) {
      fill(choices, h("h2", {}, ctx.t("choices")), h("p", { class: "note" }, ctx.t("pressNext")));
      fill(attention);
      attention.hidden = true;
      return;
    }
    const rows = now.top.map((/** @type {any} */ each) => ({ id: each.id, text: each.text, share: each.prob, actual: each.id === now.id, note: each.id === now.id ? ctx.t("chosen") : "" }));
    const facts = ctx.t("stepFacts", { prob: percent(now.prob), chosen: percent(now.chosen_prob), entropy: (now.entropy / Math.LN2).toFixed(2) });
    fill(choices, h("h2", {}, ctx.t("choicesOf", { token: visibleText(now.text), step: step + 1 })), h("p", { class: "note" }, facts), bars(rows, ctx.t("choices")));
    attention.hidden = !now.attention;
    if (now.attention) fill(attention, attentionRow(now));
  }

  /** @param {any} now */
  function attentionRow(now) {
    const weights = decode(now.attention).data;
    const { sequential } = ctx.colours();
    const before = [...answer.given, ...answer.steps.slice(0, step)];
    const keys = now.keys === "encoder" ? answer.source : before;
    let most = 1e-9;
    for (let j = 0; j < weights.length; j++) most = Math.max(most, weights[j]);
    const cells = keys.slice(0, weights.length).map((/** @type {any} */ token, /** @type {number} */ j) => {
      const colour = sequential(weights[j] / most);
      const label = `${visibleText(token.text)}: ${percent(weights[j])}`;
      return h("span", { class: "predict-key token", "data-key": j, "data-weight": weights[j].toFixed(6), style: { background: css(colour), color: inkOn(colour) }, title: label, "aria-label": label }, visibleText(token.text));
    });
    const title = ctx.t(now.keys === "encoder" ? "lookedSource" : "looked", { layer: answer.layer, head: answer.head, token: visibleText(now.text) });
    return [h("h2", {}, title), h("p", { class: "predict-keys", role: "list" }, cells), h("p", { class: "note" }, ctx.t("lookedAbout"))];
  }

  return {
    element,
    update(state) {
      sliders.update();
      mode.mark(ctx.setting("mode", "greedy"));
      steps.set(Number(ctx.setting("n", "16")));
      seed.value = ctx.setting("seed", "0");
      sampling.hidden = ctx.setting("mode", "greedy") === "greedy";
      void load(state);
    },
    destroy() {
      run += 1;
      clearTimeout(timer);
      clearTimeout(waiting);
    },
  };
}
