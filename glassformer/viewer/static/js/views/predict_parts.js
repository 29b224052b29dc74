// @ts-check
// What the parts of Predict share: tokens to choose from, bars, and the sliders of the filters.

import { percent } from "../arrays.js";
import { fill, h, slider } from "../dom.js";
import { headKind } from "../state.js";
import { defaultToken, visibleText } from "../tokens.js";

/** @typedef {import("../types.js").Ctx} Ctx */
/** @typedef {import("../types.js").State} State */
/** @typedef {import("../types.js").Token} Token */
/** @typedef {{element: HTMLElement, update: (state: State, changed: Set<string>) => void, destroy?: () => void}} Part */

/**
 * The stack whose tokens are predicted.
 * @param {import("../types.js").Model} model
 * @returns {"encoder" | "decoder"}
 */
export function predictedStack(model) {
  return model.stacks.decoder ? "decoder" : "encoder";
}

/**
 * The position that is looked at: the pinned token; else the one before the last word of a translation, the last of a
 * text that goes on, or the first masked one of an encoder.
 * @param {Ctx} ctx
 * @param {State} state
 * @param {Token[]} tokens
 * @param {Token[]} [expected] what an encoder-decoder should predict at each position
 */
export function positionOf(ctx, state, tokens, expected) {
  const stack = predictedStack(ctx.model);
  const pinned = state.pins.at(-1);
  const mine = stack === "encoder" || state.kind !== "encoder";
  if (mine && pinned !== undefined && pinned < tokens.length) return pinned;
  if (stack === "decoder") return defaultToken(tokens, stack, expected);
  const mask = tokens.findIndex((token) => isMask(ctx, token));
  return mask >= 0 ? mask : Math.max(0, tokens.findIndex((token) => !token.special));
}

/**
 * @param {Ctx} ctx
 * @param {Token} token
 */
export function isMask(ctx, token) {
  return token.special && token.text === maskText(ctx);
}

/** @param {Ctx} ctx */
export function maskText(ctx) {
  return /** @type {any} */ (ctx.model).mask ?? "[MASK]";
}

/**
 * Whether the head is about two texts and there is only one.
 * @param {Ctx} ctx
 */
export function lacksPair(ctx) {
  return headKind(ctx.model) === "pair" && ctx.state().text_b === null;
}

/**
 * Tokens as a row of buttons, of which one is chosen.
 * @param {Ctx} ctx
 * @param {string} label
 */
export function tokenRow(ctx, label) {
  const element = h("div", { class: "predict-tokens", role: "radiogroup", "aria-label": label });
  const choose = (/** @type {number} */ index) => {
    const state = ctx.state();
    const kind = state.kind === "encoder" && ctx.model.stacks.decoder ? "decoder" : state.kind;
    ctx.select({ kind, pins: [index] });
  };
  element.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const count = element.children.length;
    if (!step || !count) return;
    event.preventDefault();
    event.stopPropagation();
    const at = Number(/** @type {HTMLElement | null} */ (element.querySelector('[aria-checked="true"]'))?.dataset.index ?? 0);
    choose((at + step + count) % count);
  });
  return {
    element,
    /** @param {Token[]} tokens @param {number} chosen */
    show(tokens, chosen) {
      const had = element.contains(document.activeElement);
      const buttons = tokens.map((token, index) =>
        h(
          "button",
          {
            type: "button", role: "radio", class: `flow-token${token.special ? " special" : ""}`, "aria-checked": String(index === chosen),
            tabindex: index === chosen ? 0 : -1, "data-index": index, onclick: () => choose(index),
          },
          visibleText(token.text),
        ),
      );
      fill(element, buttons);
      if (had) buttons[chosen]?.focus();
    },
  };
}

/**
 * A list of words with bars; a second bar shows what it was before.
 * @param {{text: string, share: number, before?: number, note?: string, struck?: boolean, actual?: boolean, id?: number, special?: boolean, fragment?: boolean}[]} rows
 * @param {string} label
 * @param {((row: number) => void) | null} [onPick]
 * @param {string} [pickLabel]
 */
export function bars(rows, label, onPick = null, pickLabel = "") {
  const most = Math.max(1e-9, ...rows.map((row) => Math.max(row.share, row.before ?? 0)));
  const list = h("ul", { class: "predict-bars", "aria-label": label });
  rows.forEach((row, index) => {
    const numbers = row.before === undefined ? percent(row.share) : `${percent(row.before)} → ${percent(row.share)}`;
    const track = h(
      "span",
      { class: "predict-track" },
      row.before === undefined ? null : h("span", { class: "predict-before", style: { width: `${(100 * row.before) / most}%` } }),
      h("span", { class: "predict-after", style: { width: `${(100 * row.share) / most}%` } }),
    );
    const name = h("span", { class: `predict-name token${row.special ? " special" : ""}` }, visibleText(row.text));
    const word = onPick && !row.special && !row.fragment ? h("button", { type: "button", class: "predict-pick", title: pickLabel, onclick: () => onPick(index) }, name) : name;
    list.append(
      h(
        "li",
        { class: `${row.struck ? "struck" : ""} ${row.actual ? "actual" : ""}`, "data-id": row.id },
        word, track, h("span", { class: "number predict-number" }, numbers), row.note ? h("span", { class: "note" }, row.note) : null,
      ),
    );
  });
  return list;
}

/**
 * Sliders for temperature, top-k, top-p and min-p, kept in the address.
 * @param {Ctx} ctx
 * @param {() => void} onInput while a slider moves
 */
export function filterSliders(ctx, onInput) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const current = read();
  function read() {
    const get = (/** @type {string} */ key, /** @type {number} */ fallback) => {
      const value = Number(ctx.setting(key, String(fallback)));
      return Number.isFinite(value) ? value : fallback;
    };
    return { t: get("t", 1), k: get("k", 0), p: get("p", 1), m: get("m", 0) };
  }
  /** @param {Partial<typeof current>} patch */
  const change = (patch) => {
    Object.assign(current, patch);
    onInput();
    clearTimeout(timer);
    const kept = { t: current.t === 1 ? null : current.t, k: current.k || null, p: current.p === 1 ? null : current.p, m: current.m || null };
    timer = setTimeout(() => ctx.set(kept), 200);
  };
  const off = ctx.t("off");
  const controls = {
    t: slider({ label: ctx.t("temperature"), min: 0, max: 2, step: 0.05, value: current.t, format: (value) => value.toFixed(2), onInput: (t) => change({ t }) }),
    k: slider({ label: "top-k", min: 0, max: 100, step: 1, value: current.k, format: (value) => (value ? String(value) : off), onInput: (k) => change({ k }) }),
    p: slider({ label: "top-p", min: 0.05, max: 1, step: 0.01, value: current.p, format: (value) => (value < 1 ? value.toFixed(2) : off), onInput: (p) => change({ p }) }),
    m: slider({ label: "min-p", min: 0, max: 0.5, step: 0.01, value: current.m, format: (value) => (value ? value.toFixed(2) : off), onInput: (m) => change({ m }) }),
  };
  for (const [key, control] of Object.entries(controls)) control.input.name = `filter-${key}`;
  const reset = h("button", { type: "button", class: "quiet small", onclick: () => {
    change({ t: 1, k: 0, p: 1, m: 0 });
    show();
  } }, ctx.t("reset"));
  function show() {
    for (const key of /** @type {(keyof typeof controls)[]} */ (Object.keys(controls))) controls[key].set(current[key]);
  }
  return {
    element: h("div", { class: "controls" }, Object.values(controls), reset),
    /** What the sliders say, as the filters take it. */
    get filters() {
      return { temperature: current.t, topK: current.k || null, topP: current.p < 1 ? current.p : null, minP: current.m || null };
    },
    /** Follow the address. */
    update() {
      clearTimeout(timer);
      Object.assign(current, read());
      show();
    },
  };
}
