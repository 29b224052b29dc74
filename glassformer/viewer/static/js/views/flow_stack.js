// @ts-check
// Flow inside a stack: the residual stream, and the layers that read from it and add to it.

import { at, decode } from "../arrays.js";
import { h, s } from "../dom.js";
import { placementOf, windowOf } from "../mechanisms.js";
import { arrow, box, costTable, costText, costTip, fitted, funnel, headSquares, partColours, textWidth, tint } from "./flow_draw.js";
import { costOf, layerCost, normName, partsOf, short, weightGroups, WHOLE } from "./flow_parts.js";
import { visibleText } from "../tokens.js";
import { headKind } from "../state.js";

/** @typedef {import("./flow.js").Env} Env */
/** @typedef {{text: string, share: number} | null} Word */

/**
 * @param {Env} env
 * @returns {Promise<HTMLElement>}
 */
export async function stackScene(env) {
  const { ctx, stack, name } = env;
  const words = await lensWords(env);
  const picture = h("div", { class: "flow-picture" }, env.narrow ? drawDown(env, words) : drawAcross(env, words));
  const groups = weightGroups(stack);
  const rows = groups.map((group) => {
    const cost = costOf(env.costs, `${name}.blocks.${group.block}`);
    const span = group.first === group.last ? String(group.first) : `${group.first} – ${group.last}`;
    return { name: ctx.t("layerN", { n: span }), cost, key: `layer-${group.first}` };
  });
  if (stack.convolution) rows.push({ name: ctx.t("convolution"), cost: costOf(env.costs, `${name}.convolution`), key: "convolution" });
  rows.push({ name: ctx.t("finalNorm"), cost: costOf(env.costs, `${name}.norm`), key: "norm" });
  const notes = [h("p", { class: "flow-about" }, ctx.t(words ? "lensAbout" : "stackAbout", { token: env.word }))];
  if (groups.length < stack.layers) notes.push(h("p", { class: "flow-about" }, ctx.t(groups.length === 1 ? "sharedAll" : "sharedLong", { layers: stack.layers, n: groups.length })));
  return h(
    "div",
    { class: "flow-scene" },
    picture,
    notes,
    h("div", { class: "flow-aside" }, costTable(ctx, ctx.t("costs"), rows, costOf(env.costs, name))),
  );
}

/**
 * The word that the head would predict from the residual stream after each layer.
 * @param {Env} env
 * @returns {Promise<Word[] | null>}
 */
async function lensWords(env) {
  const { ctx, name, stack } = env;
  const stacks = ctx.model.stacks;
  if (headKind(ctx.model) !== "lm" || (name === "encoder" && stacks.decoder)) return null;
  const count = env.tokens[name]?.length ?? 0;
  const all = count <= WHOLE;
  const answer = await env.ask("lens", all ? { top: 1 } : { top: 1, position: env.token });
  if (!answer) return null;
  const column = all ? env.token : 0;
  const ids = decode(answer.ids);
  const probs = decode(answer.probs);
  if (ids.shape[0] < stack.layers + 1) return null;
  return Array.from({ length: stack.layers }, (_, layer) => {
    const id = at(ids, layer + 1, column).data[0]; // the embedding comes first
    return { text: visibleText(String(answer.texts[id] ?? id)), share: at(probs, layer + 1, column).data[0] };
  });
}

/**
 * @param {Env} env
 * @param {number} layer
 */
function layerLines(env, layer) {
  const { ctx, stack } = env;
  const window = windowOf(stack, layer);
  const lines = [];
  if (window) lines.push(ctx.t(window, { n: stack.windows[layer] }));
  const cost = layerCost(env.costs, stack, env.name, layer);
  if (cost) {
    lines.push(ctx.t("parameters", { n: short(cost.parameters) }), short(cost.bytes, "B"), short(cost.flops, "FLOP"));
  }
  return lines;
}

/**
 * @param {Env} env
 * @param {Word[] | null} words
 */
function drawAcross(env, words) {
  const { ctx, stack, name } = env;
  const colours = ctx.colours();
  const parts = partColours(ctx);
  const edge = 64;
  const each = Math.max(138, Math.min(210, (env.stageWidth - 2 * edge) / stack.layers));
  const card = each - 26;
  const width = Math.max(env.stageWidth, 2 * edge + each * stack.layers);
  const glyphs = partsOf(stack, 0).length * 52;
  const top = 64;
  const lines = Math.max(...stack.windows.map((/** @type {any} */ _, /** @type {number} */ layer) => layerLines(env, layer).length));
  const high = 34 + glyphs + 8 + 15 * lines;
  const below = top + high + 12;
  const shared = stack.unique_layers < stack.layers;
  const height = below + (words ? 44 : 0) + (shared ? 40 : 0) + 8;
  const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": ctx.t("stackPicture", { stack: ctx.t(name) }) });
  svg.append(
    arrow(`M6,30 L${width - 8},30`, colours.accent, 7),
    s("text", { x: 8, y: 14, "font-size": 12, class: "quiet" }, ctx.t("stream", { width: stack.width })),
  );
  for (let layer = 0; layer < stack.layers; layer++) {
    const x = edge + layer * each;
    const middle = x + card / 2;
    svg.append(
      arrow(`M${x + 16},30 C${x + 16},50 ${x + 16},50 ${x + 16},${top - 2}`, colours.muted, 2),
      arrow(`M${x + card - 16},${top} C${x + card - 16},50 ${x + card - 16},50 ${x + card - 16},42`, colours.muted, 2),
      plusOn(x + card - 16, 30, colours.accent, colours.paper),
      placementOf(stack).onStream ? normOn(x + card - 1, 30, ctx.t("norm"), colours) : "",
      layerCard(env, layer, { x, y: top, width: card, height: high }),
    );
    const word = words?.[layer];
    if (word) {
      svg.append(
        s("text", { x: middle, y: below + 12, "text-anchor": "middle", "font-size": 12.5, "font-weight": 600 }, fitted(word.text, card, 12.5, 600)),
        s("text", { x: middle, y: below + 28, "text-anchor": "middle", "font-size": 11, class: "quiet" }, `${(100 * word.share).toFixed(1)} %`),
      );
    }
  }
  if (stack.final_norm) {
    const x = edge + stack.layers * each - 12;
    svg.append(
      s("rect", { x, y: 17, width: 54, height: 26, rx: 6, fill: colours.paper, stroke: parts.norm }),
      s("text", { x: x + 27, y: 34, "text-anchor": "middle", "font-size": 11 }, ctx.t("norm")),
    );
  }
  if (shared) {
    const level = height - 34;
    for (const group of weightGroups(stack)) {
      const from = edge + group.first * each;
      const to = edge + group.last * each + card;
      svg.append(
        s("path", { d: `M${from},${level} v8 H${to} v-8`, fill: "none", stroke: colours.muted, "stroke-width": 1.5 }),
        s("text", { x: (from + to) / 2, y: level + 24, "text-anchor": "middle", "font-size": 12, class: "quiet" }, ctx.t("oneSet", { n: group.last - group.first + 1 })),
      );
    }
  }
  return svg;
}

/**
 * @param {number} x
 * @param {number} y
 * @param {string} colour
 * @param {string} paper
 */
function plusOn(x, y, colour, paper) {
  return s(
    "g",
    { "aria-hidden": "true", stroke: colour, "stroke-width": 2 },
    s("circle", { cx: x, cy: y, r: 9, fill: paper }),
    s("path", { d: `M${x - 4},${y} h8 M${x},${y - 4} v8` }),
  );
}

/**
 * A norm on the stream itself, as post-norm layers have it after each sum.
 * @param {number} x
 * @param {number} y
 * @param {string} text
 * @param {import("../types.js").Colours} colours
 */
function normOn(x, y, text, colours) {
  const width = Math.min(46, textWidth(text, 10) + 8);
  return s(
    "g",
    { "aria-hidden": "true" },
    s("rect", { x, y: y - 9, width, height: 18, rx: 5, fill: colours.paper, stroke: colours.muted }),
    s("text", { x: x + width / 2, y: y + 3.5, "text-anchor": "middle", "font-size": 10 }, text),
  );
}

/**
 * @param {Env} env
 * @param {number} layer
 * @param {{x: number, y: number, width: number, height: number}} place
 */
function layerCard(env, layer, place) {
  const { ctx, stack, name } = env;
  const parts = partColours(ctx);
  const cost = layerCost(env.costs, stack, name, layer);
  const inner = place.width - 24;
  /** @type {Element[]} */
  const glyphs = [];
  partsOf(stack, layer).forEach((sub, number) => {
    const y = place.y + 34 + number * 52;
    glyphs.push(
      s("rect", { x: place.x + 8, y, width: place.width - 16, height: 46, rx: 6, fill: tint(parts[sub], 0.12), stroke: tint(parts[sub], 0.7) }),
      s("text", { x: place.x + 15, y: y + 14, "font-size": 11 }, fitted(ctx.t(`${sub}Short`), inner - 6, 11)),
    );
    if (sub === "convolution") glyphs.push(s("text", { x: place.x + 15, y: y + 32, "font-size": 11, class: "quiet" }, fitted(ctx.t("neighbours", { n: stack.convolution.kernel }), inner - 6, 11)));
    else if (sub === "ffn") glyphs.push(funnel(stack, { x: place.x + 16, y: y + 19, width: Math.min(inner - 8, 96), height: 22 }, parts.ffn));
    else glyphs.push(headSquares(ctx, stack, { x: place.x + 15, y: y + 20, width: inner - 8, size: 8 }, layer === env.state.layer ? env.head : null));
  });
  const lines = layerLines(env, layer);
  const first = place.y + 34 + partsOf(stack, 0).length * 52 + 12;
  const texts = lines.map((line, number) => s("text", { x: place.x + 12, y: first + number * 15, "font-size": 11, class: "quiet" }, fitted(line, inner, 11)));
  const chosen = layer === env.state.layer;
  return box(
    {
      ...place, colour: chosen ? ctx.colours().heads[0] : parts.norm, key: `layer-${layer}`, title: ctx.t("layerN", { n: layer }),
      label: `${ctx.t("layerN", { n: layer })}. ${costText(ctx, cost)}. ${ctx.t("opens")}`, tip: costTip(ctx, cost),
      onOpen: () => env.open("layer", name, { layer }),
    },
    glyphs,
    texts,
    s("title", {}, `${ctx.t("layerN", { n: layer })}: ${ctx.t(`placement.${stack.placement}`)}, ${normName(ctx.model)}`),
  );
}

/**
 * From top to bottom, for narrow screens.
 * @param {Env} env
 * @param {Word[] | null} words
 */
function drawDown(env, words) {
  const { ctx, stack, name } = env;
  const colours = ctx.colours();
  const parts = partColours(ctx);
  const width = env.stageWidth;
  const high = 96;
  const step = high + 18;
  const height = stack.layers * step + 60;
  const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": ctx.t("stackPicture", { stack: ctx.t(name) }) });
  svg.append(
    arrow(`M16,18 L16,${height - 12}`, colours.accent, 7),
    s("text", { x: 30, y: 14, "font-size": 12, class: "quiet" }, ctx.t("stream", { width: stack.width })),
  );
  for (let layer = 0; layer < stack.layers; layer++) {
    const y = 26 + layer * step;
    const cost = layerCost(env.costs, stack, name, layer);
    const sublayers = partsOf(stack, layer);
    const room = (width - 60) / sublayers.length;
    /** @type {Element[]} */
    const glyphs = [];
    sublayers.forEach((sub, number) => {
      const x = 52 + number * room;
      glyphs.push(
        s("rect", { x, y: y + 46, width: room - 8, height: 40, rx: 6, fill: tint(parts[sub], 0.12), stroke: tint(parts[sub], 0.7) }),
        s("text", { x: x + 6, y: y + 59, "font-size": 10.5 }, fitted(ctx.t(`${sub}Short`), room - 18, 10.5)),
      );
      if (sub === "convolution") glyphs.push(s("text", { x: x + 6, y: y + 75, "font-size": 10.5, class: "quiet" }, fitted(ctx.t("neighbours", { n: stack.convolution.kernel }), room - 18, 10.5)));
      else if (sub === "ffn") glyphs.push(funnel(stack, { x: x + 6, y: y + 63, width: Math.min(room - 22, 70), height: 18 }, parts.ffn));
      else glyphs.push(headSquares(ctx, stack, { x: x + 6, y: y + 64, width: room - 22, size: 7 }, layer === env.state.layer ? env.head : null));
    });
    const word = words?.[layer];
    if (word) {
      const said = `→ ${fitted(word.text, 90, 12)} ${(100 * word.share).toFixed(0)} %`;
      glyphs.push(s("text", { x: width - 14, y: y + 20, "text-anchor": "end", "font-size": 12 }, said));
    }
    svg.append(
      arrow(`M16,${y + 22} L42,${y + 22}`, colours.muted, 2),
      arrow(`M44,${y + high - 14} L28,${y + high - 14}`, colours.muted, 2),
      plusOn(16, y + high - 14, colours.accent, colours.paper),
      box(
        {
          x: 44, y, width: width - 48, height: high, colour: layer === env.state.layer ? colours.heads[0] : parts.norm, key: `layer-${layer}`,
          title: ctx.t("layerN", { n: layer }), lines: [layerLines(env, layer).join(" · ")],
          label: `${ctx.t("layerN", { n: layer })}. ${costText(ctx, cost)}. ${ctx.t("opens")}`,
          onOpen: () => env.open("layer", name, { layer }),
        },
        glyphs,
      ),
    );
  }
  if (stack.final_norm) {
    const y = height - 32;
    svg.append(
      s("rect", { x: 4, y: y - 4, width: 54, height: 22, rx: 6, fill: colours.paper, stroke: parts.norm }),
      s("text", { x: 31, y: y + 11, "text-anchor": "middle", "font-size": 11 }, ctx.t("norm")),
    );
  }
  return svg;
}
