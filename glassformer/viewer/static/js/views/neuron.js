// @ts-check
// The neuron view: query, keys, their product dimension by dimension, scores and softmax for one token that reads.

import { whileCurrent } from "../api.js";
import { decode, number } from "../arrays.js";
import { inSight, legend, sharp } from "../canvas.js";
import { choice, eachFrame, fill, h, segmented, uniqueId } from "../dom.js";
import words from "../i18n/neuron.js";
import { headOf, stackOf } from "../state.js";
import { SvgContext } from "../svgcontext.js";
import { queryText, sides, visibleText } from "../tokens.js";
import { hideTip, showTip } from "../tooltip.js";
import { HEAD, ROW, columnsFor, drawHead, drawKey, largest, productOf } from "./neuron_draw.js";

/** @typedef {import("../types.js").State} State */
/** @typedef {import("../types.js").Token} Token */

const MOST_IN_TABLE = 64;
const MOST_IN_PICTURE = 200;
const MOST_HIGH = 620;

/** @type {import("../types.js").View} */
export default {
  id: "neuron",
  words,
  uses: ["text", "kind", "layer", "head"],
  supports: (model) => Boolean(model && (model.stacks.encoder || model.stacks.decoder) && model.abilities.length),
  mount: (root, ctx) => new Neuron(root, ctx),
};

/**
 * The answer of the server as numbers.
 * @param {any} answer
 * @param {Token[]} queries
 * @param {Token[]} keys
 * @param {number} row
 * @param {boolean} before vectors before rotary positions
 * @returns {import("./neuron_draw.js").Row & {scale: number, products: Float32Array, rotary: boolean}}
 */
export function readAnswer(answer, queries, keys, row, before) {
  const floats = (/** @type {any} */ encoded) => /** @type {Float32Array} */ (decode(encoded).data);
  const rotary = Boolean(answer.q_before);
  const raw = before && rotary;
  const allowed = answer.allowed ? decode(answer.allowed).data : null;
  const q = floats(raw ? answer.q_before : answer.q);
  return {
    query: visibleText(queries[row]?.text ?? ""),
    keys: keys.map((token) => visibleText(token.text)),
    q,
    k: floats(raw ? answer.k_before : answer.k),
    dims: q.length,
    scores: floats(answer.scores),
    bias: answer.bias ? floats(answer.bias) : null,
    weights: floats(answer.weights),
    products: floats(answer.products),
    allowed: (key) => !allowed || allowed[key] !== 0,
    scale: answer.scale,
    rotary,
  };
}

class Neuron {
  /**
   * @param {HTMLElement} root
   * @param {import("../types.js").Ctx} ctx
   */
  constructor(root, ctx) {
    this.ctx = ctx;
    /** @type {ReturnType<typeof readAnswer> | null} */
    this.row = null;
    /** @type {Token[]} */
    this.queries = [];
    /** @type {number | null} */
    this.marked = null;
    this.width = 0;
    this.turn = 0;
    this.controls = h("div", { class: "controls" });
    this.facts = h("p", { class: "note neuron-facts" });
    this.head = h("canvas", { class: "neuron-head", "aria-hidden": "true" });
    this.canvas = h("canvas", { class: "neuron-keys", tabindex: 0, role: "application" });
    this.space = h("div", { class: "neuron-space" }, this.canvas);
    this.scroller = h("div", { class: "neuron-scroll" }, this.space);
    this.numbers = h("details", { class: "neuron-numbers" });
    this.panel = h("div", { class: "panel neuron-panel" }, this.head, this.scroller);
    fill(root, this.controls, this.panel, this.facts, this.numbers);
    this.redraw = eachFrame(() => this.draw());
    this.scroller.addEventListener("scroll", () => this.draw(), { passive: true });
    this.canvas.addEventListener("pointermove", (event) => this.onPointer(event));
    this.canvas.addEventListener("pointerleave", () => this.mark(null));
    this.canvas.addEventListener("blur", () => this.mark(null));
    this.canvas.addEventListener("keydown", (event) => this.onKey(event));
    this.head.addEventListener("pointermove", (event) => this.onHead(event));
    this.head.addEventListener("pointerleave", hideTip);
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.panel);
  }

  /** @param {State} state */
  static rowOf(state, /** @type {number} */ count) {
    const pin = state.pins.at(-1);
    return pin !== undefined && pin < count ? pin : count - 1;
  }

  get before() {
    return this.ctx.setting("rotary", "after") === "before";
  }

  update() {
    void this.load();
  }

  async load() {
    const mine = ++this.turn;
    const { api, state: now } = whileCurrent(this.ctx, () => mine === this.turn);
    const state = now();
    const { queries, keys } = sides(state.kind, await api("tokens"));
    if (!queries.length) return;
    const row = Neuron.rowOf(state, queries.length);
    const head = headOf(state);
    const answer = await api("neuron", { kind: state.kind, layer: state.layer, head, row });
    this.queries = queries;
    this.row = readAnswer(answer, queries, keys, row, this.before);
    this.drawControls(row);
    this.writeFacts(row);
    this.writeNumbers();
    this.draw();
  }

  /** @param {number} row */
  drawControls(row) {
    const { ctx, queries } = this;
    const { t } = ctx;
    const active = document.activeElement;
    const focus = active && this.controls.contains(active) ? active.getAttribute("name") ?? active.getAttribute("aria-label") : null;
    const go = (/** @type {number} */ to) => ctx.select({ pins: [(to + queries.length) % queries.length] });
    const select = choice(queries.map((token, i) => [String(i), `${i}  ${queryText(token)}`]), String(row), (value) => go(Number(value)), { name: "token" });
    select.id = uniqueId("token");
    const stepper = h("div", { class: "stepper" }, h("label", { for: select.id }, t("token")),
      h("span", { class: "stepper-box wide" },
        h("button", { type: "button", "aria-label": t("token.previous"), onclick: () => go(row - 1) }, "‹"), select,
        h("button", { type: "button", "aria-label": t("token.next"), onclick: () => go(row + 1) }, "›")));
    const rotary = this.row?.rotary && h("div", { class: "field" }, h("span", { class: "label" }, t("rotary")),
      segmented([["after", t("rotary.after")], ["before", t("rotary.before")]], this.before ? "before" : "after",
        (value) => ctx.set({ rotary: value === "after" ? null : value }), t("rotary")));
    const { diverging } = ctx.colours();
    fill(this.controls, stepper, rotary, legend(diverging, -1, 1, t("negative"), t("positive")));
    if (focus) {
      const same = [...this.controls.querySelectorAll("button, select")].find((one) => one.getAttribute("name") === focus || one.getAttribute("aria-label") === focus);
      /** @type {HTMLElement | undefined} */ (same)?.focus();
    }
  }

  /** @param {number} row */
  writeFacts(row) {
    const { ctx } = this;
    const { t } = ctx;
    const state = ctx.state();
    const data = /** @type {NonNullable<Neuron["row"]>} */ (this.row);
    const head = headOf(state);
    const facts = [t("shape", { head, layer: state.layer, dims: data.dims, scale: number(data.scale, 4) })];
    const stack = stackOf(ctx.model, state.kind);
    if (stack && stack.kv_heads < stack.heads) {
      const group = stack.heads / stack.kv_heads;
      const first = Math.floor(head / group) * group;
      facts.push(t("grouped", { first, last: first + group - 1 }));
    }
    if (this.before && data.rotary) facts.push(t("rotary.note"));
    this.facts.textContent = facts.join(" · ");
    this.canvas.setAttribute("aria-label", t("label", { token: visibleText(this.queries[row].text), layer: state.layer, head }));
  }

  /** The same numbers as a table, for short texts. */
  writeNumbers() {
    const { t } = this.ctx;
    const data = /** @type {NonNullable<Neuron["row"]>} */ (this.row);
    const few = data.keys.length <= MOST_IN_TABLE;
    this.numbers.hidden = !few;
    if (!few) return;
    const cell = (/** @type {string} */ text) => h("td", { class: "number" }, text);
    const name = (/** @type {string} */ text) => h("th", { class: "number", scope: "col" }, text);
    const rows = data.keys.map((key, i) =>
      h("tr", { "data-key": i }, h("th", { scope: "row", class: "token" }, key), cell(number(data.products[i], 4)),
        data.bias && cell(number(data.bias[i], 4)), cell(data.allowed(i) ? number(data.scores[i], 4) : t("masked")), cell(number(data.weights[i], 4))));
    const open = this.numbers.open;
    fill(this.numbers, h("summary", {}, t("numbers")),
      h("div", { class: "scroll" }, h("table", { class: "plain" },
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, t("key")), name(t("dot")), data.bias && name(t("bias")), name(this.scoreTitle(true)), name(t("weight")))),
        h("tbody", {}, rows))));
    this.numbers.open = open;
  }

  /** @param {boolean} long */
  scoreTitle(long) {
    const { t } = this.ctx;
    const data = /** @type {NonNullable<Neuron["row"]>} */ (this.row);
    return long ? t(data.bias ? "score.bias" : "score.long", { scale: number(data.scale, 3) }) : t("score");
  }

  /** What the columns are called, and the largest values for the colours. */
  prepare() {
    const { t } = this.ctx;
    const data = /** @type {NonNullable<Neuron["row"]>} */ (this.row);
    const wide = this.width > 760;
    let product = 0;
    const sample = Math.max(1, Math.floor(data.keys.length / 256));
    for (let key = 0; key < data.keys.length; key += sample) product = Math.max(product, largest(productOf(data, key)));
    const open = data.scores.filter(Number.isFinite);
    /** @type {Record<import("./neuron_draw.js").ColumnName, string>} */
    const titles = { name: "", key: t("key"), product: t("product"), bias: t("bias"), score: this.scoreTitle(wide && !data.bias), weight: t("weight") };
    return {
      titles,
      columns: columnsFor(this.width, data.bias !== null),
      most: { k: Math.max(largest(data.k), largest(data.q)), product, score: largest(open), bias: data.bias ? largest(data.bias) : 1 },
    };
  }

  draw() {
    if (!this.row || !this.panel.isConnected) return;
    const data = this.row;
    this.space.style.setProperty("height", `${data.keys.length * ROW}px`);
    const height = Math.min(data.keys.length * ROW, MOST_HIGH);
    this.scroller.style.setProperty("height", `${height}px`);
    this.width = this.scroller.clientWidth;
    const colours = this.ctx.colours();
    const { titles, columns, most } = this.prepare();
    drawHead(sharp(this.head, this.width, HEAD), data, { columns, colours, titles, queryTitle: this.ctx.t("query"), most: most.k });
    const context = sharp(this.canvas, this.width, height);
    const scroll = this.scroller.scrollTop;
    const { first, last } = inSight(scroll, height, ROW, data.keys.length);
    for (let key = first; key < last; key++) {
      drawKey(context, data, key, key * ROW - scroll, { columns, colours, most, marked: key === this.marked });
    }
  }

  /** @param {number | null} key */
  mark(key) {
    if (key === null) hideTip();
    if (key === this.marked) return;
    this.marked = key;
    this.redraw();
  }

  /**
   * The dimension under a pointer, if it is over a strip of cells.
   * @param {number} x
   * @param {string[]} names
   */
  dimensionAt(x, names) {
    const data = /** @type {NonNullable<Neuron["row"]>} */ (this.row);
    for (const column of columnsFor(this.width, data.bias !== null)) {
      if (!names.includes(column.name) || x < column.x || x >= column.x + column.width) continue;
      return { name: column.name, dimension: Math.min(data.dims - 1, Math.floor(((x - column.x) / column.width) * data.dims)) };
    }
    return null;
  }

  /** @param {PointerEvent} event */
  onPointer(event) {
    if (!this.row) return;
    const box = this.canvas.getBoundingClientRect();
    const key = Math.floor((event.clientY - box.top + this.scroller.scrollTop) / ROW);
    if (key < 0 || key >= this.row.keys.length) {
      this.mark(null);
      return;
    }
    this.mark(key);
    showTip(event.clientX, event.clientY, this.describe(key, this.dimensionAt(event.clientX - box.left, ["key", "product"])));
  }

  /** @param {PointerEvent} event */
  onHead(event) {
    if (!this.row) return;
    const box = this.head.getBoundingClientRect();
    const at = this.dimensionAt(event.clientX - box.left, ["key"]);
    if (!at || event.clientY - box.top > ROW) {
      hideTip();
      return;
    }
    showTip(event.clientX, event.clientY, h("div", { class: "tip-title" }, this.row.query),
      `${this.ctx.t("dimension", { index: at.dimension })}: ${number(this.row.q[at.dimension], 4)}`);
  }

  /**
   * @param {number} key
   * @param {{name: string, dimension: number} | null} at
   */
  describe(key, at) {
    const { t } = this.ctx;
    const data = /** @type {NonNullable<Neuron["row"]>} */ (this.row);
    const lines = [h("div", { class: "tip-title" }, `${data.query} → ${data.keys[key]}`)];
    const line = (/** @type {string} */ text) => lines.push(h("div", {}, text));
    if (at) {
      const q = data.q[at.dimension];
      const k = data.k[key * data.dims + at.dimension];
      line(t("dimension", { index: at.dimension }));
      line(at.name === "key" ? number(k, 4) : t("cell.product", { q: number(q, 4), k: number(k, 4), product: number(q * k, 4) }));
      return lines;
    }
    if (!data.allowed(key)) line(t("masked"));
    line(`${t("dot")} ${number(data.products[key], 4)}`);
    if (data.bias) line(`${t("bias")} ${number(data.bias[key], 4)}`);
    line(`${this.scoreTitle(true)} = ${number(data.scores[key], 4)}`);
    line(`${t("weight")} ${number(data.weights[key], 4)}`);
    return lines;
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    if (!this.row) return;
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15 }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const key = Math.max(0, Math.min(this.row.keys.length - 1, this.marked === null ? 0 : this.marked + step));
    const top = key * ROW;
    const high = this.scroller.clientHeight;
    if (top < this.scroller.scrollTop) this.scroller.scrollTop = top;
    if (top + ROW > this.scroller.scrollTop + high) this.scroller.scrollTop = top + ROW - high;
    this.mark(key);
    const box = this.canvas.getBoundingClientRect();
    showTip(box.left + 90, box.top + top - this.scroller.scrollTop + ROW, this.describe(key, null));
    this.ctx.announce(this.ctx.t("spoken", { token: this.row.keys[key], score: number(this.row.scores[key], 3), weight: number(this.row.weights[key], 4) }));
  }

  /** All keys as an SVG, up to a number that can still be read. */
  picture() {
    if (!this.row) return this.panel;
    const data = this.row;
    const shown = Math.min(data.keys.length, MOST_IN_PICTURE);
    const colours = this.ctx.colours();
    const { titles, columns, most } = this.prepare();
    const drawing = new SvgContext(this.width, HEAD + shown * ROW);
    const context = drawing.asCanvas();
    drawHead(context, data, { columns, colours, titles, queryTitle: this.ctx.t("query"), most: most.k });
    for (let key = 0; key < shown; key++) drawKey(context, data, key, HEAD + key * ROW, { columns, colours, most, marked: false });
    return drawing.svg;
  }

  destroy() {
    this.observer.disconnect();
    hideTip();
  }
}
