// @ts-check
// Switch heads off with a click, and see what changes: the model's prediction before and after.

import { whileCurrent } from "../api.js";
import { percent, topIndices } from "../arrays.js";
import { fill, h } from "../dom.js";
import { headKind, kindsOf, sublayerOf } from "../state.js";
import { css, inkOn } from "../colour.js";
import { visibleText } from "../tokens.js";
import { distance, probabilities } from "./predict_filters.js";
import { bars, lacksPair, positionOf, predictedStack, tokenRow } from "./predict_parts.js";
import { readPrediction } from "./predict_read.js";

/** @typedef {[string, number, number]} Head */

/** @param {Head} head */
const nameOf = (head) => head.join("-");

/**
 * @param {import("../types.js").Ctx} ctx
 * @returns {import("./predict_parts.js").Part}
 */
export function ablatePart(ctx) {
  const stack = predictedStack(ctx.model);
  const isLm = headKind(ctx.model) === "lm";
  const fixed = ctx.page.mode === "file"; // which holds the answers of the whole model only
  const row = tokenRow(ctx, ctx.t("position"));
  const grid = h("div", { class: "scroll" });
  const clear = h("button", { type: "button", class: "quiet small", onclick: () => ctx.select({ ablate: [] }) }, ctx.t("clear"));
  const probe = h("button", { type: "button", class: "quiet small", onclick: () => void tryAll() }, ctx.t("tryAll"));
  const result = h("div", { class: "panel", "data-part": "change" });
  const note = h("p", { class: "note" });
  const element = h(
    "div",
    { class: "columns" },
    h("div", { class: "panel" }, h("h2", {}, ctx.t("heads")), h("p", { class: "note" }, ctx.t(fixed ? "ablateFile" : "ablateAbout"), kindsOf(ctx.model).length > 1 ? ` ${ctx.t("ablateKind")}` : null), isLm ? row.element : null, grid, fixed ? null : h("div", { class: "row" }, clear, isLm ? probe : null), note),
    result,
  );
  /** @type {Map<string, number>} */
  let effects = new Map();
  let effectsFor = "";
  let run = 0;
  let probing = 0; // which of the probes is the last one

  /** @param {import("../types.js").State} state */
  function drawGrid(state) {
    const sublayer = sublayerOf(state.kind);
    const shape = /** @type {any} */ (ctx.model.stacks)[state.kind === "encoder" ? "encoder" : "decoder"];
    const off = new Set(state.ablate.map(nameOf));
    const colours = ctx.colours();
    const most = Math.max(1e-9, ...effects.values());
    const focused = grid.contains(document.activeElement) ? /** @type {HTMLElement} */ (document.activeElement).dataset.head : null;
    const rows = Array.from({ length: shape.layers }, (_, layer) =>
      h(
        "tr",
        {},
        h("th", { scope: "row" }, ctx.t("layerN", { n: layer })),
        Array.from({ length: shape.heads }, (__, head) => {
          /** @type {Head} */
          const mine = [sublayer, layer, head];
          const key = nameOf(mine);
          const effect = effects.get(key);
          const colour = effect === undefined ? null : colours.sequential(effect / most);
          const style = colour && !off.has(key) ? { background: css(colour), color: inkOn(colour) } : {};
          const label = ctx.t("headLabel", { layer, head }) + (effect === undefined ? "" : `, ${effect.toFixed(3)} bit`);
          return h("td", {}, h("button", { type: "button", class: "predict-head", "aria-pressed": String(off.has(key)), "aria-label": label, title: label, "data-head": key, disabled: fixed, style, onclick: () => toggle(mine) }, off.has(key) ? "×" : String(head)));
        }),
      ),
    );
    fill(grid, h("table", { class: "predict-grid", "aria-label": ctx.t("heads") }, h("tbody", {}, rows)));
    if (focused) /** @type {HTMLElement | null} */ (grid.querySelector(`[data-head="${CSS.escape(focused)}"]`))?.focus();
    clear.disabled = !state.ablate.length;
  }

  grid.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    const key = /** @type {HTMLElement} */ (event.target).dataset.head;
    if (!move || !key) return;
    event.preventDefault();
    event.stopPropagation();
    const [name, layer, head] = key.split("-");
    const next = `${name}-${Number(layer) + move[0]}-${Number(head) + move[1]}`;
    /** @type {HTMLElement | null} */ (grid.querySelector(`[data-head="${CSS.escape(next)}"]`))?.focus();
  });

  /** @param {Head} head */
  function toggle(head) {
    const { ablate } = ctx.state();
    const rest = ablate.filter((other) => nameOf(other) !== nameOf(head));
    ctx.select({ ablate: rest.length < ablate.length ? rest : [...ablate, head] });
  }

  /** @param {import("../types.js").State} state */
  async function load(state) {
    const mine = ++run;
    const asking = whileCurrent(ctx, () => mine === run);
    const subject = JSON.stringify([state.text, state.text_b, state.target, state.kind, state.pins.at(-1)]);
    if (subject !== effectsFor) {
      effectsFor = subject;
      effects = new Map();
      stopProbing();
    }
    drawGrid(state);
    if (isLm) {
      const found = await asking.api("tokens", { input: { ablate: [] } });
      const tokens = found[stack] ?? [];
      const position = positionOf(ctx, state, tokens, found.expected);
      row.show(tokens, position);
      const target = state.ablate.length ? targetOf(found) : {};
      const before = await asking.api("predict", { position, input: { ablate: [], ...target } }, { slot: "before" });
      const after = state.ablate.length ? await asking.api("predict", { position, input: target }, { slot: "after" }) : before;
      if (mine === run) drawWords(state, before, after);
      return;
    }
    const query = ctx.model.abilities.includes("classify") ? "classify" : ctx.model.abilities.includes("tag") ? "tag" : null;
    if (!query) return;
    if (lacksPair(ctx)) {
      fill(result, h("h2", {}, ctx.t("change")), h("p", { class: "note" }, ctx.t("needsPair")));
      return;
    }
    const before = await asking.api(query, { input: { ablate: [] } }, { slot: "before" });
    const after = await asking.api(query, {}, { slot: "after" });
    if (mine === run) drawLabels(state, before, after);
  }

  /**
   * The target that both runs read, token by token: an ablated model would write another one.
   * @param {any} found the tokens of the whole model
   */
  function targetOf(found) {
    if (!ctx.model.stacks.encoder || !ctx.model.stacks.decoder) return {};
    return { target: null, target_ids: found.decoder.slice(found.given).map((/** @type {import("../types.js").Token} */ token) => token.id) };
  }

  /** @param {import("../types.js").State} state @param {any} first @param {any} second */
  function drawWords(state, first, second) {
    const before = readPrediction(first);
    const after = readPrediction(second);
    const old = probabilities(before.logits);
    const now = probabilities(after.logits);
    const [best, bestNow] = [topIndices(old, 10), topIndices(now, 10)];
    const order = [...new Set([...best, ...bestNow])].sort((a, b) => Math.max(old[b], now[b]) - Math.max(old[a], now[a])).slice(0, 16);
    const text = (/** @type {number} */ id) => before.texts.get(id) ?? after.texts.get(id) ?? `#${id}`;
    const rows = order.map((id) => ({ id, text: text(id), share: now[id], before: old[id], note: id === before.actual ? ctx.t("actual") : "", actual: id === before.actual }));
    const { kl, total } = distance(old, now);
    result.dataset.kl = kl.toFixed(6);
    const [[top], [topNow]] = [best, bestNow];
    const said = top === topNow ? ctx.t("sameWord", { word: visibleText(text(top)) }) : ctx.t("newWord", { before: visibleText(text(top)), after: visibleText(text(topNow)) });
    fill(
      result,
      h("h2", {}, ctx.t("change")),
      state.ablate.length ? h("p", {}, said, " ", h("span", { class: "note" }, ctx.t("distance", { kl: kl.toFixed(3), total: percent(total) }))) : fixed ? null : h("p", { class: "note" }, ctx.t("nothingOff")),
      bars(rows, ctx.t("change")),
    );
  }

  /** @param {import("../types.js").State} state @param {any} before @param {any} after */
  function drawLabels(state, before, after) {
    const pairs = before.labels
      ? before.labels.map((/** @type {any} */ label) => ({ text: label.name, before: label.probability, share: after.labels.find((/** @type {any} */ other) => other.name === label.name)?.probability ?? 0 }))
      : before.words.map((/** @type {any} */ word, /** @type {number} */ i) => {
          const other = after.words[i];
          return { text: word.text, before: word.probability, share: other.probability, note: word.label === other.label ? word.label : `${word.label} → ${other.label}`, actual: word.label !== other.label };
        });
    fill(result, h("h2", {}, ctx.t("change")), state.ablate.length || fixed ? null : h("p", { class: "note" }, ctx.t("nothingOff")), bars(pairs, ctx.t("change")));
  }

  function stopProbing() {
    probing += 1;
    probe.disabled = false;
    note.textContent = "";
  }

  /** Switch off each head of the chosen layer in turn, and colour it by what that changes. */
  async function tryAll() {
    const state = ctx.state();
    const { kind, layer, text, text_b, target } = state;
    const mine = ++probing;
    const into = effects;
    const asking = whileCurrent(ctx, () => mine === probing);
    const input = { text, text_b, target, ablate: [] }; // of this moment: the reader may go on typing
    const heads = /** @type {any} */ (ctx.model.stacks)[kind === "encoder" ? "encoder" : "decoder"].heads;
    probe.disabled = true;
    note.textContent = ctx.t("trying", { layer });
    try {
      const found = await asking.api("tokens", { input }, { slot: "try tokens" });
      const position = positionOf(ctx, state, found[stack] ?? [], found.expected);
      const probs = async (/** @type {Head[]} */ ablate) =>
        probabilities(readPrediction(await asking.api("predict", { position, input: { ...input, ...targetOf(found), ablate } }, { slot: "try" })).logits);
      const base = await probs([]);
      for (let head = 0; head < heads; head++) {
        /** @type {Head} */
        const one = [sublayerOf(kind), layer, head];
        const without = await probs([one]);
        if (mine !== probing) return;
        into.set(nameOf(one), Math.max(0, distance(base, without).kl));
        drawGrid(ctx.state());
      }
      note.textContent = ctx.t("tried", { layer });
      probe.disabled = false;
    } catch (error) {
      if (mine === probing) stopProbing();
      throw error;
    }
  }

  return {
    element,
    update(state) {
      void load(state);
    },
    destroy() {
      run += 1;
      stopProbing();
    },
  };
}
