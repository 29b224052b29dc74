// @ts-check
// Flow, outermost, for narrow screens: the whole model from top to bottom.

import { s } from "../dom.js";
import { headKind } from "../state.js";
import { placementOf } from "../mechanisms.js";
import { arrow, box, costText, fitted, partColours } from "./flow_draw.js";
import { drawBars, embedLine, groupedHeads, headLines, stackLine, stackLines, words } from "./flow_model_parts.js";
import { costOf } from "./flow_parts.js";

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
    const { element, high } = narrowStack(env, row, y, width);
    svg.append(element);
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
  const { layers } = row.stack;
  const lines = stackLines(env, row, width - 4);
  const title = `${ctx.t(row.name)} · ${ctx.t("layersOf", { n: layers })}`;
  const top = y + 43 + 15 * lines.length;
  const [bar, pitch] = placementOf(row.stack).parallel ? [17, 24] : [8, 12];
  const high = top + layers * pitch + 10 - y;
  const bars = Array.from({ length: layers }, (_, layer) => drawBars(env, row.stack, layer, { x: 14, y: top + layer * pitch, width: width - 31, height: bar }, false));
  const element = box(
    {
      x: 2, y, width: width - 4, height: high, colour: partColours(ctx).attention, key: `stack-${row.name}`, title,
      lines: [...lines, costText(ctx, costOf(env.costs, row.name))],
      label: `${title}. ${stackLine(env, row)}. ${ctx.t("opens")}`,
      onOpen: () => env.open("stack", row.name),
    },
    bars,
    groupedHeads(env, row, { x: 2, y, width: width - 4 }, title),
  );
  return { element, high };
}
