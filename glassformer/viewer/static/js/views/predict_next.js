// @ts-check
// The distribution of the next token, and what temperature, top-k, top-p and min-p leave of it.

import { topIndices } from "../arrays.js";
import { eachFrame, fill, h } from "../dom.js";
import { visibleText } from "../tokens.js";
import { NO_FILTERS, countLeft, entropyBits, probabilities, shape } from "./predict_filters.js";
import { bars, filterSliders, positionOf, predictedStack, tokenRow } from "./predict_parts.js";
import { readPrediction } from "./predict_read.js";

const SHOWN = 16;

/**
 * @param {import("../types.js").Ctx} ctx
 * @returns {import("./predict_parts.js").Part}
 */
export function nextPart(ctx) {
  const stack = predictedStack(ctx.model);
  const canExtend = Boolean(ctx.model.stacks.decoder) && ctx.page.mode !== "file"; // a file has answers to its own text only
  const row = tokenRow(ctx, ctx.t("position"));
  const sliders = filterSliders(ctx, eachFrame(() => draw()));
  const about = h("p", { class: "note" });
  const summary = h("p", { class: "predict-summary", "data-part": "summary" });
  const list = h("div", { "data-part": "bars" });
  const element = h("div", { class: "panel" }, row.element, about, sliders.element, summary, list);
  /** @type {import("./predict_read.js").Prediction | null} */
  let prediction = null;
  /** @type {import("../types.js").Token[]} */
  let tokens = [];
  /** @type {import("../types.js").Token[] | undefined} */
  let expected;
  let given = 0; // tokens before those of the target
  let run = 0;

  /** @param {import("../types.js").State} state */
  async function load(state) {
    const mine = ++run;
    const found = await ctx.api("tokens", {});
    if (mine !== run) return;
    tokens = found[stack] ?? [];
    given = found.given ?? 0;
    expected = found.expected;
    const position = positionOf(ctx, state, tokens, expected);
    row.show(tokens, position);
    const answer = await ctx.api("predict", { position });
    if (mine !== run) return;
    prediction = readPrediction(answer);
    const token = visibleText(tokens[position]?.text ?? "");
    const said = [ctx.t(prediction.next ? "nextAbout" : "hereAbout", { token, position })];
    if (prediction.next && canExtend) said.push(ctx.t("pick"));
    about.textContent = said.join(" ");
    draw();
  }

  function draw() {
    if (!prediction) return;
    const { logits, texts, actual } = prediction;
    const before = probabilities(logits);
    const scores = shape(logits, sliders.filters);
    const changed = JSON.stringify(sliders.filters) !== JSON.stringify(NO_FILTERS);
    const after = probabilities(scores);
    const order = topIndices(logits, SHOWN); // filters change no order
    if (actual !== null && !order.includes(actual)) order[order.length - 1] = actual;
    const rows = order.map((id) => ({
      id, text: texts.get(id) ?? `#${id}`, share: changed ? after[id] : before[id], before: changed ? before[id] : undefined, struck: scores[id] === -Infinity,
      special: prediction?.special.has(id), fragment: prediction?.fragments.has(id), actual: id === actual, note: id === actual ? ctx.t("actual") : "",
    }));
    summary.textContent = ctx.t("summary", {
      left: countLeft(scores).toLocaleString("en"), all: logits.length.toLocaleString("en"), before: entropyBits(before).toFixed(2), after: entropyBits(after).toFixed(2),
    });
    element.dataset.left = String(countLeft(scores));
    fill(list, bars(rows, ctx.t("distribution"), canExtend ? (index) => void extend(rows[index].id, rows[index].text) : null, ctx.t("append")));
  }

  /**
   * Continue the text after the chosen position with a token. Tokens may be parts of characters, so the model's own
   * tokenizer makes the text of them.
   * @param {number} id
   * @param {string} text
   */
  async function extend(id, text) {
    const mine = run;
    const state = ctx.state();
    const position = positionOf(ctx, state, tokens, expected);
    const target = Boolean(ctx.model.stacks.encoder);
    if (!target && position === tokens.length - 1) {
      ctx.select({ text: state.text + text, pins: [] });
      return;
    }
    const ids = tokens.slice(target ? given : 0, position + 1).map((token) => token.id);
    const whole = (await ctx.api("token_texts", { ids: [...ids, id] })).text.replaceAll("\ufffd", "");
    if (mine === run) ctx.select(target ? { target: whole, pins: [] } : { text: whole, pins: [] });
  }

  return {
    element,
    update(state, changed) {
      sliders.update();
      const asks = ["text", "text_b", "target", "model", "pins", "kind", "ablate", "view"].some((key) => changed.has(key));
      if (asks || !prediction) void load(state);
      else draw();
    },
  };
}
