// @ts-check
// Masks: who may see whom in the chosen layer, and what each step of decoding sees.

import { at, decode } from "../arrays.js";
import { heatMap, rgbOf } from "../canvas.js";
import { debounce, fill, h, slider } from "../dom.js";
import words from "../i18n/masks.js";
import { headKind, headOf, stackOf } from "../state.js";
import { labelsOf, sides, visibleText } from "../tokens.js";

const STEPS = 40; // rows of the table of steps
const COLUMNS = 60; // tokens of a row, more than it has steps: those beyond are hidden in every row

/**
 * A category's colour, for the picture and its legend.
 * @param {import("../types.js").Colours} colours
 * @param {string} reason
 * @returns {[number, number, number]}
 */
function colourOf(colours, reason) {
  if (reason === "allowed") return rgbOf(colours.accent);
  const ground = rgbOf(colours.masked);
  const marks = { window: colours.heads[5], padding: colours.heads[1], "block-sparse": colours.heads[9] };
  const mark = marks[/** @type {keyof typeof marks} */ (reason)];
  if (!mark) return ground;
  const top = rgbOf(mark);
  return /** @type {[number, number, number]} */ (ground.map((value, i) => Math.round(value * 0.62 + top[i] * 0.38)));
}

/**
 * @param {HTMLElement} root
 * @param {import("../types.js").Ctx} ctx
 */
function mount(root, ctx) {
  const change = debounce((/** @type {number} */ value) => ctx.set({ padding: value || null }), 120);
  const padding = slider({ label: ctx.t("padding"), min: 0, max: 8, step: 1, value: Number(ctx.setting("padding", "0")), onInput: change });
  const title = h("h2", {});
  const about = h("div", { class: "masks-about" });
  const legendLine = h("p", { class: "masks-legend" });
  const summary = h("p", { class: "note", "data-part": "summary" });
  const holder = h("div", {});
  const steps = h("div", { class: "panel" });
  root.append(
    h("div", { class: "controls" }, padding, h("span", { class: "note" }, ctx.t("paddingAbout"))),
    h("div", { class: "columns masks-top" }, h("div", { class: "panel masks-picture" }, title, holder), h("div", { class: "panel" }, about, legendLine, summary)),
    steps,
  );
  /** @type {ReturnType<typeof heatMap> | null} */
  let map = null;
  let run = 0;

  /** @param {import("../types.js").State} state */
  async function drawMask(state) {
    const mine = ++run;
    const pad = Number(ctx.setting("padding", "0"));
    const [tokens, answer] = await Promise.all([
      ctx.api("tokens", {}),
      ctx.api("mask", { kind: state.kind, layer: state.layer, head: headOf(state), padding: pad }),
    ]);
    if (mine !== run) return;
    const { queries, keys } = sides(state.kind, tokens);
    const pads = Array.from({ length: pad }, () => "[PAD]");
    const rowLabels = [...labelsOf(queries), ...(state.kind === "cross" ? [] : pads)];
    const columnLabels = [...labelsOf(keys), ...pads];
    const reasons = answer.reasons;
    const reason = decode(answer.reason);
    const counts = answer.counts ? decode(answer.counts) : null;
    const names = (/** @type {number} */ row, /** @type {number} */ column) => reasons[at(reason, row).data[column]];
    const colours = ctx.colours();
    /** @type {[number, number, number][]} */
    const palette = reasons.map((/** @type {string} */ name) => colourOf(colours, name));
    const describe = (/** @type {{row: number, column: number}} */ cell) => why(answer, names(cell.row, cell.column), cell, rowLabels, columnLabels, counts);
    const totals = count(reason.data, reasons.length);
    const all = answer.queries * answer.keys;
    const share = all ? ((100 * totals[0]) / all).toFixed(0) : "0";
    const label = ctx.t("maskLabel", { queries: answer.queries, keys: answer.keys, open: totals[0], all });
    const options = {
      rows: answer.queries, columns: answer.keys, colours, label, rowLabels, columnLabels, describe, announce: ctx.announce,
      // Later tokens are drawn as masked, with a stroke through them; other reasons have a colour of their own.
      value: (/** @type {number} */ row, /** @type {number} */ column) => {
        const index = at(reason, row).data[column];
        return reasons[index] === "causal" ? null : index;
      },
      colour: (/** @type {number} */ value) => palette[value],
      onSelect: (/** @type {{row: number}} */ cell) => ctx.select({ pins: [cell.row] }),
      marked: state.pins.length && state.pins[0] < answer.queries ? { row: state.pins[0] } : null,
      minCell: 4, maxCell: 30, maxHeight: 560, rowAxis: { name: ctx.t("queries") }, columnAxis: { name: ctx.t("keys") },
    };
    if (map) map.update(options);
    else {
      map = heatMap(options);
      fill(holder, map.element);
      map.update({});
    }
    title.textContent = ctx.t("mask", { layer: state.layer });
    summary.textContent = ctx.t("open", { open: totals[0], all, share });
    fill(about, explanations(state, answer, totals).map((text) => h("p", {}, text)), h("p", { class: "note" }, ctx.t("rows")));
    fill(legendLine, reasons.map((/** @type {string} */ name, /** @type {number} */ index) => (totals[index] ? legendOf(name, palette[index], totals[index]) : null)));
  }

  /** @param {string} name @param {[number, number, number]} colour @param {number} total */
  function legendOf(name, colour, total) {
    const swatch = h("span", { class: "masks-swatch", style: { background: `rgb(${colour.join(", ")})` }, "aria-hidden": "true" });
    return h("span", { class: "masks-entry", "data-reason": name, "data-count": total }, swatch, `${ctx.t(name === "padding" ? "padded" : name)} · ${total}`);
  }

  /**
   * @param {any} answer
   * @param {string} reason
   * @param {{row: number, column: number}} cell
   * @param {string[]} rowLabels
   * @param {string[]} columnLabels
   * @param {import("../arrays.js").Nd | null} counts
   */
  function why(answer, reason, { row, column }, rowLabels, columnLabels, counts) {
    const block = answer.block ?? 1;
    const text = ctx.t(reason === "block-sparse" && counts ? "why.block-sparse.reference" : `why.${reason}`, {
      query: rowLabels[row], key: columnLabels[column], i: row, j: column, distance: Math.abs(row - column), window: answer.window ?? "",
      bi: Math.floor(row / block), bj: Math.floor(column / block),
    });
    const times = counts ? at(counts, row).data[column] : 1;
    return times > 1 ? `${text} ${ctx.t("count", { n: times })}` : text;
  }

  /**
   * @param {import("../types.js").State} state
   * @param {any} answer
   * @param {number[]} totals
   */
  function explanations(state, answer, totals) {
    if (state.kind === "cross") return [ctx.t("kind.cross")];
    const texts = [ctx.t(answer.causal ? "kind.causal" : "kind.full")];
    if (answer.window) {
      if (!answer.causal) texts.pop();
      texts.push(ctx.t(answer.causal ? "kind.window" : "kind.windowBoth", { n: answer.window }));
    }
    if (answer.block) {
      texts.pop();
      const random = answer.random ?? 0;
      texts.push(ctx.t(answer.counts && random ? "kind.blockReference" : "kind.block", { block: answer.block, random, times: 1 + random }));
      const hidden = totals[answer.reasons.indexOf("block-sparse")];
      if (!hidden) texts.push(ctx.t("kind.blockShort", { length: (5 + 2 * (answer.random ?? 0)) * answer.block }));
      else if (answer.per_head) texts.push(ctx.t("perHead", { head: headOf(state) }));
    }
    return texts;
  }

  async function drawSteps() {
    if (!ctx.model.stacks.decoder) {
      fill(steps, h("h2", {}, ctx.t("steps")), h("p", {}, ctx.t("encoderOnly")));
      return;
    }
    if (headKind(ctx.model) !== "lm") {
      fill(steps, h("h2", {}, ctx.t("steps")), h("p", {}, ctx.t("noTokens")));
      return;
    }
    const [tokens, answer] = await Promise.all([ctx.api("tokens", {}, { slot: "tokens of steps" }), ctx.api("steps", {})]);
    const list = answer.tokens;
    const rows = list.slice(0, STEPS).map((/** @type {any} */ _, /** @type {number} */ step) => stepRow(answer, step));
    const source = tokens.encoder
      ? h("p", { class: "masks-source" }, h("span", { class: "note" }, ctx.t("source")), " ", tokens.encoder.map((/** @type {any} */ token) => chip(token)))
      : null;
    fill(
      steps,
      h("h2", {}, ctx.t("steps")),
      h("p", { class: "note" }, ctx.t("stepsAbout")),
      source,
      h(
        "div",
        { class: "scroll" },
        h("table", { class: "plain masks-steps" },
          h("thead", {}, h("tr", {}, ["step", "sees", "predicts", "expected"].map((word) =>
            h("th", { scope: "col", class: `masks-${word}`, colspan: word === "sees" ? Math.min(list.length, COLUMNS) : null }, ctx.t(word))))),
          h("tbody", {}, rows)),
      ),
      list.length > COLUMNS ? h("p", { class: "note", "data-part": "columns" }, ctx.t("columns", { n: list.length - COLUMNS })) : null,
      list.length > STEPS ? h("p", { class: "note" }, ctx.t("more", { n: list.length - STEPS })) : null,
    );
  }

  /**
   * @param {any} token
   * @param {string} [extra]
   */
  function chip(token, extra = "") {
    return h("span", { class: `chip masks-chip ${token.special ? "token special" : ""} ${extra}` }, visibleText(token.text));
  }

  /**
   * @param {any} answer
   * @param {number} step
   */
  function stepRow(answer, step) {
    const cells = answer.tokens.slice(0, COLUMNS).map((/** @type {any} */ token, /** @type {number} */ i) =>
      h("td", { class: "masks-cell" }, i <= step ? chip(token, i === step ? "masks-newest" : "") : h("span", { class: "chip masks-chip masks-hidden", "aria-hidden": "true" }, "·")));
    const predicted = answer.predicted[step];
    const next = answer.next[step];
    const right = next && next.id === predicted.id;
    const share = (/** @type {number | null} */ value) => (value === null || value === undefined ? "" : ` ${(100 * value).toFixed(1)} %`);
    return h(
      "tr",
      { "data-step": step },
      h("td", { class: "number masks-step" }, String(step)),
      cells,
      h("td", { class: "masks-predicts", "data-part": "predicted" }, chip(predicted), h("span", { class: "note" }, share(predicted.prob))),
      h("td", { class: "masks-expected", "data-part": "next" }, next ? [chip(next), h("span", { class: right ? "masks-right" : "note" }, right ? ` ✓ ${ctx.t("right")}` : share(answer.prob_next[step]))] : ctx.t("none")),
    );
  }

  return {
    /** @param {import("../types.js").State} state @param {Set<string>} changed */
    update(state, changed) {
      padding.set(Number(ctx.setting("padding", "0")));
      void drawMask(state);
      if (["text", "text_b", "target", "model", "ablate"].some((key) => changed.has(key))) void drawSteps();
    },
    destroy() {
      map?.destroy();
    },
    picture: () => map?.picture() ?? holder,
  };
}

/**
 * How often each number occurs.
 * @param {ArrayLike<number>} values
 * @param {number} kinds
 */
function count(values, kinds) {
  const totals = new Array(kinds).fill(0);
  for (let i = 0; i < values.length; i++) totals[values[i]] += 1;
  return totals;
}

/** @type {import("../types.js").View} */
export default {
  id: "masks",
  words,
  uses: ["text", "kind", "layer", "head"],
  supports: (model) => Boolean(model && (stackOf(model, "encoder") || stackOf(model, "decoder"))),
  mount,
};
