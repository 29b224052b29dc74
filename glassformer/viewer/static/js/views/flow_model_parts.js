// @ts-check
// What the wide and the narrow picture of the whole model share.

import { percent } from "../arrays.js";
import { s } from "../dom.js";
import { headKind, lmOf } from "../state.js";
import { fitted, headSquares, partColours, textWidth, tint, wrapped } from "./flow_draw.js";
import { full, stepsOf } from "./flow_parts.js";

/** @typedef {import("./flow.js").Env} Env */
/** @typedef {import("./flow_parts.js").StackName} StackName */
/** @typedef {import("./flow_parts.js").Sublayer} Sublayer */

/**
 * What is drawn of one stack.
 * @typedef {object} Row
 * @property {StackName} name
 * @property {any} stack
 * @property {any[]} tokens
 * @property {number} token the chosen one
 * @property {{first: number, last: number}} shown
 * @property {number[][] | null} weights per layer, what the chosen token attends to; mean of all heads
 * @property {number[][] | null} cross the same of cross-attention, where it is chosen
 * @property {import("../arrays.js").Nd | null} first vectors of the drawn tokens before the first layer
 * @property {import("../arrays.js").Nd | null} last those after the last
 */

/** @param {Env} env */
export function embedLine(env) {
  const position = env.ctx.model.facts?.embed?.position;
  return position ? `+ ${env.ctx.t(`position.${position.kind}`)}` : env.ctx.t("position.none");
}

/** @param {Env} env */
export function headLines(env) {
  const { ctx } = env;
  const kind = headKind(ctx.model);
  const lm = lmOf(ctx.model);
  if (lm) {
    return [lm.tied ? ctx.t("tied") : ctx.t("untied"), `→ ${full(ctx.model.vocab)}`];
  }
  return [ctx.model.labels ? ctx.t("labels", { n: ctx.model.labels.length }) : kind];
}

/**
 * @param {Env} env
 * @param {Row} row
 */
export function stackLine(env, row) {
  const { ctx } = env;
  const words = [ctx.t(`placement.${row.stack.placement}`), ctx.t("headsOf", { heads: row.stack.heads, size: row.stack.head_dim })];
  if (row.stack.kv_heads !== row.stack.heads) words.push(ctx.t("keyHeads", { n: row.stack.kv_heads }));
  if (row.stack.unique_layers < row.stack.layers) words.push(ctx.t("sharedShort"));
  return words.join(" · ");
}

/**
 * The line about a stack, in lines that fit its box.
 * @param {Env} env
 * @param {Row} row
 * @param {number} width of the box
 */
export const stackLines = (env, row, width) => wrapped(stackLine(env, row), width - 20, 11.5, 2);

const NORM = 5; // length of a norm's bar
const BETWEEN = 2; // pixels between two bars

/**
 * A bar of a layer: what comes later lies further along, and what runs at the same time lies side by side across.
 * @typedef {object} Bar
 * @property {"norm" | "sublayer"} kind
 * @property {Sublayer} of the sublayer that it belongs to
 * @property {number} along
 * @property {number} length
 * @property {number} across
 * @property {number} breadth
 */

/**
 * The norms and sublayers of a layer as bars in a rectangle.
 * @param {any} stack
 * @param {number} length
 * @param {number} breadth
 * @returns {Bar[]}
 */
export function layerBars(stack, length, breadth) {
  const steps = stepsOf(stack).filter((step) => step.kind !== "add");
  /** @type {import("./flow_parts.js").Step[][]} steps that run at the same time */
  const rows = steps[0].parallel ? ["norm", "sublayer"].map((kind) => steps.filter((step) => step.kind === kind)) : steps.map((step) => [step]);
  const norms = rows.filter(([step]) => step.kind === "norm").length;
  const each = (length - norms * NORM - (rows.length - 1) * BETWEEN) / (rows.length - norms);
  let along = 0;
  return rows.flatMap((row) => {
    const long = row[0].kind === "norm" ? NORM : each;
    const wide = (breadth - (row.length - 1) * BETWEEN) / row.length;
    const bars = row.map(({ kind, of }, number) => ({ kind: /** @type {Bar["kind"]} */ (kind), of, along, length: long, across: number * (wide + BETWEEN), breadth: wide }));
    along += long + BETWEEN;
    return bars;
  });
}

/**
 * A layer as bars.
 * @param {Env} env
 * @param {any} stack
 * @param {number} layer
 * @param {{x: number, y: number, width: number, height: number}} place
 * @param {boolean} down whether the layer runs from top to bottom, not from left to right
 */
export function drawBars(env, stack, layer, { x, y, width, height }, down) {
  const parts = partColours(env.ctx);
  const bars = layerBars(stack, down ? height : width, down ? width : height).map(({ kind, of, along, length, across, breadth }) => {
    const colour = parts[kind === "norm" ? "norm" : of];
    const size = down ? { x: x + across, y: y + along, width: breadth, height: length } : { x: x + along, y: y + across, width: length, height: breadth };
    return s("rect", { ...size, rx: kind === "norm" ? 1.5 : 3, fill: tint(colour, 0.55), stroke: colour, "data-bar": kind === "norm" ? `norm-${of}` : of });
  });
  return s("g", { "aria-hidden": "true", "data-layer": layer }, ...bars);
}

/**
 * Query heads above the key heads that they share, beside the title of a stack; nothing where each has its own.
 * @param {Env} env
 * @param {Row} row
 * @param {{x: number, y: number, width: number}} place of the stack
 * @param {string} title
 */
export function groupedHeads(env, { stack }, { x, y, width }, title) {
  const most = width - textWidth(title, 13.5, 600) - 56;
  if (stack.kv_heads === stack.heads || most < 48) return null;
  const wide = Math.min(most, stack.heads * 10);
  const group = headSquares(env.ctx, stack, { x: x + width - 12 - wide, y: y + 5, width: wide, size: 7 }, null);
  group.setAttribute("data-heads", `${stack.heads}/${stack.kv_heads}`);
  return group;
}

/**
 * The predicted words with their probabilities.
 * @param {Env} env
 * @param {{text: string, share: number}[]} predicted
 * @param {{x: number, y: number, width: number, top: number, bottom: number}} place
 */
export function words(env, predicted, { x, y, width, top, bottom }) {
  const { ctx } = env;
  const colours = ctx.colours();
  const group = s("g", { role: "list", "aria-label": ctx.t("predictions") });
  const step = 30;
  const first = Math.max(top + 14, Math.min(y, bottom - predicted.length * step + 8));
  predicted.forEach((word, number) => {
    const level = first + number * step;
    const share = percent(word.share);
    group.append(
      s(
        "g",
        { role: "listitem", "aria-label": `${word.text}: ${share}` },
        s("text", { x: x + 2, y: level, "font-size": 12.5, "font-weight": number ? 400 : 600 }, fitted(word.text, width - 56, 12.5)),
        s("text", { x: x + width - 2, y: level, "font-size": 11, "text-anchor": "end", class: "quiet" }, share),
        s("rect", { x: x + 2, y: level + 5, width: Math.max(1, (width - 4) * word.share), height: 5, rx: 2, fill: number ? colours.muted : colours.accent }),
      ),
    );
  });
  return group;
}
