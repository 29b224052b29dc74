// @ts-check
// The head view: which token reads from which, head by head.

import { whileCurrent } from "../api.js";
import { number, topIndices } from "../arrays.js";
import { attentionSource, combine } from "../attention.js";
import { choice, field, fill, h, segmented, slider } from "../dom.js";
import words from "../i18n/heads.js";
import { windowOf } from "../mechanisms.js";
import { stackOf } from "../state.js";
import { queryText, sides, visibleText } from "../tokens.js";
import { Board } from "./heads_board.js";
import { ROW, bundles, linesSvg } from "./heads_draw.js";
import { readout } from "./heads_readout.js";
import { loadSources, sourcesTable } from "./heads_sources.js";

/** @typedef {import("../types.js").Token} Token */
/** @typedef {import("../types.js").State} State */
/** @typedef {import("./heads_board.js").Spot} Spot */

const MOST_IN_PICTURE = 160;
const MOST_TABLES = 5;
const MOST_IN_TIP = 12;
const TEXTS = ["text", "text_b", "target", "model", "kind", "ablate"];

/** @type {import("../types.js").View} */
export default {
  id: "heads",
  words,
  uses: ["text", "kind", "layer", "heads"],
  supports: (model) => Boolean(model?.stacks.encoder || model?.stacks.decoder),
  mount: (root, ctx) => new Heads(root, ctx),
};

/**
 * Which tokens stand in the two columns.
 * @param {Token[]} queries
 * @param {Token[]} keys
 * @param {string} pair "all", "aa", "ab", "ba" or "bb"
 * @param {boolean} hideSpecial
 */
export function columnsOf(queries, keys, pair, hideSpecial) {
  const keep = (/** @type {Token[]} */ tokens, /** @type {string | undefined} */ sentence) => {
    /** @type {number[]} */
    const kept = [];
    tokens.forEach((token, index) => {
      if (hideSpecial && token.special) return;
      if (sentence === "a" && token.segment !== 0) return;
      if (sentence === "b" && token.segment !== 1) return;
      kept.push(index);
    });
    return kept;
  };
  const [from, to] = pair === "all" ? [undefined, undefined] : [pair[0], pair[1]];
  return { rows: keep(queries, from), columns: keep(keys, to) };
}

class Heads {
  /**
   * @param {HTMLElement} root
   * @param {import("../types.js").Ctx} ctx
   */
  constructor(root, ctx) {
    this.ctx = ctx;
    const { t } = ctx;
    this.weights = attentionSource(ctx);
    /** @type {Token[]} */
    this.queries = [];
    /** @type {Token[]} */
    this.keys = [];
    /** @type {import("./heads_sources.js").Sources | null} */
    this.sources = null;
    this.ready = false;
    this.turn = 0;
    /** @type {Board} */
    this.board = new Board({
      slots: (query) => this.slots(query), colours: () => this.colours(), threshold: () => this.threshold, pins: () => ctx.state().pins,
      masked: (query, key) => this.masked(query, key), tip: (spot) => this.tip(spot), onHover: () => this.writeOut(), onFocus: (spot) => this.speak(spot),
      onPin: (query) => this.togglePin(query), onClear: () => ctx.select({ pins: [] }), onScroll: () => void this.load(),
    });
    this.side = h("aside", { class: "board-side", "aria-label": t("numbers") });
    this.note = h("p", { class: "note board-note" });
    const heading = h("div", { class: "board-head", "aria-hidden": "true" },
      h("span", { title: t("side.query.long") }, t("side.query")), h("span", { title: t("side.key.long") }, t("side.key")));
    fill(root, this.controls(), h("div", { class: "board-layout" }, h("div", { class: "panel board-panel" }, heading, this.board.element, this.note), this.side));
  }

  controls() {
    const { ctx } = this;
    const { t } = ctx;
    this.modes = segmented([["each", t("each")], ["mean", t("mean")], ["sum", t("sum")]], this.mode,
      (value) => ctx.set({ mode: value === "each" ? null : value }), t("mode"));
    this.slider = slider({
      label: t("threshold"), min: 0, max: 1, step: 0.01, value: this.threshold, format: (value) => value.toFixed(2),
      onInput: (value) => ctx.set({ from: value === 0 ? null : value }),
    });
    const special = h("input", { type: "checkbox", checked: this.hidesSpecial, onchange: () => ctx.set({ special: special.checked ? "hide" : null }) });
    this.special = special;
    this.pairs = choice(["all", "aa", "ab", "ba", "bb"].map((value) => [value, t(`pair.${value}`)]), ctx.setting("pair", "all"),
      (value) => ctx.set({ pair: value === "all" ? null : value }), { name: "pair" });
    this.pairField = field(t("pair"), this.pairs);
    this.clear = h("button", { type: "button", class: "quiet small", hidden: true, onclick: () => ctx.select({ pins: [] }) }, t("clear"));
    return h("div", { class: "controls" }, h("div", { class: "field" }, h("span", { class: "label" }, t("mode")), this.modes),
      this.slider, this.pairField, field(t("special"), special, "check"), this.clear);
  }

  /** @returns {"each" | "mean" | "sum"} */
  get mode() {
    const mode = this.ctx.setting("mode", "each");
    return mode === "mean" || mode === "sum" ? mode : "each";
  }

  get threshold() {
    return Math.min(1, Math.max(0, Number(this.ctx.setting("from", "0")) || 0));
  }

  get hidesSpecial() {
    return this.ctx.setting("special", "") === "hide";
  }

  /** @param {number} query */
  block(query) {
    return this.weights.block(query, this.queries.length);
  }

  /**
   * The rows of weights to draw for a query: one for each chosen head, or one for all of them.
   * @param {number} query
   */
  slots(query) {
    const block = this.block(query);
    if (!block) return null;
    const rows = this.ctx.state().heads.map((head) => block.row(head, query));
    return this.mode === "each" ? rows : [combine(rows, this.mode)];
  }

  colours() {
    const colours = this.ctx.colours();
    return this.mode === "each" ? this.ctx.state().heads.map((head) => colours.heads[head % colours.heads.length]) : [colours.accent];
  }

  /**
   * Whether no chosen head may see a key.
   * @param {number} query
   * @param {number} key
   */
  masked(query, key) {
    const block = this.block(query);
    return Boolean(block) && this.ctx.state().heads.every((head) => !block?.allowed(head, query, key));
  }

  /**
   * The exact weights of a token: for one that reads, the largest of each head; for one that is read, those of the pinned token.
   * @param {Spot} spot
   * @returns {import("../dom.js").Child[] | null}
   */
  tip({ side, place }) {
    const { ctx, keys, queries } = this;
    const { heads } = ctx.state();
    const colours = ctx.colours().heads;
    const { rows, columns } = this.board.contents;
    const line = (/** @type {number} */ head, /** @type {string} */ text) =>
      h("div", {}, h("span", { class: "dot", style: { background: colours[head % colours.length] } }), `${ctx.t("head")} ${head}  ${text}`);
    const pinned = this.board.pinned();
    const seeing = side === "key" ? pinned.filter((at) => !this.masked(rows[at], columns[place])) : [];
    const reading = side === "query" ? place : seeing.at(-1) ?? pinned.at(-1); // of several, the last that may see it
    const query = reading === undefined ? undefined : rows[reading];
    const block = query === undefined ? undefined : this.block(query);
    if (query === undefined || !block) return null;
    const shown = heads.slice(0, MOST_IN_TIP);
    if (side === "query") {
      return shown.map((head) => {
        const row = block.row(head, query);
        const best = columns[topIndices(columns.map((key) => row[key]), 1)[0]];
        return line(head, best === undefined ? "–" : `→ ${visibleText(keys[best].text)}  ${number(row[best], 4)}`);
      });
    }
    const key = columns[place];
    if (this.masked(query, key)) return [ctx.t("masked.tip")];
    const title = h("div", { class: "tip-title" }, `${visibleText(queries[query].text)} → ${visibleText(keys[key].text)}`);
    return [title, ...shown.map((head) => line(head, number(block.row(head, query)[key], 4)))];
  }

  /**
   * Say the largest weight of the token that has the focus.
   * @param {Spot} spot
   */
  speak({ side, place }) {
    const { rows, columns } = this.board.contents;
    const mean = (/** @type {number} */ query) => combine(this.slots(query) ?? [], "mean");
    const reads = side === "query";
    const row = reads ? mean(rows[place]) : null;
    const weights = row ? columns.map((key) => row[key]) : rows.map((query) => mean(query)[columns[place]] ?? 0);
    const best = topIndices(weights, 1)[0];
    if (best === undefined || !(weights[best] >= 0)) return;
    const [token, other] = reads ? [this.queries[rows[place]], this.keys[columns[best]]] : [this.keys[columns[place]], this.queries[rows[best]]];
    this.ctx.announce(this.ctx.t(reads ? "spoken.query" : "spoken.key", { token: visibleText(token.text), key: visibleText(other.text), weight: number(weights[best], 3) }));
  }

  /** @param {number} query */
  togglePin(query) {
    const { pins } = this.ctx.state();
    this.ctx.select({ pins: pins.includes(query) ? pins.filter((pin) => pin !== query) : [...pins, query] });
  }

  /** The tables of exact weights beside the lines. */
  writeOut() {
    const { ctx, board } = this;
    const { pins } = ctx.state();
    const { rows } = board.contents;
    const shown = board.hovered?.side === "query" ? [rows[board.hovered.place]] : [];
    for (const pin of [...pins].reverse()) if (rows.includes(pin) && !shown.includes(pin)) shown.push(pin);
    const tables = shown.slice(0, MOST_TABLES).map((query) => this.table(query, pins.includes(query)));
    fill(this.side, tables.length ? tables : this.atRest());
    if (this.clear) this.clear.hidden = !pins.length;
  }

  /** What stands beside the lines while no token is chosen. */
  atRest() {
    const { ctx, sources } = this;
    const { t } = ctx;
    const hint = h("p", { class: "note" }, t("hint"));
    if (ctx.state().kind === "cross") return [sources?.listed.length ? sourcesTable(sources, this.keys, t, (query) => this.togglePin(query)) : null, hint];
    return [hint, h("p", {}, h("button", { type: "button", class: "quiet small", onclick: () => ctx.select({ view: "grid" }) }, t("find")))];
  }

  /**
   * @param {number} query
   * @param {boolean} pinned
   */
  table(query, pinned) {
    const { ctx } = this;
    const block = this.block(query);
    if (!block) return null;
    const { heads } = ctx.state();
    const colours = ctx.colours().heads;
    return readout({
      query: this.queries[query], index: query, tokens: this.keys, keys: this.board.contents.columns, heads,
      rows: heads.map((head) => block.row(head, query)), how: this.mode === "sum" ? "sum" : "mean", t: ctx.t,
      colours: heads.map((head) => colours[head % colours.length]), allowed: (key) => !this.masked(query, key),
      onRemove: pinned ? () => this.togglePin(query) : null,
    });
  }

  /** What is special about this layer's attention. */
  writeNote() {
    const { t } = this.ctx;
    const { kind, layer } = this.ctx.state();
    const stack = stackOf(this.ctx.model, kind);
    /** @type {string[]} */
    const facts = [];
    if (this.queries[0]?.writes !== undefined) facts.push(t("note.cross"));
    const window = stack && kind !== "cross" ? windowOf(stack, layer) : null;
    if (stack && window) facts.push(t(window, { window: stack.windows[layer] ?? "" }));
    if (stack?.score_bias && kind !== "cross") facts.push(t(`bias.${stack.score_bias}`));
    if (stack && stack.kv_heads !== stack.heads) facts.push(t("grouped", { heads: stack.heads, kv: stack.kv_heads }));
    const { rows } = this.board.contents;
    if (rows.length * ROW > 2400) facts.push(t("window.note", { count: rows.length }));
    this.note.textContent = facts.join(" · ");
    this.note.hidden = !facts.length;
  }

  /** Put the right tokens into the columns. */
  arrange() {
    const { ctx, queries, keys } = this;
    const { kind, layer } = ctx.state();
    const both = kind === "encoder" && keys.some((token) => token.segment === 1);
    if (this.pairField) this.pairField.hidden = !both;
    const { rows, columns } = columnsOf(queries, keys, both ? ctx.setting("pair", "all") : "all", this.hidesSpecial);
    this.board.show({ queries, keys, rows, columns }, ctx.t("board", { kind: ctx.t(`kind.${kind}.long`), layer }));
  }

  /** Ask for the rows in sight and those that are pinned, and draw once they are there. */
  async load() {
    if (!this.ready) return;
    const count = this.queries.length;
    const { rows } = this.board.contents;
    const { first, last } = this.board.sight(rows.length);
    const wanted = [this.weights.need(count, rows[first] ?? 0, (rows[last - 1] ?? 0) + 1)];
    for (const pin of this.ctx.state().pins) if (pin < count) wanted.push(this.weights.need(count, pin, pin + 1));
    if ((await Promise.all(wanted)).some(Boolean)) this.refresh();
  }

  refresh() {
    this.board.draw();
    this.writeOut();
    this.writeNote();
  }

  async reload() {
    const mine = ++this.turn;
    const asking = whileCurrent(this.ctx, () => mine === this.turn);
    const { kind } = this.ctx.state();
    this.ready = false; // tokens and weights belong together: until both are of the new text, nothing is asked for
    const { queries, keys } = sides(kind, await asking.api("tokens"));
    Object.assign(this, { queries, keys, ready: true });
    this.sources = null;
    this.weights.clear();
    this.arrange();
    this.refresh();
    await this.load();
    if (kind !== "cross") return;
    const sources = await loadSources(asking, queries, keys);
    if (mine !== this.turn) return;
    this.sources = sources;
    this.writeOut();
  }

  /**
   * @param {State} _
   * @param {Set<string>} changed
   */
  update(_, changed) {
    this.modes?.mark(this.mode);
    if (document.activeElement !== this.slider?.input) this.slider?.set(this.threshold);
    if (this.special) this.special.checked = this.hidesSpecial;
    if (this.pairs) this.pairs.value = this.ctx.setting("pair", "all");
    if (TEXTS.some((key) => changed.has(key))) {
      void this.reload();
      return;
    }
    if (changed.has("layer") || changed.has("x")) this.arrange();
    this.refresh();
    void this.load();
  }

  picture() {
    const { ctx, board } = this;
    const { t } = ctx;
    const { kind, layer, heads } = ctx.state();
    const { rows, columns } = board.contents;
    const all = Math.max(rows.length, columns.length);
    const sight = all > MOST_IN_PICTURE ? board.sight(all) : { first: 0, last: all };
    const places = rows.map((_, place) => place).slice(sight.first, sight.last);
    const shownHeads = heads.length > 8 ? `${heads.length} ${t("heads")}` : `${t("head")} ${heads.join(", ")}`;
    return linesSvg({
      lines: bundles({ sources: board.sources(places), keys: columns, threshold: this.threshold, onlyKey: null }),
      queries: rows.map((index) => queryText(this.queries[index])), keys: columns.map((index) => visibleText(this.keys[index].text)),
      ...sight, colours: this.colours(), ink: ctx.colours().ink,
      title: [ctx.model.name, t(`kind.${kind}.long`), `${t("layer")} ${layer}`, shownHeads],
    });
  }

  destroy() {
    this.board.destroy();
  }
}
