// @ts-check
// What the wide and the narrow picture of the whole model share.

import { percent } from "../arrays.js";
import { s } from "../dom.js";
import { headKind, lmOf } from "../state.js";
import { fitted } from "./flow_draw.js";
import { full } from "./flow_parts.js";

/** @typedef {import("./flow.js").Env} Env */
/** @typedef {import("./flow_parts.js").StackName} StackName */

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
  if (row.stack.unique_layers < row.stack.layers) words.push(ctx.t("sharedShort"));
  return words.join(" · ");
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
