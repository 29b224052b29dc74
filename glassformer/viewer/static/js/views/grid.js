// @ts-check
// All layers and heads at a glance, with the patterns that each head follows.

import { at, decode, number } from "../arrays.js";
import { FONT, legend, pixels } from "../canvas.js";
import { choice, field, fill, h, s, segmented } from "../dom.js";
import words from "../i18n/grid.js";
import { sublayerOf } from "../state.js";
import { hideTip, showTip } from "../tooltip.js";
import { EVEN, FRAMED, NAMED, isFramed, markOf, ranked, strongest } from "./grid_patterns.js";

const SIZE = 48;
const BEST = 6;

/** @typedef {import("../types.js").State} State */
/** @typedef {import("./grid_patterns.js").Stats & {entropy: import("../arrays.js").Nd | null, distance: import("../arrays.js").Nd | null}} Stats */

/** @type {import("../types.js").View} */
export default {
  id: "grid",
  words,
  uses: ["text", "kind"],
  supports: (model) => Boolean(model?.stacks.encoder || model?.stacks.decoder),
  mount: (root, ctx) => new Grid(root, ctx),
};

class Grid {
  /**
   * @param {HTMLElement} root
   * @param {import("../types.js").Ctx} ctx
   */
  constructor(root, ctx) {
    this.ctx = ctx;
    /** @type {import("../arrays.js").Nd | null} */
    this.thumbs = null;
    /** @type {Stats | null} */
    this.stats = null;
    this.focused = { layer: 0, head: 0 };
    /** @type {Map<string, HTMLButtonElement>} */
    this.buttons = new Map();
    this.controls = h("div", { class: "controls" });
    this.best = h("p", { class: "grid-best", "aria-live": "polite" });
    this.rule = h("p", { class: "note grid-rule" });
    this.board = h("div", { class: "grid-board panel" });
    this.board.addEventListener("keydown", (event) => this.onKey(event));
    this.board.addEventListener("pointermove", (event) => this.onPointer(event));
    this.board.addEventListener("pointerleave", hideTip);
    this.observer = new ResizeObserver(() => this.fitThumbs());
    this.observer.observe(this.board);
    fill(root, this.controls, this.best, this.rule, this.board);
  }

  /**
   * @param {State} state
   * @param {Set<string>} changed
   */
  update(state, changed) {
    if (["text", "text_b", "target", "model", "kind", "ablate"].some((key) => changed.has(key))) {
      this.focused = { layer: state.layer, head: state.heads[0] ?? 0 };
      void this.load(state);
    } else if (changed.has("x")) this.draw();
  }

  /** @param {State} state */
  async load({ kind }) {
    const overview = this.ctx.api("attention_overview", { kind, size: SIZE });
    const stats = this.ctx.api("head_stats", { kind }, { quiet: true }).catch((error) => {
      if (error.name === "Stale") throw error;
      return null; // the pictures can be shown without them
    });
    this.thumbs = decode((await overview).thumbs);
    const answer = await stats;
    this.stats = answer && {
      patterns: answer.patterns, values: decode(answer.values), even: decode(answer.even),
      entropy: answer.entropy ? decode(answer.entropy) : null, distance: answer.distance ? decode(answer.distance) : null,
    };
    this.draw();
  }

  get pattern() {
    const wanted = this.ctx.setting("pattern", "");
    return this.stats?.patterns.includes(wanted) ? wanted : "";
  }

  get sorted() {
    return this.pattern !== "" && this.ctx.setting("order", "layer") === "pattern";
  }

  draw() {
    if (!this.thumbs) return;
    this.drawControls();
    this.drawBest();
    this.drawRule();
    this.drawBoard();
    this.fitThumbs();
  }

  drawControls() {
    const { ctx, stats, pattern } = this;
    const { t } = ctx;
    const colours = ctx.colours();
    const focus = this.controls.contains(document.activeElement) ? document.activeElement?.getAttribute("name") : null;
    const parts = [];
    if (stats) {
      /** @type {[string, string][]} */
      const options = [["", t("pattern.none")], ...stats.patterns.map((name) => /** @type {[string, string]} */ ([name, t(`pattern.${name}`)]))];
      parts.push(field(t("pattern"), choice(options, pattern, (value) => ctx.set({ pattern: value || null }), { name: "pattern" })));
    }
    if (pattern) {
      const order = segmented([["layer", t("order.layer")], ["pattern", t("order.pattern")]], ctx.setting("order", "layer"),
        (value) => ctx.set({ order: value === "layer" ? null : value }), t("order"));
      parts.push(h("div", { class: "field" }, h("span", { class: "label" }, t("order")), order));
    }
    parts.push(legend(colours.sequential, 0, 1, t("low"), t("high")));
    fill(this.controls, parts);
    if (focus) /** @type {HTMLElement | null} */ (this.controls.querySelector(`[name="${focus}"]`))?.focus();
  }

  /** The heads that follow the chosen pattern most, as links. */
  drawBest() {
    const { ctx, stats, pattern } = this;
    const { t } = ctx;
    this.best.hidden = !stats || !pattern;
    if (!stats || !pattern) return;
    const links = ranked(stats, pattern).slice(0, BEST).map(({ layer, head, share }) =>
      h("button", { type: "button", class: "chip number", "data-best": `${layer}.${head}`, onclick: () => this.open(layer, head) },
        `${t("thumb", { layer, head })}  ${number(share, 2)}`));
    fill(this.best, h("strong", {}, `${t("best")} `), links, h("span", { class: "note" }, ` ${pattern === "broad" ? t("evenness") : t("share")}`));
  }

  /** What the name and the frame of a head mean. */
  drawRule() {
    const { t } = this.ctx;
    const { pattern } = this;
    const percent = (/** @type {number} */ share) => number(100 * share, 0);
    this.rule.hidden = !this.stats;
    const frame = pattern === "broad" ? t("rule.frame.broad", { even: percent(EVEN) }) : t(pattern ? "rule.frame.one" : "rule.frame", { framed: percent(FRAMED) });
    const name = pattern ? [] : [t("rule.name", { named: percent(NAMED) }), t("rule.even", { even: percent(EVEN) }), t("rule.mixed")];
    fill(this.rule, [...name, frame].join(" "));
  }

  drawBoard() {
    const { ctx } = this;
    const { t } = ctx;
    const [layers, heads] = /** @type {import("../arrays.js").Nd} */ (this.thumbs).shape;
    const refocus = this.board.contains(document.activeElement);
    this.buttons.clear();
    if (this.sorted && this.stats) {
      const flat = ranked(this.stats, this.pattern).map(({ layer, head }) => this.thumb(layer, head, true));
      fill(this.board, h("div", { class: "grid-flat" }, flat));
    } else {
      const table = h("div", { class: "grid-table", style: { "--heads": heads } });
      table.appendChild(h("span", { class: "grid-corner" }));
      for (let head = 0; head < heads; head++) table.appendChild(h("span", { class: "grid-name number" }, `${head}`));
      for (let layer = 0; layer < layers; layer++) {
        table.appendChild(h("span", { class: "grid-name grid-row number" }, `${t("layer")} ${layer}`));
        for (let head = 0; head < heads; head++) table.appendChild(this.thumb(layer, head, false));
      }
      fill(this.board, h("div", { class: "scroll" }, h("div", { class: "grid-heads label" }, t("head")), table));
    }
    this.focused = { layer: Math.min(this.focused.layer, layers - 1), head: Math.min(this.focused.head, heads - 1) };
    const current = this.buttons.get(`${this.focused.layer}.${this.focused.head}`);
    if (current) current.tabIndex = 0;
    if (refocus) current?.focus();
  }

  /**
   * @param {number} layer
   * @param {number} head
   * @param {boolean} named
   */
  thumb(layer, head, named) {
    const { ctx, stats, pattern } = this;
    const { t } = ctx;
    const { sequential } = ctx.colours();
    const map = at(/** @type {import("../arrays.js").Nd} */ (this.thumbs), layer, head);
    const [rows, columns] = map.shape;
    const picture = pixels(rows, columns, (row, column) => sequential(map.data[row * columns + column] / 255));
    picture.className = "head-thumb-picture";
    const mark = stats && (pattern ? markOf(stats, layer, head, pattern) : strongest(stats, layer, head));
    const strong = Boolean(mark && isFramed(mark));
    const state = ctx.state();
    const off = state.ablate.some(([place, at1, head1]) => place === sublayerOf(state.kind) && at1 === layer && head1 === head);
    const badge = mark ? [t(`pattern.${mark.pattern}`), number(mark.share, 2)] : stats ? [t("mixed")] : [];
    const label = [t("thumb", { layer, head }), badge.join(" "), off && t("ablated")];
    const button = h("button", {
      type: "button", class: "head-thumb", tabindex: -1, "data-layer": layer, "data-head": head, "data-strong": strong, "data-off": off,
      "data-pattern": mark?.pattern ?? "", "data-share": mark ? mark.share.toFixed(4) : "",
      "aria-label": label.filter(Boolean).join(", "), onclick: () => this.open(layer, head),
    }, picture,
      h("span", { class: "head-thumb-badge number" }, badge.map((part, i) => h("span", {}, i ? ` ${part}` : part))),
      named && h("span", { class: "head-thumb-name number" }, `${layer}.${head}`));
    this.buttons.set(`${layer}.${head}`, button);
    return button;
  }

  /** As large as the width allows. */
  fitThumbs() {
    if (!this.thumbs) return;
    const [layers, heads, rows, columns] = this.thumbs.shape;
    const room = this.board.clientWidth - 36 - 64;
    const wide = this.sorted ? 84 : Math.max(60, Math.min(layers * heads <= 12 ? 160 : 128, Math.floor(room / heads) - 8));
    const shape = rows && columns ? Math.max(0.4, Math.min(1.6, rows / columns)) : 1;
    this.board.style.setProperty("--thumb", `${wide}px`);
    this.board.style.setProperty("--thumb-high", `${Math.round(wide * shape)}px`);
    this.board.classList.toggle("tight", wide < 72);
  }

  /**
   * @param {number} layer
   * @param {number} head
   */
  open(layer, head) {
    hideTip();
    this.ctx.select({ view: "heads", layer, heads: [head] });
  }

  /** @param {PointerEvent} event */
  onPointer(event) {
    const button = /** @type {HTMLElement | null} */ (/** @type {Element} */ (event.target).closest(".head-thumb"));
    if (!button) {
      hideTip();
      return;
    }
    const layer = Number(button.dataset.layer);
    const head = Number(button.dataset.head);
    showTip(event.clientX, event.clientY, this.describe(layer, head).map((line, i) => h("div", { class: i ? "" : "tip-title" }, line)));
  }

  /**
   * @param {number} layer
   * @param {number} head
   */
  describe(layer, head) {
    const { t } = this.ctx;
    const lines = [t("thumb", { layer, head })];
    const { stats } = this;
    if (stats) {
      const shares = at(stats.values, layer, head).data;
      stats.patterns.forEach((pattern, i) => lines.push(`${t(`pattern.${pattern}`)}: ${number(shares[i], 3)}`));
      if (stats.entropy) lines.push(t("entropy", { value: number(at(stats.entropy, layer).data[head], 2) }));
      if (stats.distance) lines.push(t("distance", { value: number(at(stats.distance, layer).data[head], 1) }));
    }
    return lines;
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (!step || !this.thumbs) return;
    event.preventDefault();
    event.stopPropagation();
    const before = this.buttons.get(`${this.focused.layer}.${this.focused.head}`);
    let next;
    if (this.sorted) {
      const all = [...this.buttons.values()];
      const place = before ? all.indexOf(before) : 0;
      next = all[Math.max(0, Math.min(all.length - 1, place + step[0] + step[1]))];
    } else {
      const [layers, heads] = this.thumbs.shape;
      const layer = Math.max(0, Math.min(layers - 1, this.focused.layer + step[0]));
      const head = Math.max(0, Math.min(heads - 1, this.focused.head + step[1]));
      next = this.buttons.get(`${layer}.${head}`);
    }
    if (!next) return;
    if (before) before.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
    this.focused = { layer: Number(next.dataset.layer), head: Number(next.dataset.head) };
    this.ctx.announce(this.describe(this.focused.layer, this.focused.head).join(". "));
  }

  picture() {
    const { ctx } = this;
    const { ink, muted } = ctx.colours();
    const { kind } = ctx.state();
    const [layers, heads] = this.thumbs?.shape ?? [0, 0];
    const size = 72;
    const left = 70;
    const top = 52;
    const width = left + heads * (size + 8) + 12;
    const height = top + layers * (size + 22) + 12;
    const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, width, height });
    const font = { "font-family": FONT, fill: ink, "font-size": 12, "dominant-baseline": "central" };
    svg.appendChild(s("text", { ...font, x: 12, y: 16, "font-weight": 600 }, `${ctx.model.name} · ${ctx.t(`kind.${kind}.long`)}`));
    for (let head = 0; head < heads; head++) svg.appendChild(s("text", { ...font, x: left + head * (size + 8) + size / 2, y: 40, "text-anchor": "middle" }, head));
    for (let layer = 0; layer < layers; layer++) {
      const y = top + layer * (size + 22);
      svg.appendChild(s("text", { ...font, x: 12, y: y + size / 2 }, `${ctx.t("layer")} ${layer}`));
      for (let head = 0; head < heads; head++) {
        const button = this.thumb(layer, head, false);
        const image = /** @type {HTMLCanvasElement} */ (button.querySelector("canvas"));
        const x = left + head * (size + 8);
        svg.appendChild(s("image", { x, y, width: size, height: size, href: image.toDataURL(), preserveAspectRatio: "none", style: { "image-rendering": "pixelated" } }));
        svg.appendChild(s("rect", { x, y, width: size, height: size, fill: "none", stroke: muted, "stroke-width": 0.5 }));
        svg.appendChild(s("text", { ...font, fill: muted, "font-size": 9.5, x, y: y + size + 9 }, button.querySelector(".head-thumb-badge")?.textContent ?? ""));
      }
    }
    return svg;
  }

  destroy() {
    this.observer.disconnect();
    hideTip();
  }
}

