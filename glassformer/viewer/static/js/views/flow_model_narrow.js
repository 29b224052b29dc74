// @ts-check
// Flow, outermost, for narrow screens: the whole model from top to bottom.

import { s } from "../dom.js";
import { headKind } from "../state.js";
import { arrow, box, costText, fitted, partColours, tint } from "./flow_draw.js";
import { embedLine, headLines, stackLine, words } from "./flow_model_parts.js";
import { costOf, sublayersOf } from "./flow_parts.js";

/** @typedef {import("./flow.js").Env} Env */
/** @typedef {import("./flow_model_parts.js").Row} Row */

/**
 * The picture from top to bottom.
 * @param {Env} env
 * @param {Row[]} rows
 * @param {{text: string, share: number}[]} predicted
 */
export function drawNarrow(env, rows, predicted) {
  const { ctx } = env;
  const parts = partColours(ctx);
  const colours = ctx.colours();
  const width = env.pictureWidth;
  const svg = s("svg", { width, role: "group", "aria-label": ctx.t("modelPicture") });
  const middle = width / 2;
  let y = 2;
  rows.forEach((row, number) => {
    const isLast = number === rows.length - 1;
    const text = fitted(row.tokens.map((token) => token.text).join(" "), width - 16, 12);
    svg.append(s("text", { x: middle, y: y + 12, "font-size": 12, "text-anchor": "middle", class: "quiet" }, text));
    y += 18;
    svg.append(arrow(`M${middle},${y} L${middle},${y + 20}`, colours.accent, 3));
    y += 24;
    svg.append(
      box({
        x: 2, y, width: width - 4, height: 62, colour: parts.embed, key: "embed", title: ctx.t("embedding"),
        lines: [embedLine(env), number ? ctx.t("sharedEmbedding") : costText(ctx, costOf(env.costs, "embed"))], label: `${ctx.t("embedding")}. ${ctx.t("opens")}`,
        onOpen: () => env.open("embed", row.name),
      }),
      arrow(`M${middle},${y + 62} L${middle},${y + 82}`, colours.accent, 3),
    );
    y += 86;
    svg.append(narrowStack(env, row, y, width));
    const high = 68 + row.stack.layers * 12;
    svg.append(arrow(`M${middle},${y + high} L${middle},${y + high + 20}`, isLast ? colours.accent : parts.cross, 3));
    if (!isLast) {
      svg.append(s("text", { x: middle + 12, y: y + high + 15, "font-size": 11.5, class: "quiet" }, ctx.t("memoryArrow")));
    }
    y += high + 26;
    if (!isLast || headKind(ctx.model) === "none") return;
    svg.append(
      box({
        x: 2, y, width: width - 4, height: 62, colour: parts.head, key: "head", title: ctx.t("outputHead"),
        lines: [headLines(env).join(" "), costText(ctx, costOf(env.costs, "head"))], label: `${ctx.t("outputHead")}. ${ctx.t("opens")}`,
        onOpen: () => env.open("head", row.name),
      }),
    );
    y += 82;
    const bottom = y + predicted.length * 30 + 12;
    svg.append(words(env, predicted, { x: 2, y: y + 10, width: width - 4, top: y, bottom }));
    y = bottom;
  });
  svg.setAttribute("height", String(y + 6));
  svg.setAttribute("viewBox", `0 0 ${width} ${y + 6}`);
  return svg;
}

/**
 * @param {Env} env
 * @param {Row} row
 * @param {number} y
 * @param {number} width
 */
function narrowStack(env, row, y, width) {
  const { ctx } = env;
  const parts = partColours(ctx);
  const sublayers = sublayersOf(row.stack);
  const inner = width - 28;
  /** @type {Element[]} */
  const bars = [];
  for (let layer = 0; layer < row.stack.layers; layer++) {
    sublayers.forEach((sub, number) => {
      const wide = inner / sublayers.length;
      bars.push(
        s("rect", {
          x: 14 + number * wide, y: y + 58 + layer * 12, width: wide - 3, height: 8, rx: 2, fill: tint(parts[sub], 0.55), stroke: parts[sub],
          "aria-hidden": "true",
        }),
      );
    });
  }
  return box(
    {
      x: 2, y, width: width - 4, height: 68 + row.stack.layers * 12, colour: parts.attention, key: `stack-${row.name}`,
      title: `${ctx.t(row.name)} · ${ctx.t("layersOf", { n: row.stack.layers })}`,
      lines: [stackLine(env, row), costText(ctx, costOf(env.costs, row.name))],
      label: `${ctx.t(row.name)}, ${ctx.t("layersOf", { n: row.stack.layers })}. ${ctx.t("opens")}`,
      onOpen: () => env.open("stack", row.name),
    },
    bars,
  );
}
