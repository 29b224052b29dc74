// @ts-check
// Small drawings that the figures and the tour share: vectors as strips, matrices as thumbnails, bars, shapes.

import { at, decode, extent, number } from "../arrays.js";
import { pixels } from "../canvas.js";
import { h } from "../dom.js";
import { hideTip, showTip } from "../tooltip.js";

/** @typedef {import("../types.js").Ctx} Ctx */
/** @typedef {import("../types.js").Token} Token */
/** @typedef {{shape: number[], data: ArrayLike<number>}} Values */

/**
 * A token as a short label, in which spaces are seen.
 * @param {Token | {text: string}} token
 */
export const tokenLabel = (token) => token.text.replace(/^ /, "").replace(/ /g, "·").replace(/\n/g, "⏎") || "␣";

/**
 * Tokens as buttons, of which one is chosen; arrow keys move between them.
 * @param {Token[]} tokens
 * @param {number} chosen
 * @param {(index: number) => void} onChange
 * @param {string} label
 * @param {number} [most] how many to show: those around the chosen one
 */
export function tokenChips(tokens, chosen, onChange, label, most = 60) {
  const first = Math.max(0, Math.min(tokens.length - most, chosen - Math.floor(most / 2)));
  const shown = tokens.slice(first, first + most);
  const row = h("div", { class: "token-chips", role: "radiogroup", "aria-label": label });
  const buttons = shown.map((token, offset) => {
    const i = first + offset;
    return h("button", {
      type: "button", role: "radio", class: `chip${token.special ? " token special" : ""}`, "aria-checked": String(i === chosen),
      "aria-pressed": String(i === chosen), tabindex: i === chosen ? 0 : -1, "data-token": i, onclick: () => onChange(i),
    }, tokenLabel(token));
  });
  row.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const next = (chosen + step + tokens.length) % tokens.length;
    onChange(next);
    requestAnimationFrame(() => /** @type {HTMLElement | null} */ (document.querySelector(`.token-chips [data-token="${next}"]`))?.focus());
  });
  row.append(...(first ? ["… "] : []), ...buttons, ...(first + most < tokens.length ? [" …"] : []));
  return row;
}

/**
 * The largest size of the values, for a colour map around zero; at least a tiny number.
 * @param {ArrayLike<number>} values
 */
export function reach(values) {
  const { min, max } = extent(values);
  return Math.max(Math.abs(min), Math.abs(max), 1e-12);
}

/**
 * A matrix as a small picture, one rectangle for each value, with the exact value under the pointer.
 * @param {Ctx} ctx
 * @param {Values} values (rows, columns)
 * @param {object} options
 * @param {string} options.label
 * @param {number} [options.width] in pixels
 * @param {number} [options.height]
 * @param {"signed" | "share"} [options.map] around zero, or from 0 to 1
 * @param {number} [options.most] the value with the strongest colour
 * @param {(row: number, column: number) => string} [options.name] of a cell
 */
export function thumb(ctx, values, { label, width, height, map = "signed", most, name }) {
  const colours = ctx.colours();
  const [rows, columns] = values.shape;
  const largest = most ?? (map === "share" ? Math.max(extent(values.data).max, 1e-12) : reach(values.data));
  const masked = /** @type {[number, number, number]} */ (colours.sequential(0));
  const canvas = pixels(rows, columns, (row, column) => {
    const value = values.data[row * columns + column];
    if (!Number.isFinite(value)) return masked;
    return map === "share" ? colours.sequential(value / largest) : colours.diverging(value / largest);
  });
  canvas.className = "thumb";
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", label);
  canvas.style.setProperty("width", `${width ?? columns * 4}px`);
  canvas.style.setProperty("height", `${height ?? rows * 4}px`);
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const column = Math.max(0, Math.min(columns - 1, Math.floor(((event.clientX - box.left) / box.width) * columns)));
    const row = Math.max(0, Math.min(rows - 1, Math.floor(((event.clientY - box.top) / box.height) * rows)));
    const where = name ? name(row, column) : rows === 1 ? `[${column}]` : `[${row}, ${column}]`;
    showTip(event.clientX, event.clientY, `${where}  ${number(values.data[row * columns + column], 4)}`);
  });
  canvas.addEventListener("pointerleave", hideTip);
  return canvas;
}

/**
 * A vector as a strip.
 * @param {Ctx} ctx
 * @param {ArrayLike<number>} vector
 * @param {object} options
 * @param {string} options.label
 * @param {number} [options.height]
 * @param {number} [options.most]
 * @param {string} [options.caption]
 */
export function strip(ctx, vector, { label, height = 20, most, caption }) {
  const picture = thumb(ctx, { shape: [1, vector.length], data: vector }, { label, height, most });
  picture.classList.add("strip");
  picture.style.setProperty("width", "100%");
  const widest = `${Math.max(160, Math.min(640, vector.length * 8))}px`;
  picture.style.setProperty("max-width", widest);
  return caption === undefined ? picture : h("div", { class: "strip-row", style: { "--strip": widest } }, h("span", { class: "strip-name" }, caption), picture, h("span", { class: "shape" }, `(${vector.length})`));
}

/**
 * The shape of an array, as it is written: (14, 256).
 * @param {...(number | string)} sizes
 */
export const shape = (...sizes) => h("span", { class: "shape" }, `(${sizes.join(", ")})`);

/**
 * Horizontal bars with names and numbers.
 * @param {Ctx} ctx
 * @param {{name: string, value: number, shown?: string, special?: boolean, strong?: boolean, title?: string}[]} rows
 * @param {object} options
 * @param {string} options.label
 * @param {number} [options.most] the length of a full bar
 * @param {string} [options.colour]
 * @param {string} [options.kind] an extra class
 */
export function bars(ctx, rows, { label, most, colour, kind = "" }) {
  const largest = most ?? Math.max(...rows.map(({ value }) => Math.abs(value)), 1e-12);
  const fill = colour ?? ctx.colours().accent;
  const signed = rows.some(({ value }) => value < 0);
  return h("table", { class: `bars ${kind}`.trim(), "aria-label": label },
    h("tbody", {}, rows.map(({ name, value, shown, special, strong, title }) => {
      const share = Math.min(1, Math.abs(value) / largest) * (signed ? 50 : 100);
      const left = !signed ? 0 : value < 0 ? 50 - share : 50;
      return h("tr", { class: strong ? "strong" : "", title: title ?? null },
        h("th", { scope: "row" }, h("span", { class: special ? "token special" : "token" }, name)),
        h("td", { class: "bars-track", "aria-hidden": "true" },
          h("span", { class: "bars-fill", style: { left: `${left}%`, width: `${Number.isFinite(share) ? share : 0}%`, background: value < 0 ? ctx.colours().negative : fill } })),
        h("td", { class: "number" }, shown ?? number(value, 3)));
    })));
}

/**
 * A sum written out: the largest terms, how many others, and the result.
 * @param {ArrayLike<number>} a
 * @param {ArrayLike<number>} b
 * @param {number} result
 * @param {number} [count]
 */
export function sumText(a, b, result, count = 3) {
  const order = Array.from({ length: a.length }, (_, i) => i).sort((i, j) => Math.abs(a[j] * b[j]) - Math.abs(a[i] * b[i]));
  const term = (/** @type {number} */ i) => `${bracket(a[i])}·${bracket(b[i])}`;
  const rest = a.length - Math.min(count, a.length);
  return `${order.slice(0, count).map(term).join(" + ")}${rest ? " + …" : ""} = ${number(result, 3)}`;
}

/** A number inside a product. @param {number} value */
const bracket = (value) => (value < 0 ? `(${number(value, 2)})` : number(value, 2));

/**
 * The vectors of some tokens, (tokens, width), or null where a saved page does not hold them. Such a page has those of
 * all tokens of a short text.
 * @param {Ctx} ctx
 * @param {string} name of the value
 * @param {number[]} tokens
 * @returns {Promise<import("../arrays.js").Nd | null>}
 */
export async function vectorsOf(ctx, name, tokens) {
  const saved = ctx.page.mode === "file";
  const answer = await ctx.api("values", { name, tokens: saved ? null : tokens }, { slot: name, quiet: saved }).catch((error) => {
    if (saved && error?.missing) return null;
    throw error;
  });
  if (!answer) return null;
  const values = decode(answer.values);
  if (!saved) return values;
  const width = values.shape[1];
  const data = new Float32Array(tokens.length * width);
  tokens.forEach((token, i) => data.set(/** @type {any} */ (at(values, token).data), i * width));
  return { shape: [tokens.length, width], data };
}
