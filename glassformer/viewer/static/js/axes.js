// @ts-check
// Axes of a heat map: a name on each side, and numbers where its cells are too small for labels.

import { s } from "./dom.js";

/** Room for the name of an axis, and for the numbers of its ticks. */
export const NAME = 16;
export const TICKS = { left: 30, top: 16 };
/** Pixels between two numbers, at least. */
const APART = { left: 22, top: 40 };

/**
 * Indices with a number, at round steps.
 * @param {number} count
 * @param {number} cell
 * @param {"left" | "top"} side
 */
export function ticksOf(count, cell, side) {
  let step = 1;
  for (let i = 1; step * cell < APART[side]; i++) step = [1, 2, 5][i % 3] * 10 ** Math.floor(i / 3);
  return Array.from({ length: Math.ceil(count / step) }, (_, n) => n * step);
}

/**
 * @typedef {object} Side one axis, in pixels
 * @property {"left" | "top"} side
 * @property {string} name
 * @property {number[]} ticks
 * @property {(index: number) => string} text of a tick
 * @property {(index: number) => number} middle of a cell along the axis
 * @property {number} start of the map along the axis
 * @property {number} end
 * @property {number} edge of the map across the axis
 * @property {string} ink
 */

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Side} axis
 * @param {string} font
 */
export function drawAxis(context, { side, name, ticks, text, middle, start, end, edge, ink }, font) {
  context.save();
  context.beginPath();
  if (side === "left") context.rect(0, start - 6, edge, end - start + 12);
  else context.rect(start - 6, 0, end - start + 12, edge);
  context.clip();
  context.fillStyle = ink;
  context.font = `11px ${font}`;
  context.textBaseline = "middle";
  context.textAlign = side === "left" ? "right" : "center";
  for (const index of ticks) {
    const at = middle(index);
    if (at < start || at > end) continue;
    if (side === "left") context.fillText(text(index), edge - 5, Math.max(at, start + 6));
    else context.fillText(text(index), Math.min(Math.max(at, start + 4), end + 6 - context.measureText(text(index)).width / 2), edge - 8);
  }
  context.textAlign = "center";
  if (side === "left") {
    context.translate(NAME / 2, (start + end) / 2);
    context.rotate(-Math.PI / 2);
    context.fillText(name, 0, 0);
  } else context.fillText(name, (start + end) / 2, NAME / 2);
  context.restore();
}

/**
 * The same as parts of an SVG.
 * @param {Side} axis
 * @param {string} font
 * @returns {SVGElement[]}
 */
export function axisPicture({ side, name, ticks, text, middle, start, end, edge, ink }, font) {
  const style = { fill: ink, "font-family": font, "font-size": 11, "dominant-baseline": "central" };
  const numbers = ticks.map((index) => (side === "left"
    ? s("text", { ...style, x: edge - 5, y: middle(index), "text-anchor": "end" }, text(index))
    : s("text", { ...style, x: middle(index), y: edge - 8, "text-anchor": "middle" }, text(index))));
  const centre = (start + end) / 2;
  const place = side === "left" ? { transform: `translate(${NAME / 2} ${centre}) rotate(-90)` } : { transform: `translate(${centre} ${NAME / 2})` };
  return [...numbers, s("text", { ...style, ...place, "text-anchor": "middle" }, name)];
}
