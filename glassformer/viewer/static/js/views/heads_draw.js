// @ts-check
// Lines between two columns of tokens: which to draw, on a canvas or as an SVG.

import { s } from "../dom.js";
import { FONT } from "../canvas.js";
import { fitted, textWidth } from "./flow_draw.js";

export const ROW = 26;
export const LEVELS = 16;
/** A line weaker than this cannot be seen. */
export const FAINT = 0.012;

/**
 * One bundle of lines of one colour and one strength, as pairs of places in the two columns.
 * @typedef {{slot: number, level: number, from: number[], to: number[]}} Bundle
 */

/**
 * Sort lines into bundles by head and strength, so that thousands are drawn in a few strokes.
 * @param {object} options
 * @param {{place: number, rows: Float32Array[]}[]} options.sources the queries to draw, with a row of weights for each slot
 * @param {number[]} options.keys the key at each place of the right column
 * @param {number} options.threshold
 * @param {number | null} options.onlyKey a place of the right column
 * @returns {Bundle[]}
 */
export function bundles({ sources, keys, threshold, onlyKey }) {
  /** @type {Map<number, Bundle>} */
  const found = new Map();
  const least = Math.max(threshold, FAINT);
  for (const { place, rows } of sources) {
    for (let slot = 0; slot < rows.length; slot++) {
      const row = rows[slot];
      const first = onlyKey ?? 0;
      const last = onlyKey === null ? keys.length : onlyKey + 1;
      for (let to = first; to < last; to++) {
        const weight = row[keys[to]];
        if (!(weight >= least)) continue;
        const level = Math.min(LEVELS - 1, Math.floor(weight * LEVELS));
        const id = slot * LEVELS + level;
        let bundle = found.get(id);
        if (!bundle) found.set(id, (bundle = { slot, level, from: [], to: [] }));
        bundle.from.push(place);
        bundle.to.push(to);
      }
    }
  }
  return [...found.values()].sort((a, b) => a.level - b.level); // strong lines on top
}

/** @param {number} level */
export function strength(level) {
  return Math.min(1, (level + 0.6) / LEVELS);
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Bundle[]} lines
 * @param {{left: number, right: number, scroll: number, colours: string[]}} where
 */
export function drawLines(context, lines, { left, right, scroll, colours }) {
  const middle = (left + right) / 2;
  context.lineCap = "round";
  for (const { slot, level, from, to } of lines) {
    context.strokeStyle = colours[slot];
    context.globalAlpha = strength(level);
    context.lineWidth = 1 + 1.6 * strength(level);
    context.beginPath();
    for (let i = 0; i < from.length; i++) {
      const y1 = (from[i] + 0.5) * ROW - scroll;
      const y2 = (to[i] + 0.5) * ROW - scroll;
      context.moveTo(left, y1);
      context.bezierCurveTo(middle, y1, middle, y2, right, y2);
    }
    context.stroke();
  }
  context.globalAlpha = 1;
}

/**
 * Strips beside the tokens of one column: one for each slot, as opaque as the weight.
 * @param {CanvasRenderingContext2D} context
 * @param {{places: Iterable<[number, number[]]>, x: number, width: number, scroll: number, colours: string[]}} what
 *   places: a place in the column and its weights by slot
 */
export function drawStrips(context, { places, x, width, scroll, colours }) {
  for (const [place, weights] of places) {
    const each = width / Math.max(1, weights.length);
    const y = place * ROW - scroll;
    weights.forEach((weight, slot) => {
      if (weight < 0.004) return;
      context.globalAlpha = Math.min(1, weight) * 0.85;
      context.fillStyle = colours[slot];
      context.fillRect(x + slot * each, y + 2, each, ROW - 4);
    });
  }
  context.globalAlpha = 1;
}

/**
 * The same picture as an SVG.
 * @param {object} options
 * @param {Bundle[]} options.lines
 * @param {string[]} options.queries texts of the left column
 * @param {string[]} options.keys texts of the right column
 * @param {number} options.first the first place to show
 * @param {number} options.last the place after the last
 * @param {string[]} options.colours by slot
 * @param {string} options.ink
 * @param {string[]} options.title its parts, written in as many lines as they need
 */
export function linesSvg({ lines, queries, keys, first, last, colours, ink, title }) {
  const widest = Math.max(...[...queries.slice(first, last), ...keys.slice(first, last)].map((text) => textWidth(text, 13)), 0);
  const column = Math.min(320, Math.max(150, Math.ceil(widest) + 14));
  const gap = 260;
  const titles = titleLines(title, 2 * column + gap - 32);
  const head = 16 + titles.length * 18;
  const left = column;
  const right = column + gap;
  const middle = (left + right) / 2;
  const width = 2 * column + gap;
  const height = head + (last - first) * ROW + 8;
  const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, width, height });
  const y = (/** @type {number} */ place) => head + (place - first + 0.5) * ROW;
  const font = { "font-family": FONT, "font-size": 13, fill: ink, "dominant-baseline": "central" };
  titles.forEach((text, i) => svg.appendChild(s("text", { ...font, "font-weight": 600, x: width / 2, y: 16 + i * 18, "text-anchor": "middle" }, text)));
  const clipped = s("g", { fill: "none", "stroke-linecap": "round" });
  for (const { slot, level, from, to } of lines) {
    let path = "";
    for (let i = 0; i < from.length; i++) {
      path += `M${left + 6} ${y(from[i])}C${middle} ${y(from[i])} ${middle} ${y(to[i])} ${right - 6} ${y(to[i])}`;
    }
    clipped.appendChild(s("path", {
      d: path, stroke: colours[slot], "stroke-opacity": strength(level).toFixed(3),
      "stroke-width": (1 + 1.6 * strength(level)).toFixed(2),
    }));
  }
  svg.appendChild(clipped);
  for (let place = first; place < last; place++) {
    if (place < queries.length) svg.appendChild(s("text", { ...font, x: left - 2, y: y(place), "text-anchor": "end" }, fitted(queries[place], column - 8, 13)));
    if (place < keys.length) svg.appendChild(s("text", { ...font, x: right + 2, y: y(place) }, fitted(keys[place], column - 8, 13)));
  }
  return svg;
}

/**
 * The parts of a title in lines that fit a width.
 * @param {string[]} parts
 * @param {number} width
 */
export function titleLines(parts, width) {
  /** @type {string[]} */
  const lines = [];
  for (const part of parts) {
    const joined = lines.length ? `${lines[lines.length - 1]} · ${part}` : part;
    if (lines.length && textWidth(joined, 13) * 1.08 <= width) lines[lines.length - 1] = joined; // the title is bold
    else lines.push(fitted(part, width / 1.08, 13));
  }
  return lines;
}
