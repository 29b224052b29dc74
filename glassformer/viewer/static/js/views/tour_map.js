// @ts-check
// The map of the tour: the model as boxes, with the part that a stop speaks of lit up. A click goes to that stop.

import { FONT } from "../canvas.js";
import { s } from "../dom.js";

/** @typedef {import("../types.js").Ctx} Ctx */
/** @typedef {{stop: string, text: string, quiet?: boolean}} Box a quiet one is no stop: the tour has been to its like */

const WIDE = 128;
const HIGH = 22;
const GAP = 6;

/**
 * The boxes of one stack's column, from the bottom (text) up.
 * @param {Ctx} ctx
 * @param {string[]} stops ids that the tour has
 * @param {"encoder" | "decoder" | "single"} column
 * @returns {{below: Box[], layer: Box[], above: Box[], layers: number}}
 */
function column(ctx, stops, column) {
  const { t, model } = ctx;
  const has = (/** @type {string} */ stop) => stops.includes(stop);
  const box = (/** @type {string} */ stop) => ({ stop, text: t(`map.${stop}`) });
  const some = (/** @type {string[]} */ ids) => ids.filter(has).map(box);
  const stack = column === "decoder" ? model.stacks.decoder : model.stacks.encoder ?? model.stacks.decoder;
  const layers = stack?.layers ?? 1;
  if (column === "decoder") return { below: some(["target"]), layer: [...some(["masked", "cross"]), { stop: "", text: t("map.ffn"), quiet: true }], above: some(["logits", "next", "again"]), layers };
  return {
    below: some(["text", "embed", "positions"]),
    layer: some(["qkv", "scores", "mask", "softmax", "sum", "concat", "residual", "ffn"]),
    above: column === "encoder" ? some(["memory"]) : some(["logits", "next", "again", "labels", "vectors"]),
    layers,
  };
}

/**
 * @param {Ctx} ctx
 * @param {string[]} stops
 * @param {string} now the stop that is shown
 * @param {(stop: string) => void} go
 */
export function drawMap(ctx, stops, now, go) {
  const { t, model } = ctx;
  const colours = ctx.colours();
  const pair = Boolean(model.stacks.encoder && model.stacks.decoder);
  const columns = pair ? [column(ctx, stops, "encoder"), column(ctx, stops, "decoder")] : [column(ctx, stops, "single")];
  const heightOf = (/** @type {ReturnType<typeof column>} */ { below, layer, above }) =>
    (below.length + layer.length + above.length) * (HIGH + GAP) + 44;
  const high = Math.max(...columns.map(heightOf)) + 8;
  const wide = columns.length * (WIDE + 44) + 8;
  const svg = s("svg", { viewBox: `0 0 ${wide} ${high}`, width: wide, height: high, class: "tour-map", role: "group", "aria-label": t("map") });
  columns.forEach((parts, number) => {
    const x = 20 + number * (WIDE + 44);
    let y = high - HIGH - 6;
    const draw = (/** @type {Box} */ { stop, text, quiet }) => {
      const on = stop === now;
      if (quiet) {
        svg.appendChild(s("rect", { x, y, width: WIDE, height: HIGH, rx: 5, fill: colours.panel, stroke: colours.line }));
        svg.appendChild(s("text", { x: x + WIDE / 2, y: y + HIGH / 2 + 4, "text-anchor": "middle", "font-family": FONT, "font-size": 11.5, fill: colours.muted }, text));
        y -= HIGH + GAP;
        return;
      }
      const group = s("g", { class: "node", tabindex: -1, role: "button", "aria-label": text, "aria-current": on ? "step" : null, "data-stop": stop },
        s("rect", { x, y, width: WIDE, height: HIGH, rx: 5, fill: on ? colours.accent : colours.panel, stroke: on ? colours.accent : colours.line, "stroke-width": on ? 2 : 1.2 }),
        s("text", { x: x + WIDE / 2, y: y + HIGH / 2 + 4, "text-anchor": "middle", "font-family": FONT, "font-size": 11.5, "font-weight": on ? 650 : 450, fill: on ? colours.paper : colours.ink }, text));
      group.addEventListener("click", () => go(stop));
      svg.appendChild(group);
      y -= HIGH + GAP;
    };
    const line = (/** @type {number} */ from, /** @type {number} */ to) =>
      svg.appendChild(s("line", { x1: x + WIDE / 2, x2: x + WIDE / 2, y1: from, y2: to, stroke: colours.line, "stroke-width": 2 }));
    line(high - HIGH, high - heightOf(parts) + 40);
    parts.below.forEach(draw);
    y -= 8;
    const bottom = y + HIGH + 6;
    const top = bottom - parts.layer.length * (HIGH + GAP) - 8;
    const lit = now === "layers" && !(pair && number === 1);
    const frame = s("g", { class: "node", role: "button", tabindex: -1, "aria-label": t("map.layers"), "data-stop": "layers" },
      s("rect", { x: x - 9, y: top, width: WIDE + 18, height: bottom - top, rx: 9, fill: lit ? colours.accentSoft : "none", stroke: lit ? colours.accent : colours.muted, "stroke-width": lit ? 2.5 : 1.2, "stroke-dasharray": lit ? null : "5 4" }),
      s("text", { x: x + WIDE + 12, y: (top + bottom) / 2, "font-family": FONT, "font-size": 12, "font-weight": 650, fill: lit ? colours.accent : colours.muted, transform: `rotate(90 ${x + WIDE + 12} ${(top + bottom) / 2})`, "text-anchor": "middle" }, `× ${parts.layers}`));
    frame.addEventListener("click", () => go("layers"));
    svg.appendChild(frame);
    parts.layer.forEach(draw);
    y -= 8;
    parts.above.forEach(draw);
  });
  if (pair) {
    const crossY = Number(svg.querySelector("[data-stop=cross] rect")?.getAttribute("y") ?? 0) + HIGH / 2;
    const memoryY = Number(svg.querySelector("[data-stop=memory] rect")?.getAttribute("y") ?? 0) + HIGH / 2;
    const on = now === "cross" || now === "memory";
    svg.insertBefore(s("path", { d: `M${20 + WIDE} ${memoryY}C${20 + WIDE + 34} ${memoryY} ${20 + WIDE + 14} ${crossY} ${20 + WIDE + 44} ${crossY}`, fill: "none", stroke: on ? colours.accent : colours.muted, "stroke-width": on ? 2.5 : 1.5 }), svg.firstChild);
  }
  return svg;
}
