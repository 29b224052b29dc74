// @ts-check
// The columns of the neuron view on a canvas: vectors as strips of cells, scores and weights as bars with numbers.

import { number } from "../arrays.js";
import { FONT, fit, pixels, rgbOf } from "../canvas.js";
import { css } from "../colour.js";

export const ROW = 26;
export const HEAD = 62;
const NUMBER = 68; // pixels of the longest number, "−1.23e−4", beside its bar

/** @typedef {import("../types.js").Colours} Colours */

/**
 * Everything that is shown for one query.
 * @typedef {object} Row
 * @property {string} query text of the query
 * @property {string[]} keys texts
 * @property {Float32Array} q (K)
 * @property {Float32Array} k (S, K)
 * @property {number} dims K
 * @property {Float32Array} scores
 * @property {Float32Array | null} bias
 * @property {Float32Array} weights
 * @property {(key: number) => boolean} allowed
 */

/** @typedef {"name" | "key" | "product" | "bias" | "score" | "weight"} ColumnName */

/**
 * Where the columns are, for a width.
 * @param {number} width
 * @param {boolean} bias
 * @returns {{name: ColumnName, x: number, width: number}[]}
 */
export function columnsFor(width, bias) {
  const narrow = width < 560;
  const gap = narrow ? 8 : 18;
  const name = narrow ? 74 : 120;
  const numberWidth = narrow ? 56 : 116;
  const numbers = bias ? 3 : 2;
  const rest = Math.max(80, width - name - numbers * numberWidth - (2 + numbers) * gap);
  const strip = Math.floor(rest / 2);
  /** @type {[ColumnName, number][]} */
  const sizes = [["name", name], ["key", strip], ["product", strip]];
  if (bias) sizes.push(["bias", numberWidth]);
  sizes.push(["score", numberWidth], ["weight", numberWidth]);
  let x = 0;
  return sizes.map(([one, size]) => {
    const column = { name: one, x, width: size };
    x += size + gap;
    return column;
  });
}

/**
 * The largest size of a value, so that colours use the whole range.
 * @param {ArrayLike<number>} values
 */
export function largest(values) {
  let size = 0;
  for (let i = 0; i < values.length; i++) size = Math.max(size, Math.abs(values[i]));
  return size || 1;
}

/**
 * Elementwise product of a query with one key.
 * @param {Row} row
 * @param {number} key
 */
export function productOf({ q, k, dims }, key) {
  const out = new Float32Array(dims);
  for (let i = 0; i < dims; i++) out[i] = q[i] * k[key * dims + i];
  return out;
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {ArrayLike<number>} values
 * @param {{x: number, y: number, width: number, height: number}} box
 * @param {number} most
 * @param {Colours} colours
 */
export function strip(context, values, box, most, colours) {
  const image = pixels(1, values.length, (_, i) => colours.diverging(values[i] / most));
  context.imageSmoothingEnabled = false;
  context.drawImage(image, box.x, box.y, box.width, box.height);
  context.strokeStyle = colours.line;
  context.lineWidth = 1;
  context.strokeRect(box.x + 0.5, box.y + 0.5, box.width - 1, box.height - 1);
}

/**
 * A number with a bar: to both sides of the middle where there are signs.
 * @param {CanvasRenderingContext2D} context
 * @param {number} value
 * @param {{x: number, y: number, width: number, height: number}} box
 * @param {{most: number, signed: boolean, colours: Colours, digits: number}} how
 */
function bar(context, value, box, { most, signed, colours, digits }) {
  const wide = box.width > 80 ? box.width - NUMBER : box.width; // the number stands beside the bar where there is room
  if (Number.isFinite(value)) {
    const share = Math.min(1, Math.abs(value) / most);
    const colour = rgbOf(signed ? (value < 0 ? colours.negative : colours.positive) : colours.accent);
    context.fillStyle = css(colour, wide < box.width ? 0.75 : 0.28);
    const half = signed ? wide / 2 : 0;
    const size = (wide - half) * share;
    context.fillRect(value < 0 ? box.x + half - size : box.x + half, box.y, size, box.height);
    if (signed) {
      context.fillStyle = colours.line;
      context.fillRect(box.x + half, box.y - 2, 1, box.height + 4);
    }
  }
  context.fillStyle = colours.ink;
  context.textAlign = "right";
  context.fillText(number(value, digits), box.x + box.width - 3, box.y + box.height / 2 + 0.5);
}

/**
 * The row of one key.
 * @param {CanvasRenderingContext2D} context
 * @param {Row} row
 * @param {number} key
 * @param {number} y
 * @param {object} how
 * @param {ReturnType<typeof columnsFor>} how.columns
 * @param {Colours} how.colours
 * @param {{k: number, product: number, score: number, bias: number}} how.most
 * @param {boolean} how.marked
 */
export function drawKey(context, row, key, y, { columns, colours, most, marked }) {
  const open = row.allowed(key);
  const height = ROW - 8;
  const narrow = columns[0].width < 100;
  context.font = `${narrow ? 11 : 13}px ${FONT}`;
  context.textBaseline = "middle";
  if (marked) {
    context.fillStyle = colours.accentSoft;
    context.fillRect(0, y, columns[columns.length - 1].x + columns[columns.length - 1].width, ROW);
  }
  for (const { name, x, width } of columns) {
    const box = { x, y: y + 4, width, height };
    context.globalAlpha = open || name === "name" ? 1 : 0.25;
    if (name === "name") {
      context.fillStyle = open ? colours.ink : colours.muted;
      context.textAlign = "right";
      context.fillText(fit(context, row.keys[key], width - 4), x + width, y + ROW / 2);
    } else if (name === "key") strip(context, row.k.subarray(key * row.dims, (key + 1) * row.dims), box, most.k, colours);
    else if (name === "product") strip(context, productOf(row, key), box, most.product, colours);
    else if (name === "bias") bar(context, row.bias?.[key] ?? 0, box, { most: most.bias, signed: true, colours, digits: 2 });
    else if (name === "score") bar(context, row.scores[key], box, { most: most.score, signed: true, colours, digits: narrow ? 2 : 3 });
    else bar(context, row.weights[key], box, { most: 1, signed: false, colours, digits: narrow ? 3 : 4 });
  }
  context.globalAlpha = 1;
}

/**
 * The names of the columns, and the query above the keys.
 * @param {CanvasRenderingContext2D} context
 * @param {Row} row
 * @param {object} how
 * @param {ReturnType<typeof columnsFor>} how.columns
 * @param {Colours} how.colours
 * @param {Record<ColumnName, string>} how.titles
 * @param {string} how.queryTitle
 * @param {number} how.most
 */
export function drawHead(context, row, { columns, colours, titles, queryTitle, most }) {
  const narrow = columns[0].width < 100;
  context.textBaseline = "middle";
  for (const { name, x, width } of columns) {
    context.font = `${narrow ? 10.5 : 12}px ${FONT}`;
    context.fillStyle = colours.muted;
    context.textAlign = name === "name" ? "right" : name === "key" || name === "product" ? "left" : "right";
    if (name !== "name") context.fillText(fit(context, titles[name], width), context.textAlign === "left" ? x : x + width, HEAD - 12);
  }
  const first = columns[0];
  const strips = columns[1];
  context.font = `600 ${narrow ? 11 : 13}px ${FONT}`;
  context.fillStyle = colours.accent;
  context.textAlign = "right";
  context.fillText(fit(context, row.query, first.width - 4), first.x + first.width, 14);
  strip(context, row.q, { x: strips.x, y: 5, width: strips.width, height: ROW - 8 }, most, colours);
  context.textAlign = "left";
  context.font = `${narrow ? 10.5 : 12}px ${FONT}`;
  context.fillText(queryTitle, strips.x + strips.width + 10, 14);
  context.strokeStyle = colours.line;
  context.beginPath();
  context.moveTo(0, HEAD - 0.5);
  context.lineTo(columns[columns.length - 1].x + columns[columns.length - 1].width, HEAD - 0.5);
  context.stroke();
}
