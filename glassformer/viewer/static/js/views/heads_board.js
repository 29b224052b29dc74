// @ts-check
// Two columns of tokens and the lines between them. Only what is in sight is drawn: lines on a canvas, tokens as buttons.

import { inSight, sharp } from "../canvas.js";
import { eachFrame, h } from "../dom.js";
import { queryText, visibleText } from "../tokens.js";
import { hideTip, showTip } from "../tooltip.js";
import { ROW, bundles, drawLines, drawStrips } from "./heads_draw.js";

/** @typedef {import("../types.js").Token} Token */
/** @typedef {"query" | "key"} Side */
/** @typedef {{side: Side, place: number}} Spot */

/**
 * What the board shows. Rows and columns list the tokens that stand in the left and in the right column.
 * @typedef {object} Contents
 * @property {Token[]} queries
 * @property {Token[]} keys
 * @property {number[]} rows
 * @property {number[]} columns
 */

/**
 * What the board asks its view.
 * @typedef {object} Source
 * @property {(query: number) => Float32Array[] | null} slots the rows of weights of a query, one for each colour; null: not there yet
 * @property {() => string[]} colours one for each slot
 * @property {() => number} threshold
 * @property {() => number[]} pins
 * @property {(query: number, key: number) => boolean} masked
 * @property {(spot: Spot) => import("../dom.js").Child[] | null} tip
 * @property {(spot: Spot | null) => void} onHover
 * @property {(spot: Spot) => void} onFocus by the keyboard
 * @property {(query: number) => void} onPin
 * @property {() => void} onClear
 * @property {() => void} onScroll
 */

const OVERSCAN = 6;
const JUMP = 15;

export class Board {
  /** @param {Source} source */
  constructor(source) {
    this.source = source;
    /** @type {Contents} */
    this.contents = { queries: [], keys: [], rows: [], columns: [] };
    /** @type {Spot | null} */
    this.hovered = null;
    /** @type {Spot} */
    this.focused = { side: "query", place: 0 };
    /** @type {Map<string, HTMLButtonElement>} */
    this.tokens = new Map();
    this.width = 0;
    this.column = 160;
    this.canvas = h("canvas", { class: "board-lines", "aria-hidden": "true" });
    this.layer = h("div", { class: "board-tokens" });
    this.space = h("div", { class: "board-space" }, this.canvas, this.layer);
    this.element = h("div", { class: "board", role: "group", tabindex: -1 }, this.space);
    this.redraw = eachFrame(() => this.draw());
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.element);
    this.listen();
  }

  /**
   * @param {Contents} contents
   * @param {string} label
   */
  show(contents, label) {
    this.contents = contents;
    const { rows, columns } = contents;
    this.space.style.setProperty("height", `${Math.max(rows.length, columns.length, 1) * ROW}px`);
    this.element.setAttribute("aria-label", label);
    if (this.focused.place >= this.list(this.focused.side).length) this.focused = { side: "query", place: 0 };
    this.hovered = null;
  }

  /** @param {Side} side */
  list(side) {
    return side === "query" ? this.contents.rows : this.contents.columns;
  }

  /** @param {number} count */
  sight(count) {
    return inSight(this.element.scrollTop, this.element.clientHeight || 500, ROW, count);
  }

  /** The pinned tokens that stand in the left column, as places. */
  pinned() {
    return this.source.pins().map((pin) => this.contents.rows.indexOf(pin)).filter((place) => place >= 0);
  }

  /** The places of the queries whose lines alone are drawn: pinned, and hovered; none: all are drawn. */
  chosen() {
    const places = new Set(this.pinned());
    if (this.hovered?.side === "query") places.add(this.hovered.place);
    return [...places];
  }

  /** The place of the query whose weights are written out: hovered, else pinned last. */
  active() {
    return this.hovered?.side === "query" ? this.hovered.place : this.pinned().at(-1) ?? null;
  }

  /**
   * The queries whose lines are drawn: those that are pinned or hovered, else all in sight.
   * @param {Iterable<number>} otherwise places
   */
  sources(otherwise) {
    const places = this.chosen();
    /** @type {{place: number, rows: Float32Array[]}[]} */
    const found = [];
    for (const place of places.length ? places : otherwise) {
      const rows = this.source.slots(this.contents.rows[place]);
      if (rows) found.push({ place, rows });
    }
    return found;
  }

  /** @param {Iterable<number>} places */
  bundles(places) {
    const onlyKey = this.hovered?.side === "key" ? this.hovered.place : null;
    return bundles({ sources: this.sources(places), keys: this.contents.columns, threshold: this.source.threshold(), onlyKey });
  }

  draw() {
    const { element } = this;
    if (!element.isConnected) return;
    this.width = element.clientWidth;
    this.column = Math.max(84, Math.min(190, Math.floor(this.width * 0.34)));
    element.parentElement?.style.setProperty("--column", `${this.column}px`);
    const context = sharp(this.canvas, this.width, element.clientHeight);
    this.drawStrips(context);
    const { first, last } = this.sight(this.contents.rows.length);
    const lines = this.bundles(Array.from({ length: last - first }, (_, i) => first + i));
    const where = { left: this.column + 4, right: this.width - this.column - 4, scroll: element.scrollTop, colours: this.source.colours() };
    drawLines(context, lines, where);
    this.drawTokens();
  }

  /**
   * The weights of the active token, as strips behind the tokens that it reads or that read it.
   * @param {CanvasRenderingContext2D} context
   */
  drawStrips(context) {
    const { rows, columns } = this.contents;
    const active = this.active();
    const common = { width: this.column, scroll: this.element.scrollTop, colours: this.source.colours() };
    /** @type {[number, number[]][]} */
    const places = [];
    if (active !== null) {
      const weights = this.source.slots(rows[active]);
      const { first, last } = this.sight(columns.length);
      for (let place = first; weights && place < last; place++) places.push([place, weights.map((row) => row[columns[place]])]);
      drawStrips(context, { ...common, places, x: this.width - this.column });
    } else if (this.hovered?.side === "key") {
      const key = columns[this.hovered.place];
      const { first, last } = this.sight(rows.length);
      for (let place = first; place < last; place++) {
        const weights = this.source.slots(rows[place]);
        if (weights) places.push([place, weights.map((row) => row[key])]);
      }
      drawStrips(context, { ...common, places, x: 0 });
    }
  }

  /** Keep buttons only for the tokens in sight. */
  drawTokens() {
    /** @type {Map<string, HTMLButtonElement>} */
    const next = new Map();
    for (const side of /** @type {Side[]} */ (["query", "key"])) {
      const list = this.list(side);
      const all = side === "query" ? this.contents.queries : this.contents.keys;
      const { first, last } = this.sight(list.length);
      for (let place = Math.max(0, first - OVERSCAN); place < Math.min(list.length, last + OVERSCAN); place++) {
        const token = all[list[place]];
        const id = `${side} ${place} ${list[place]} ${token.special} ${queryText(token)}`;
        next.set(id, this.tokens.get(id) ?? this.tokenButton(side, place, list[place], token));
      }
    }
    for (const [id, button] of this.tokens) if (!next.has(id)) button.remove();
    this.tokens = next;
    this.markTokens();
  }

  /**
   * @param {Side} side
   * @param {number} place
   * @param {number} index
   * @param {Token} token
   */
  tokenButton(side, place, index, token) {
    const text = visibleText(token.text);
    const name = h("span", { class: token.special ? "token special" : "token" }, text);
    const writes = token.writes !== undefined && h("span", { class: "token writes" }, `→ ${visibleText(token.writes)}`);
    const button = h("button", {
      type: "button", class: `board-token ${side}`, "data-side": side, "data-place": place, "data-index": index,
      "aria-label": `${queryText(token)} ${index}`, style: { top: `${place * ROW}px`, height: `${ROW}px` },
    }, name, writes);
    button.classList.toggle("writing", Boolean(writes));
    this.layer.appendChild(button);
    return button;
  }

  markTokens() {
    const pins = new Set(this.source.pins());
    const queries = this.chosen().map((place) => this.contents.rows[place]);
    for (const button of this.tokens.values()) {
      const { side, place } = spotOf(button);
      const index = Number(button.dataset.index);
      button.classList.toggle("over", this.hovered?.side === side && this.hovered.place === place);
      if (side === "query") button.setAttribute("aria-pressed", String(pins.has(index)));
      else button.classList.toggle("masked", queries.length > 0 && queries.every((query) => this.source.masked(query, index)));
      button.tabIndex = this.focused.side === side && this.focused.place === place ? 0 : -1;
    }
  }

  /** @param {Spot | null} spot */
  hover(spot) {
    if (this.hovered?.side === spot?.side && this.hovered?.place === spot?.place) return;
    this.hovered = spot;
    this.redraw();
    this.source.onHover(spot);
  }

  listen() {
    const { layer, element } = this;
    layer.addEventListener("pointermove", (event) => {
      const button = tokenAt(event);
      if (!button) return;
      const spot = spotOf(button);
      this.hover(spot);
      const lines = this.source.tip(spot);
      if (lines) showTip(event.clientX, event.clientY, lines);
      else hideTip();
    });
    layer.addEventListener("pointerout", (event) => {
      if (event.relatedTarget instanceof Element && event.relatedTarget.closest(".board-token")) return;
      this.hover(null);
      hideTip();
    });
    layer.addEventListener("click", (event) => {
      const button = tokenAt(event);
      if (!button) return;
      this.focused = spotOf(button);
      if (this.focused.side === "query") this.source.onPin(Number(button.dataset.index));
    });
    layer.addEventListener("focusin", (event) => {
      const button = tokenAt(event);
      if (!button?.matches(":focus-visible")) return;
      this.focused = spotOf(button);
      this.hover(this.focused);
      this.source.onFocus(this.focused);
    });
    layer.addEventListener("focusout", () => this.hover(null));
    layer.addEventListener("keydown", (event) => this.onKey(event));
    element.addEventListener("scroll", () => {
      this.draw();
      this.source.onScroll();
    }, { passive: true });
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    const { side, place } = this.focused;
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: JUMP, PageUp: -JUMP, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "Escape") this.source.onClear();
    else if (step) this.move(side, place + step);
    else if (event.key === "ArrowLeft") this.move("query", place);
    else if (event.key === "ArrowRight") this.move("key", place);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /**
   * @param {Side} side
   * @param {number} place
   */
  move(side, place) {
    const { element } = this;
    this.focused = { side, place: Math.max(0, Math.min(this.list(side).length - 1, place)) };
    const top = this.focused.place * ROW;
    if (top < element.scrollTop) element.scrollTop = top;
    if (top + ROW > element.scrollTop + element.clientHeight) element.scrollTop = top + ROW - element.clientHeight;
    this.draw();
    const button = this.layer.querySelector(`[data-side="${side}"][data-place="${this.focused.place}"]`);
    /** @type {HTMLElement | null} */ (button)?.focus();
  }

  destroy() {
    this.observer.disconnect();
    hideTip();
  }
}

/** @param {Event} event */
function tokenAt(event) {
  return /** @type {HTMLButtonElement | null} */ (/** @type {Element} */ (event.target).closest(".board-token"));
}

/**
 * @param {HTMLElement} button
 * @returns {Spot}
 */
function spotOf(button) {
  return { side: /** @type {Side} */ (button.dataset.side), place: Number(button.dataset.place) };
}
