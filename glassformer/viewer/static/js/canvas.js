// @ts-check
// Canvases that are sharp on every screen, and a heat map that draws only what is in sight.

import { NAME, TICKS, axisPicture, drawAxis, ticksOf } from "./axes.js";
import { eachFrame, h, s } from "./dom.js";
import { number } from "./arrays.js";
import { hideTip, showTip } from "./tooltip.js";

/** @typedef {import("./types.js").Colours} Colours */
/** @typedef {{row: number, column: number, value: number | null}} Cell */

/**
 * Give a canvas a size in CSS pixels and return a context in which one unit is one such pixel.
 * @param {HTMLCanvasElement} canvas
 * @param {number} width
 * @param {number} height
 */
export function sharp(canvas, width, height) {
  const ratio = Math.min(devicePixelRatio || 1, 3);
  const across = Math.max(1, Math.round(width * ratio));
  const down = Math.max(1, Math.round(height * ratio));
  if (canvas.width !== across) canvas.width = across;
  if (canvas.height !== down) canvas.height = down;
  canvas.style.setProperty("width", `${width}px`);
  canvas.style.setProperty("height", `${height}px`);
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/**
 * Which items of a long list are in sight.
 * @param {number} scroll how far it is scrolled
 * @param {number} view size of the window
 * @param {number} size of one item
 * @param {number} count
 * @returns {{first: number, last: number}} `last` is the one after
 */
export function inSight(scroll, view, size, count) {
  const first = Math.max(0, Math.min(count, Math.floor(scroll / size)));
  const last = Math.max(first, Math.min(count, Math.ceil((scroll + view) / size)));
  return { first, last };
}

export const FONT = '"Inter", "Segoe UI", system-ui, "PingFang SC", "Microsoft YaHei", "Noto Sans CJK SC", sans-serif';
export const MONO = 'ui-monospace, "SF Mono", "Cascadia Mono", "DejaVu Sans Mono", "Noto Sans Mono CJK SC", monospace';

/**
 * Shorten a text to a width.
 * @param {CanvasRenderingContext2D} context
 * @param {string} text
 * @param {number} width
 */
export function fit(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  const characters = Array.from(text);
  let low = 0;
  let high = characters.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(`${characters.slice(0, middle).join("")}…`).width <= width) low = middle;
    else high = middle - 1;
  }
  return `${characters.slice(0, low).join("")}…`;
}

/**
 * An image with one pixel for each value, to be drawn enlarged.
 * @param {number} rows
 * @param {number} columns
 * @param {(row: number, column: number) => [number, number, number]} colour
 */
export function pixels(rows, columns, colour) {
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, columns);
  canvas.height = Math.max(1, rows);
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const image = context.createImageData(canvas.width, canvas.height);
  let i = 0;
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const rgb = colour(row, column);
      image.data[i] = rgb[0];
      image.data[i + 1] = rgb[1];
      image.data[i + 2] = rgb[2];
      image.data[i + 3] = 255;
      i += 4;
    }
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

/**
 * @typedef {object} HeatOptions
 * @property {number} rows
 * @property {number} columns
 * @property {(row: number, column: number) => number | null} value null: masked, drawn as such
 * @property {(value: number) => [number, number, number]} colour
 * @property {Colours} colours
 * @property {string} label what the map shows, for screen readers
 * @property {string[]} [rowLabels]
 * @property {string[]} [columnLabels]
 * @property {{name: string, text?: (row: number) => string}} [rowAxis] its name, and numbers in place of labels
 * @property {{name: string, text?: (column: number) => string}} [columnAxis]
 * @property {(cell: Cell) => string} [describe] the text of the tooltip and of the announcement
 * @property {(cell: Cell | null) => void} [onHover]
 * @property {(cell: Cell) => void} [onSelect] click, Enter or space
 * @property {(text: string) => void} [announce]
 * @property {{row?: number, column?: number} | null} [marked] a row and a column drawn with a frame
 * @property {number} [minCell] smallest cell in pixels (default 5)
 * @property {number} [maxCell] largest cell (default 28)
 * @property {number} [cellHeight] height of the cells where it differs from their width
 * @property {number} [maxHeight] of the window (default 520)
 */

const LEFT_MOST = 120;
const TOP_MOST = 84;
const UPRIGHT = 20;
/** Smaller cells have no labels. */
const LEGIBLE = 9;

/**
 * A heat map: exact value on hover, arrow keys move from cell to cell, only the cells in sight are drawn.
 * @param {HeatOptions} options
 */
export function heatMap(options) {
  return new HeatMap(options);
}

/** @typedef {{first: number, last: number}} Range */

export class HeatMap {
  /** @param {HeatOptions} options */
  constructor(options) {
    this.options = options;
    /** @type {{row: number, column: number} | null} */
    this.cursor = null;
    this.left = 0;
    this.top = 0;
    this.upright = false;
    this.cell = 10;
    this.cellDown = 10;
    this.width = 0;
    this.height = 0;
    this.canvas = h("canvas", { class: "heat-window", tabindex: 0, role: "application", "aria-label": options.label });
    this.space = h("div", { class: "heat-space" }, this.canvas);
    this.element = h("div", { class: "heat" }, this.space);
    this.redraw = eachFrame(() => this.draw());
    this.observer = new ResizeObserver(() => this.refresh());
    this.observer.observe(this.element);
    this.element.addEventListener("scroll", () => this.draw(), { passive: true });
    this.canvas.addEventListener("pointermove", (event) => this.onPointer(event));
    this.canvas.addEventListener("pointerleave", () => this.leave());
    this.canvas.addEventListener("blur", () => this.leave());
    this.canvas.addEventListener("keydown", (event) => this.onKey(event));
    this.canvas.addEventListener("click", (event) => {
      const at = this.cellAt(event);
      if (at) this.options.onSelect?.(this.full(at));
    });
  }

  /** @param {Partial<HeatOptions>} patch */
  update(patch) {
    this.options = { ...this.options, ...patch };
    const { rows, columns, label } = this.options;
    this.canvas.setAttribute("aria-label", label);
    if (this.cursor && (this.cursor.row >= rows || this.cursor.column >= columns)) this.cursor = null;
    this.refresh();
  }

  refresh() {
    this.measure();
    this.draw();
  }

  /** Sizes of cells and margins for the room that there is. */
  measure() {
    const { options, element } = this;
    const context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    context.font = `12px ${FONT}`;
    const widest = (/** @type {string[] | undefined} */ labels) => {
      let size = 0;
      for (const text of labels?.slice(0, 1500) ?? []) size = Math.max(size, context.measureText(text).width);
      return size ? size + 10 : 0;
    };
    const available = element.clientWidth || 640;
    const named = (/** @type {object | undefined} */ axis) => (axis ? NAME : 0);
    this.left = Math.min(widest(options.rowLabels), LEFT_MOST, available * 0.3) || (options.rowAxis ? TICKS.left : 0);
    this.left += named(options.rowAxis);
    const fitting = (available - this.left) / Math.max(1, options.columns);
    this.cell = Math.max(options.minCell ?? 5, Math.min(options.maxCell ?? 28, fitting));
    if (this.cell > 3) this.cell = Math.floor(this.cell);
    this.cellDown = options.cellHeight ?? this.cell;
    this.upright = widest(options.columnLabels) - 8 <= this.cell; // numbers and the like need not be turned
    this.top = this.cell >= LEGIBLE ? Math.min(this.upright && options.columnLabels?.length ? UPRIGHT : widest(options.columnLabels), TOP_MOST) : 0;
    if (!this.top && options.columnAxis) this.top = TICKS.top;
    this.top += named(options.columnAxis);
    if (this.cellDown < LEGIBLE) this.left = options.rowAxis ? TICKS.left + NAME : 0;
    const wide = this.left + options.columns * this.cell;
    const high = this.top + options.rows * this.cellDown;
    const most = options.maxHeight ?? 520;
    element.style.setProperty("max-height", `${most}px`);
    this.space.style.setProperty("width", `${wide}px`);
    this.space.style.setProperty("height", `${high}px`);
    this.width = Math.min(wide, element.clientWidth || available);
    this.height = Math.min(high, most);
  }

  /** @param {number} column */
  x(column) {
    return this.left + column * this.cell - this.element.scrollLeft;
  }

  /** @param {number} row */
  y(row) {
    return this.top + row * this.cellDown - this.element.scrollTop;
  }

  draw() {
    const { options, element, width, height, left, top } = this;
    if (!element.isConnected) return;
    const context = sharp(this.canvas, width, height);
    const across = inSight(element.scrollLeft, width - left, this.cell, options.columns);
    const down = inSight(element.scrollTop, height - top, this.cellDown, options.rows);
    context.save();
    context.beginPath();
    context.rect(left, top, width - left, height - top);
    context.clip();
    this.drawCells(context, across, down);
    this.drawMarks(context);
    context.restore();
    this.drawLabels(context, across, down);
    for (const axis of this.axes(left, top, this.cell, this.cellDown, { x: element.scrollLeft, y: element.scrollTop })) drawAxis(context, axis, FONT);
  }

  /** Whether the cells are large enough for their labels. */
  get labelled() {
    const { rowLabels, columnLabels } = this.options;
    return { rows: Boolean(rowLabels?.length) && this.cellDown >= LEGIBLE, columns: Boolean(columnLabels?.length) && this.cell >= LEGIBLE };
  }

  /**
   * The named axes of a map whose first cell begins at left and top.
   * @param {number} left
   * @param {number} top
   * @param {number} cell
   * @param {number} cellDown
   * @param {{x: number, y: number}} scrolled
   * @returns {import("./axes.js").Side[]}
   */
  axes(left, top, cell, cellDown, scrolled = { x: 0, y: 0 }) {
    const { rowAxis, columnAxis, rows, columns, colours } = this.options;
    const { labelled } = this;
    const text = (/** @type {number} */ index) => String(index);
    /** @type {import("./axes.js").Side[]} */
    const found = [];
    if (rowAxis) {
      const end = Math.min(top + rows * cellDown, scrolled.y || this.space.clientHeight > this.element.clientHeight ? this.height : Infinity);
      found.push({ side: "left", name: rowAxis.name, ticks: labelled.rows ? [] : ticksOf(rows, cellDown, "left"), text: rowAxis.text ?? text,
        middle: (row) => top + (row + 0.5) * cellDown - scrolled.y, start: top, end, edge: left, ink: colours.muted });
    }
    if (columnAxis) {
      const end = Math.min(left + columns * cell, scrolled.x || this.space.clientWidth > this.element.clientWidth ? this.width : Infinity);
      found.push({ side: "top", name: columnAxis.name, ticks: labelled.columns ? [] : ticksOf(columns, cell, "top"), text: columnAxis.text ?? text,
        middle: (column) => left + (column + 0.5) * cell - scrolled.x, start: left, end, edge: top, ink: colours.muted });
    }
    return found;
  }

  /**
   * The colours of a part of the map, one pixel for each cell.
   * @param {Range} across
   * @param {Range} down
   */
  image(across, down) {
    const { options } = this;
    const masked = rgbOf(options.colours.masked);
    return pixels(down.last - down.first, across.last - across.first, (row, column) => {
      const value = options.value(row + down.first, column + across.first);
      return value === null ? masked : options.colour(value);
    });
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {Range} across
   * @param {Range} down
   */
  drawCells(context, across, down) {
    const { cell, cellDown, options } = this;
    const columns = across.last - across.first;
    const rows = down.last - down.first;
    if (!columns || !rows) return;
    context.imageSmoothingEnabled = false;
    context.drawImage(this.image(across, down), this.x(across.first), this.y(down.first), columns * cell, rows * cellDown);
    context.lineWidth = 1;
    if (cell >= 12 && cellDown >= 12) {
      context.strokeStyle = options.colours.paper;
      context.beginPath();
      for (let column = across.first; column <= across.last; column++) {
        context.moveTo(this.x(column), 0);
        context.lineTo(this.x(column), this.height);
      }
      for (let row = down.first; row <= down.last; row++) {
        context.moveTo(0, this.y(row));
        context.lineTo(this.width, this.y(row));
      }
      context.stroke();
    }
    if (cell < 8) return;
    // A stroke through masked cells, so that they differ from small values without colour.
    context.strokeStyle = options.colours.line;
    context.beginPath();
    for (let row = down.first; row < down.last; row++) {
      for (let column = across.first; column < across.last; column++) {
        if (options.value(row, column) !== null) continue;
        context.moveTo(this.x(column) + 1, this.y(row) + cellDown - 1);
        context.lineTo(this.x(column) + cell - 1, this.y(row) + 1);
      }
    }
    context.stroke();
  }

  /** @param {CanvasRenderingContext2D} context */
  drawMarks(context) {
    const { cursor, cell, cellDown, left, top, width, height } = this;
    const { marked, colours } = this.options;
    context.strokeStyle = colours.accent;
    context.lineWidth = 2;
    if (marked?.row !== undefined) context.strokeRect(left + 1, this.y(marked.row), width - left - 2, cellDown);
    if (marked?.column !== undefined) context.strokeRect(this.x(marked.column), top + 1, cell, height - top - 2);
    if (!cursor) return;
    context.strokeStyle = colours.ink;
    context.strokeRect(this.x(cursor.column), this.y(cursor.row), Math.max(cell, 3), Math.max(cellDown, 3));
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {Range} across
   * @param {Range} down
   */
  drawLabels(context, across, down) {
    const { cursor, cell, cellDown, left, top, width, height } = this;
    const { colours, rowLabels, columnLabels } = this.options;
    const ink = (/** @type {boolean} */ over) => (over ? colours.accent : colours.ink);
    context.font = `${Math.min(12, Math.max(9, Math.min(cell, cellDown) - 2))}px ${FONT}`;
    context.textBaseline = "middle";
    const { labelled } = this;
    if (labelled.rows && rowLabels) {
      context.save();
      context.beginPath();
      context.rect(0, top, left, height - top);
      context.clip();
      context.textAlign = "right";
      for (let row = down.first; row < down.last; row++) {
        context.fillStyle = ink(cursor?.row === row);
        context.fillText(fit(context, rowLabels[row] ?? "", left - 8 - (this.options.rowAxis ? NAME : 0)), left - 6, this.y(row) + cellDown / 2);
      }
      context.restore();
    }
    if (labelled.columns && columnLabels) {
      context.save();
      context.beginPath();
      context.rect(left, 0, width - left, top);
      context.clip();
      context.textAlign = "left";
      for (let column = across.first; column < across.last; column++) {
        context.save();
        context.fillStyle = ink(cursor?.column === column);
        context.translate(this.x(column) + cell / 2, this.upright ? top - 9 : top - 5);
        if (this.upright) context.textAlign = "center";
        else context.rotate(-Math.PI / 2);
        context.fillText(this.upright ? columnLabels[column] ?? "" : fit(context, columnLabels[column] ?? "", top - 8 - (this.options.columnAxis ? NAME : 0)), 0, 0);
        context.restore();
      }
      context.restore();
    }
  }

  /**
   * @param {MouseEvent} event
   * @returns {{row: number, column: number} | null}
   */
  cellAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left - this.left;
    const y = event.clientY - box.top - this.top;
    const column = Math.floor((x + this.element.scrollLeft) / this.cell);
    const row = Math.floor((y + this.element.scrollTop) / this.cellDown);
    const inside = x >= 0 && y >= 0 && row < this.options.rows && column < this.options.columns;
    return inside ? { row, column } : null;
  }

  /**
   * @param {{row: number, column: number}} position
   * @returns {Cell}
   */
  full(position) {
    return { ...position, value: this.options.value(position.row, position.column) };
  }

  /** @param {Cell} cell */
  describe(cell) {
    const { describe, rowLabels, columnLabels } = this.options;
    if (describe) return describe(cell);
    const row = rowLabels?.[cell.row] ?? String(cell.row);
    const column = columnLabels?.[cell.column] ?? String(cell.column);
    return `${row} → ${column}: ${cell.value === null ? "–" : number(cell.value, 4)}`;
  }

  /** @param {PointerEvent} event */
  onPointer(event) {
    const at = this.cellAt(event);
    if (at?.row !== this.cursor?.row || at?.column !== this.cursor?.column) {
      this.cursor = at;
      this.redraw();
      this.options.onHover?.(at && this.full(at));
    }
    if (at) showTip(event.clientX, event.clientY, this.describe(this.full(at)));
    else hideTip();
  }

  leave() {
    this.cursor = null;
    hideTip();
    this.redraw();
    this.options.onHover?.(null);
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (step) this.move(step[0], step[1]);
    else if ((event.key === "Enter" || event.key === " ") && this.cursor) this.options.onSelect?.(this.full(this.cursor));
    else if (event.key === "Escape") this.leave();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /**
   * Move the cursor, or put it on the first cell.
   * @param {number} down
   * @param {number} across
   */
  move(down, across) {
    const { options, cell, cellDown, element } = this;
    const bound = (/** @type {number} */ at, /** @type {number} */ count) => Math.max(0, Math.min(count - 1, at));
    const { row, column } = this.cursor ?? { row: -down, column: -across };
    this.cursor = { row: bound(row + down, options.rows), column: bound(column + across, options.columns) };
    const x = this.cursor.column * cell;
    const y = this.cursor.row * cellDown;
    if (x < element.scrollLeft) element.scrollLeft = x;
    element.scrollLeft = Math.max(element.scrollLeft, x + cell - (this.width - this.left));
    if (y < element.scrollTop) element.scrollTop = y;
    element.scrollTop = Math.max(element.scrollTop, y + cellDown - (this.height - this.top));
    const shown = this.full(this.cursor);
    const box = this.canvas.getBoundingClientRect();
    showTip(box.left + this.x(this.cursor.column + 1), box.top + this.y(this.cursor.row + 1), this.describe(shown));
    options.announce?.(this.describe(shown));
    options.onHover?.(shown);
    this.redraw();
  }

  /** The whole map as an SVG, with its labels. */
  picture() {
    const { options } = this;
    const { colours, rowLabels, columnLabels } = options;
    const size = Math.max(this.cell, options.minCell ?? 2);
    const sizeDown = Math.max(this.cellDown, 2);
    const { labelled } = this;
    const { rowAxis, columnAxis } = options;
    const left = (labelled.rows ? LEFT_MOST : rowAxis ? TICKS.left : 8) + (rowAxis ? NAME : 0);
    const top = (labelled.columns ? TOP_MOST : columnAxis ? TICKS.top : 8) + (columnAxis ? NAME : 0);
    const width = left + options.columns * size + 8;
    const height = top + options.rows * sizeDown + 8;
    const href = this.image({ first: 0, last: options.columns }, { first: 0, last: options.rows }).toDataURL();
    const box = { x: left, y: top, width: options.columns * size, height: options.rows * sizeDown };
    const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, width, height },
      s("image", { ...box, preserveAspectRatio: "none", href, style: { "image-rendering": "pixelated" } }));
    const font = { fill: colours.ink, "font-family": FONT, "font-size": 11, "dominant-baseline": "central" };
    rowLabels?.forEach((label, row) => {
      if (!labelled.rows) return;
      svg.appendChild(s("text", { ...font, x: left - 6, y: top + (row + 0.5) * sizeDown, "text-anchor": "end" }, label.slice(0, 18)));
    });
    columnLabels?.forEach((label, column) => {
      if (!labelled.columns) return;
      const transform = `translate(${left + (column + 0.5) * size} ${this.upright ? top - 9 : top - 5})${this.upright ? "" : " rotate(-90)"}`;
      svg.appendChild(s("text", { ...font, x: 0, y: 0, transform, "text-anchor": this.upright ? "middle" : "start" }, label.slice(0, 13)));
    });
    for (const axis of this.axes(left, top, size, sizeDown)) svg.append(...axisPicture({ ...axis, end: axis.side === "left" ? top + box.height : left + box.width }, FONT));
    return svg;
  }

  destroy() {
    this.observer.disconnect();
    hideTip();
  }
}

/**
 * "#abcdef" or "rgb(1, 2, 3)" as numbers.
 * @param {string} colour
 * @returns {[number, number, number]}
 */
export function rgbOf(colour) {
  if (colour.startsWith("#") && colour.length === 7) {
    const n = parseInt(colour.slice(1), 16);
    return [(n >> 16) & 255, (n >> 8) & 255, n & 255];
  }
  const [r = 0, g = 0, b = 0] = (colour.match(/[\d.]+/g) ?? []).map(Number);
  return [r, g, b];
}

/**
 * A strip that explains a colour map.
 * @param {(share: number) => [number, number, number]} colour
 * @param {number} from
 * @param {number} to
 * @param {string} low
 * @param {string} high
 */
export function legend(colour, from, to, low, high) {
  const strip = pixels(1, 64, (_, column) => colour(from + ((to - from) * column) / 63));
  strip.className = "legend-strip";
  strip.setAttribute("aria-hidden", "true");
  return h("span", { class: "legend" }, h("span", {}, low), strip, h("span", {}, high));
}
