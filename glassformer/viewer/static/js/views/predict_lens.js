// @ts-check
// Logit lens: what the output head would say after each layer.

import { at, decode, percent } from "../arrays.js";
import { css, inkOn } from "../colour.js";
import { fill, h } from "../dom.js";
import { visibleText } from "../tokens.js";
import { hideTip, showTip } from "../tooltip.js";
import { around, WHOLE } from "./flow_parts.js";
import { positionOf, predictedStack, tokenRow } from "./predict_parts.js";

const BLOCK = 32; // positions of a longer text that are asked for at a time: the head has to read all of them

/**
 * Which positions to ask for so that some are there: null is all of them.
 * @param {number} count
 * @param {{first: number, last: number}} shown
 * @returns {([number, number] | null)[]}
 */
export function lensBlocks(count, { first, last }) {
  if (count <= WHOLE) return [null];
  /** @type {[number, number][]} */
  const blocks = [];
  for (let start = Math.floor(first / BLOCK) * BLOCK; start < last; start += BLOCK) blocks.push([start, Math.min(start + BLOCK, count)]);
  return blocks;
}

/**
 * @param {import("../types.js").Ctx} ctx
 * @returns {import("./predict_parts.js").Part}
 */
export function lensPart(ctx) {
  const stack = predictedStack(ctx.model);
  const row = tokenRow(ctx, ctx.t("position"));
  const frame = h("div", { class: "scroll" });
  const detail = h("p", { class: "note", "data-part": "lens-detail", "aria-live": "polite" });
  const element = h("div", { class: "panel" }, h("p", { class: "note" }, ctx.t("lensAbout")), row.element, frame, detail);
  let run = 0;

  /** @param {import("../types.js").State} state */
  async function load(state) {
    const mine = ++run;
    const found = await ctx.api("tokens", {});
    if (mine !== run) return;
    const tokens = found[stack] ?? [];
    const position = positionOf(ctx, state, tokens, found.expected);
    const places = Math.max(2, Math.floor(((element.clientWidth || 900) - 130) / 72));
    const shown = around(tokens.length, position, places);
    const blocks = lensBlocks(tokens.length, shown);
    const answers = await Promise.all(blocks.map((rows, i) => ctx.api("lens", { top: 5, rows }, { slot: `lens ${i}` })));
    if (mine !== run) return;
    row.show(tokens, position);
    draw(tokens, position, shown, answers.map((answer, i) => ({ start: blocks[i]?.[0] ?? 0, texts: answer.texts, ids: decode(answer.ids), probs: decode(answer.probs) })));
  }

  /**
   * @param {import("../types.js").Token[]} tokens
   * @param {number} position
   * @param {{first: number, last: number}} shown
   * @param {{start: number, texts: Record<string, string>, ids: any, probs: any}[]} blocks
   */
  function draw(tokens, position, shown, blocks) {
    const layers = blocks[0].ids.shape[0];
    const columns = Array.from({ length: shown.last - shown.first }, (_, i) => shown.first + i);
    const { sequential } = ctx.colours();
    const top = (/** @type {number} */ layer, /** @type {number} */ token) => {
      const { start, texts, ids, probs } = blocks[blocks.length > 1 ? Math.floor(token / BLOCK) - Math.floor(shown.first / BLOCK) : 0];
      return Array.from(at(ids, layer, token - start).data, (id, i) => ({ text: visibleText(String(texts[id] ?? id)), prob: at(probs, layer, token - start).data[i] }));
    };
    const name = (/** @type {number} */ layer) => (layer === 0 ? ctx.t("embedding") : ctx.t("afterLayer", { n: layer - 1 }));
    const rows = Array.from({ length: layers }, (_, layer) =>
      h(
        "tr",
        {},
        h("th", { scope: "row" }, name(layer)),
        columns.map((token) => {
          const best = top(layer, token);
          const colour = sequential(best[0].prob);
          const say = `${name(layer)}, ${visibleText(tokens[token].text)}: ${best.map((word) => `${word.text} ${percent(word.prob)}`).join(", ")}`;
          const cell = h(
            "td",
            {
              tabindex: token === position && layer === layers - 1 ? 0 : -1, "data-layer": layer, "data-token": token, "aria-label": say,
              class: token === position ? "chosen token" : "token", style: { background: css(colour), color: inkOn(colour) },
            },
            best[0].text,
          );
          cell.addEventListener("pointermove", (event) => showTip(event.clientX, event.clientY, say));
          cell.addEventListener("pointerleave", hideTip);
          cell.addEventListener("focus", () => (detail.textContent = say));
          cell.addEventListener("click", () => cell.focus());
          return cell;
        }),
      ),
    );
    const head = h("tr", {}, h("th", { scope: "col" }, ""), columns.map((token) => h("th", { scope: "col", class: "token" }, visibleText(tokens[token].text))));
    fill(frame, h("table", { class: "predict-lens", "aria-label": ctx.t("lens") }, h("thead", {}, head), h("tbody", {}, rows)));
    detail.textContent = top(layers - 1, position).map((word) => `${word.text} ${percent(word.prob)}`).join(", ");
  }

  frame.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    const cell = /** @type {HTMLElement} */ (event.target);
    if (!move || cell.dataset.layer === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    const to = `td[data-layer="${Number(cell.dataset.layer) + move[0]}"][data-token="${Number(cell.dataset.token) + move[1]}"]`;
    /** @type {HTMLElement | null} */ (frame.querySelector(to))?.focus();
  });

  return {
    element,
    update(state) {
      void load(state);
    },
    destroy: hideTip,
  };
}
