// @ts-check
// A line chart: axes with round numbers, linear or logarithmic, exact values under the pointer or by arrow keys.

import { number } from "../arrays.js";
import { FONT } from "../canvas.js";
import { eachFrame, h, s } from "../dom.js";
import { hideTip, showTip } from "../tooltip.js";

/**
 * @typedef {object} Series
 * @property {string} name
 * @property {string} colour
 * @property {ArrayLike<number>} x ascending
 * @property {ArrayLike<number>} y NaN is a gap
 * @property {boolean} [faint] drawn thin and pale, and not in the list of values
 * @property {boolean} [dots] a dot at every point
 * @property {string} [dash]
 * @property {number} [width]
 */

/**
 * @typedef {object} ChartOptions
 * @property {string} label for screen readers
 * @property {Series[]} series
 * @property {import("../types.js").Colours} colours
 * @property {string} [xLabel]
 * @property {string} [yLabel]
 * @property {boolean} [log] a logarithmic axis of values
 * @property {number} [height]
 * @property {[number, number]} [yRange]
 * @property {[number, number]} [xRange]
 * @property {(x: number) => string} [xFormat]
 * @property {(y: number) => string} [yFormat] of ticks
 * @property {(y: number) => string} [yValue] under the pointer
 * @property {{x: number, y: number, colour: string, label: string}[]} [rings] points to stand out
 * @property {number[]} [xTicks] where to put ticks; round numbers unless given
 * @property {(text: string) => void} [announce]
 */

/**
 * Round numbers that cover a range.
 * @param {number} low
 * @param {number} high
 * @param {number} most
 */
export function roundTicks(low, high, most) {
  const span = high - low || Math.abs(high) || 1;
  const power = 10 ** Math.floor(Math.log10(span / most));
  const step = /** @type {number} */ ([1, 2, 5, 10].find((part) => (span / (part * power)) <= most)) * power;
  const ticks = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n++) ticks.push(Number((n * step).toPrecision(12)));
  return ticks;
}

/**
 * Powers of ten, with 2 and 5 between them where there is room.
 * @param {number} low above 0
 * @param {number} high
 * @param {number} most
 */
export function logTicks(low, high, most) {
  const from = Math.floor(Math.log10(low));
  const to = Math.ceil(Math.log10(high));
  for (const parts of [[1, 2, 5], [1, 3], [1]]) {
    const ticks = [];
    for (let power = from; power <= to; power++) {
      for (const part of parts) {
        const tick = Number((part * 10 ** power).toPrecision(6));
        if (tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9)) ticks.push(tick);
      }
    }
    if (ticks.length <= most || parts.length === 1) return ticks;
  }
  return [];
}

/**
 * The mean of each value with its neighbours; gaps are left out.
 * @param {ArrayLike<number>} values
 * @param {number} reach neighbours on each side
 */
export function smoothed(values, reach) {
  const out = new Float64Array(values.length);
  const sums = new Float64Array(values.length + 1);
  const counts = new Int32Array(values.length + 1);
  for (let i = 0; i < values.length; i++) {
    const finite = Number.isFinite(values[i]);
    sums[i + 1] = sums[i] + (finite ? values[i] : 0);
    counts[i + 1] = counts[i] + (finite ? 1 : 0);
  }
  for (let i = 0; i < values.length; i++) {
    const near = Math.min(reach, i, values.length - 1 - i);
    const n = counts[i + near + 1] - counts[i - near];
    out[i] = n ? (sums[i + near + 1] - sums[i - near]) / n : NaN;
  }
  return out;
}

/**
 * The index of the value nearest to x in an ascending list.
 * @param {ArrayLike<number>} values
 * @param {number} x
 */
export function nearest(values, x) {
  let low = 0;
  let high = values.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < x) low = middle + 1;
    else high = middle;
  }
  return low > 0 && x - values[low - 1] < values[low] - x ? low - 1 : low;
}

/**
 * A number on an axis.
 * @param {number} value
 */
export function tickText(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(0).replace("e+", "e").replaceAll("-", "−");
  if (size >= 10000) return `${Number((value / 1000).toPrecision(4))}k`.replace("-", "−");
  return String(Number(value.toPrecision(4))).replace("-", "−");
}

const MARGIN = { left: 52, right: 14, top: 18, bottom: 34 };

/**
 * The path of a series: at most two points for each pixel, the lowest and the highest.
 * @param {Series} series
 * @param {(x: number) => number} xAt
 * @param {(y: number) => number} yAt
 */
function pathOf(series, xAt, yAt) {
  let path = "";
  let pen = false;
  const count = series.x.length;
  const dense = count > 3000;
  let i = 0;
  while (i < count) {
    let end = i + 1;
    if (dense) {
      const column = Math.floor(xAt(series.x[i]));
      while (end < count && Math.floor(xAt(series.x[end])) === column) end++;
    }
    /** @type {number[]} */
    let kept = [i];
    if (end - i > 2) {
      let low = i;
      let high = i;
      for (let j = i; j < end; j++) {
        if (series.y[j] < series.y[low]) low = j;
        if (series.y[j] > series.y[high]) high = j;
      }
      kept = low === high ? [low] : [Math.min(low, high), Math.max(low, high)];
    } else if (end - i === 2) {
      kept = [i, i + 1];
    }
    for (const j of kept) {
      const y = yAt(series.y[j]);
      if (!Number.isFinite(y)) {
        pen = false;
        continue;
      }
      path += `${pen ? "L" : "M"}${xAt(series.x[j]).toFixed(1)} ${y.toFixed(1)}`;
      pen = true;
    }
    i = end;
  }
  return path;
}

/** @param {ChartOptions} initial */
export function lineChart(initial) {
  let options = initial;
  const element = h("div", { class: "chart" });
  let width = 640;
  /** @type {number | null} */
  let cursor = null;
  let svg = s("svg", {});

  /** @returns {[number, number]} */
  function xRange() {
    if (options.xRange) return options.xRange;
    let low = Infinity;
    let high = -Infinity;
    for (const { x } of options.series) {
      if (!x.length) continue;
      low = Math.min(low, x[0]);
      high = Math.max(high, x[x.length - 1]);
    }
    return low < high ? [low, high] : Number.isFinite(low) ? [low - 1, low + 1] : [0, 1];
  }

  /** @returns {[number, number]} */
  function yRange() {
    if (options.yRange) return options.yRange;
    let low = Infinity;
    let high = -Infinity;
    for (const { y } of options.series) {
      for (let i = 0; i < y.length; i++) {
        if (!Number.isFinite(y[i]) || (options.log && y[i] <= 0)) continue;
        low = Math.min(low, y[i]);
        high = Math.max(high, y[i]);
      }
    }
    if (low > high) return options.log ? [0.1, 1] : [0, 1];
    if (options.log) return [low / 1.08, high * 1.08];
    const room = (high - low) * 0.05 || Math.abs(high) * 0.1 || 1;
    return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
  }

  function scales() {
    const height = options.height ?? 300;
    const [x0, x1] = xRange();
    const [y0, y1] = yRange();
    const value = options.log ? (/** @type {number} */ y) => (y > 0 ? Math.log10(y) : NaN) : (/** @type {number} */ y) => y;
    const across = width - MARGIN.left - MARGIN.right;
    const down = height - MARGIN.top - MARGIN.bottom;
    return {
      height, x0, x1, y0, y1,
      xAt: (/** @type {number} */ x) => MARGIN.left + ((x - x0) / (x1 - x0)) * across,
      yAt: (/** @type {number} */ y) => MARGIN.top + (1 - (value(y) - value(y0)) / (value(y1) - value(y0))) * down,
      xOf: (/** @type {number} */ at) => x0 + ((at - MARGIN.left) / across) * (x1 - x0),
    };
  }

  function draw() {
    const { height, x0, x1, y0, y1, xAt, yAt } = scales();
    const { colours } = options;
    const words = { "font-family": FONT, "font-size": 11, fill: colours.muted };
    const next = s("svg", {
      viewBox: `0 0 ${width} ${height}`, width, height, tabindex: 0, role: "application", "aria-label": options.label,
      "aria-roledescription": "chart",
    });
    const yTicks = options.log ? logTicks(y0, y1, 8) : roundTicks(y0, y1, 6);
    for (const tick of yTicks) {
      const y = yAt(tick);
      next.appendChild(s("line", { x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y, stroke: colours.line }));
      next.appendChild(s("text", { ...words, x: MARGIN.left - 6, y: y + 4, "text-anchor": "end" }, (options.yFormat ?? tickText)(tick)));
    }
    const xTicks = options.xTicks ?? roundTicks(x0, x1, Math.max(4, Math.floor(width / 90)));
    for (const tick of xTicks) {
      const x = xAt(tick);
      if (x < MARGIN.left - 1 || x > width - MARGIN.right + 1) continue;
      const y = height - MARGIN.bottom;
      next.appendChild(s("line", { x1: x, x2: x, y1: y, y2: y + 4, stroke: colours.muted }));
      next.appendChild(s("text", { ...words, x, y: y + 16, "text-anchor": "middle" }, (options.xFormat ?? tickText)(tick)));
    }
    const base = height - MARGIN.bottom;
    next.appendChild(s("line", { x1: MARGIN.left, x2: width - MARGIN.right, y1: base, y2: base, stroke: colours.muted }));
    if (options.yLabel) next.appendChild(s("text", { ...words, x: MARGIN.left, y: 12 }, options.yLabel));
    if (options.xLabel) {
      next.appendChild(s("text", { ...words, x: width - MARGIN.right, y: height - 3, "text-anchor": "end" }, options.xLabel));
    }
    for (const series of options.series) {
      const d = pathOf(series, xAt, yAt);
      if (d) {
        next.appendChild(
          s("path", {
            d, fill: "none", stroke: series.colour, "stroke-width": series.width ?? (series.faint ? 1 : 2),
            "stroke-opacity": series.faint ? 0.35 : 1, "stroke-linejoin": "round", "stroke-linecap": "round",
            "stroke-dasharray": series.dash ?? null,
          }),
        );
      }
      if (!series.dots) continue;
      for (let i = 0; i < series.x.length; i++) {
        const y = yAt(series.y[i]);
        if (Number.isFinite(y)) next.appendChild(s("circle", { cx: xAt(series.x[i]), cy: y, r: 3.2, fill: series.colour }));
      }
    }
    for (const ring of options.rings ?? []) {
      const circle = s("circle", { cx: xAt(ring.x), cy: yAt(ring.y), r: 6.5, fill: "none", stroke: ring.colour, "stroke-width": 2 });
      circle.appendChild(s("title", {}, ring.label));
      next.appendChild(circle);
    }
    next.appendChild(s("g", { class: "chart-cursor" }));
    listen(next);
    const focused = document.activeElement === svg;
    svg.replaceWith(next);
    svg = next;
    if (focused) svg.focus({ preventScroll: true });
    if (cursor !== null) drawCursor();
  }

  /** Every x at which a listed series has a point. */
  function stops() {
    const longest = options.series.reduce(
      (/** @type {Series | null} */ best, series) => (!best || series.x.length > best.x.length ? series : best), null);
    return longest?.x ?? [];
  }

  /** @param {number} x */
  function lines(x) {
    const shown = [];
    for (const series of options.series) {
      if (series.faint || !series.x.length) continue;
      const i = nearest(series.x, x);
      if (!Number.isFinite(series.y[i])) continue;
      shown.push({ series, x: series.x[i], y: series.y[i] });
    }
    return shown;
  }

  function drawCursor() {
    const group = svg.querySelector(".chart-cursor");
    if (!group) return;
    group.replaceChildren();
    if (cursor === null) return;
    const { height, xAt, yAt } = scales();
    const x = xAt(cursor);
    group.appendChild(
      s("line", { x1: x, x2: x, y1: MARGIN.top, y2: height - MARGIN.bottom, stroke: options.colours.ink, "stroke-dasharray": "3 3" }),
    );
    for (const { series, x: at, y } of lines(cursor)) {
      group.appendChild(s("circle", { cx: xAt(at), cy: yAt(y), r: 4, fill: series.colour, stroke: options.colours.panel, "stroke-width": 1.5 }));
    }
  }

  /** @param {number} x */
  function describe(x) {
    const xText = (options.xFormat ?? tickText)(x);
    const format = options.yValue ?? ((/** @type {number} */ y) => number(y, 4));
    return { title: `${options.xLabel ?? "x"} ${xText}`, rows: lines(x).map(({ series, y }) => `${series.name}: ${format(y)}`) };
  }

  const showAt = eachFrame((/** @type {number} */ x, /** @type {number} */ clientX, /** @type {number} */ clientY) => {
    drawCursor();
    const { title, rows } = describe(x);
    showTip(clientX, clientY, h("strong", {}, title), rows.map((row) => h("div", {}, row)));
  });

  /** @param {SVGSVGElement} target */
  function listen(target) {
    target.addEventListener("pointermove", (event) => {
      const all = stops();
      if (!all.length) return;
      const box = target.getBoundingClientRect();
      const { xOf } = scales();
      cursor = all[nearest(all, xOf(((event.clientX - box.left) * width) / box.width))];
      showAt(cursor, event.clientX, event.clientY);
    });
    const leave = () => {
      cursor = null;
      drawCursor();
      hideTip();
    };
    target.addEventListener("pointerleave", leave);
    target.addEventListener("blur", leave);
    target.addEventListener("keydown", (event) => {
      const all = stops();
      const move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity }[event.key];
      if (move === undefined || !all.length) return;
      event.preventDefault();
      event.stopPropagation();
      const from = cursor === null ? (move > 0 ? -1 : all.length) : nearest(all, cursor);
      cursor = all[Math.max(0, Math.min(all.length - 1, from + move))];
      const box = target.getBoundingClientRect();
      const { xAt } = scales();
      showAt(cursor, box.left + (xAt(cursor) * box.width) / width, box.top + 30);
      const { title, rows } = describe(cursor);
      options.announce?.(`${title}. ${rows.join(", ")}`);
    });
  }

  const fit = eachFrame(() => {
    const now = Math.max(240, Math.round(element.clientWidth));
    if (now === width || !element.isConnected) return;
    width = now;
    draw();
  });
  const observer = new ResizeObserver(() => fit());
  element.appendChild(svg);
  observer.observe(element);
  draw();

  return {
    element,
    /** @param {Partial<ChartOptions>} patch */
    update(patch) {
      options = { ...options, ...patch };
      draw();
    },
    picture() {
      const copy = /** @type {SVGSVGElement} */ (svg.cloneNode(true));
      copy.querySelector(".chart-cursor")?.replaceChildren();
      return copy;
    },
    destroy() {
      observer.disconnect();
      hideTip();
    },
  };
}
