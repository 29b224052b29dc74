// @ts-check
// Flow, outermost: the whole model, from the tokens on the left to the predicted words on the right.

import { at, decode } from "../arrays.js";
import { h, s } from "../dom.js";
import { visibleText } from "../tokens.js";
import { placementOf } from "../mechanisms.js";
import { headKind } from "../state.js";
import { arrow, box, costTable, costText, costTip, fitted, partColours, svgVector, textWidth, tint } from "./flow_draw.js";
import { drawNarrow } from "./flow_model_narrow.js";
import { drawBars, embedLine, groupedHeads, headLines, layerBars, stackLine, stackLines, words } from "./flow_model_parts.js";
import { mostProbable, readPrediction } from "./predict_read.js";
import { around, costOf, full, LINED, softReach, stacksOf, stackName, tokenOf, WHOLE } from "./flow_parts.js";

/** @typedef {import("./flow.js").Env} Env */
/** @typedef {import("./flow_model_parts.js").Row} Row */
/** @typedef {import("./flow_parts.js").StackName} StackName */

const LANES = 10; // tokens that are drawn
const LANE = 25; // pixels between two of them

/**
 * @param {Env} env
 * @returns {Promise<HTMLElement>}
 */
export async function modelScene(env) {
  const { ctx, state } = env;
  /** @type {Row[]} */
  const rows = await Promise.all(
    stacksOf(ctx.model).map(async (name) => {
      const stack = /** @type {any} */ (ctx.model.stacks)[name];
      const tokens = env.tokens[name] ?? [];
      const chosen = name === stackName(state.kind) ? env.token : tokenOf({ ...state, pins: [] }, env.tokens, name, ctx.model.abilities.includes("tag"));
      const shown = around(tokens.length, chosen, LANES);
      const crossing = state.kind === "cross" && name === "decoder";
      const [weights, first, last] = await Promise.all([
        overview(env, crossing ? "cross" : name, tokens.length, (crossing ? env.tokens.encoder ?? [] : tokens).length, chosen),
        vectors(env, `${name}.blocks.0.input`, shown, tokens.length),
        vectors(env, `${name}.output`, shown, tokens.length),
      ]);
      return { name, stack, tokens, token: chosen, shown, weights: crossing ? null : weights, cross: crossing ? weights : null, first, last };
    }),
  );
  const last = rows[rows.length - 1];
  const predicted = await outcomes(env, last);
  const draw = env.narrow ? drawNarrow : drawWide;
  const picture = h("div", { class: "flow-picture" }, draw(env, rows, predicted));
  const head = costOf(env.costs, "head");
  const parts = [
    { name: ctx.t("embedding"), cost: costOf(env.costs, "embed"), key: "embed" },
    ...rows.map((row) => ({ name: ctx.t(row.name), cost: costOf(env.costs, row.name), key: row.name })),
    { name: ctx.t("outputHead"), cost: head, key: "head" },
  ];
  const about = ctx.t("costAbout", { n: rows.map((row) => row.tokens.length).join(" + ") });
  return h(
    "div",
    { class: "flow-scene" },
    picture,
    h(
      "div",
      { class: "flow-under" },
      costTable(ctx, ctx.t("costs"), parts, costOf(env.costs, "")),
      h("p", { class: "flow-about" }, about),
    ),
  );
}

/**
 * The vectors of the drawn tokens at one point of the model.
 * @param {Env} env
 * @param {string} name
 * @param {{first: number, last: number}} shown
 * @param {number} count
 */
async function vectors(env, name, { first, last }, count) {
  if (env.narrow || last <= first) return null;
  const all = count <= WHOLE;
  const tokens = all ? null : Array.from({ length: last - first }, (_, i) => first + i);
  const answer = await env.ask("values", { name, tokens }, `values ${name}`);
  if (!answer) return null;
  const values = decode(answer.values);
  const width = values.shape[1];
  return all ? { shape: [last - first, width], data: values.data.subarray(first * width, last * width) } : values;
}

/**
 * Per layer, the weights of the chosen token, averaged over heads, from the small pictures of all heads.
 * @param {Env} env
 * @param {import("../types.js").Kind} kind
 * @param {number} queries
 * @param {number} keys
 * @param {number} chosen
 */
async function overview(env, kind, queries, keys, chosen) {
  if (Math.max(queries, keys) > LINED || keys < 2) return null;
  const answer = await env.ask("attention_overview", { kind, size: LINED }, `overview ${kind}`);
  if (!answer?.thumbs) return null;
  const thumbs = decode(answer.thumbs);
  const [layers, heads, high, wide] = thumbs.shape;
  if (high !== queries || wide !== keys) return null;
  return Array.from({ length: layers }, (_, layer) => {
    const mean = new Array(keys).fill(0);
    for (let head = 0; head < heads; head++) {
      const row = at(thumbs, layer, head, chosen).data;
      for (let key = 0; key < keys; key++) mean[key] += row[key] / 255 / heads;
    }
    return mean;
  });
}

/**
 * What the model says about the chosen token: the best next words, or its label.
 * @param {Env} env
 * @param {Row} row
 * @returns {Promise<{text: string, share: number}[]>}
 */
async function outcomes(env, row) {
  const { ctx } = env;
  const kind = headKind(ctx.model);
  if (kind === "lm") {
    const answer = await env.ask("predict", { position: row.token });
    if (!answer) return [];
    return mostProbable(readPrediction(answer), 6).map((word) => ({ text: visibleText(word.text.trim() || word.text), share: word.prob }));
  }
  if (ctx.model.abilities.includes("classify")) {
    const answer = await env.ask("classify", {});
    const labels = answer?.labels ?? [];
    return labels.slice(0, 6).map((/** @type {any} */ label) => ({ text: label.name, share: label.probability }));
  }
  if (ctx.model.abilities.includes("tag")) {
    const answer = await env.ask("tag", {});
    const words = answer?.words ?? [];
    return words.slice(0, 8).map((/** @type {any} */ word) => ({
      text: `${word.text} ${word.label}`, share: word.probability,
    }));
  }
  return [];
}

/**
 * @param {Env} env
 * @param {Row[]} rows
 * @param {{text: string, share: number}[]} predicted
 */
function drawWide(env, rows, predicted) {
  const { ctx } = env;
  const colours = ctx.colours();
  const parts = partColours(ctx);
  const width = Math.max(680, env.stageWidth);
  const heights = rows.map((row) => Math.max(190, (row.shown.last - row.shown.first) * LANE + 104));
  const gap = 40;
  const height = heights.reduce((sum, each) => sum + each + gap, 0) - gap + 8;
  const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": ctx.t("modelPicture") });
  const columns = {
    token: 0, tokenWidth: 108, embed: 134, embedWidth: 156, stack: 312, head: width - 314, headWidth: 142, words: width - 156,
  };
  const stackWidth = columns.head - columns.stack - 24;
  let y = 4;
  /** @type {((index: number) => number) | null} */
  let laneAbove = null;
  rows.forEach((row, number) => {
    const isLast = number === rows.length - 1;
    const rowHeight = heights[number];
    const lanes = row.shown.last - row.shown.first;
    const first = y + 54 + (rowHeight - 104 - lanes * LANE) / 2 + LANE / 2;
    const laneAt = (/** @type {number} */ index) => first + (index - row.shown.first) * LANE;
    const end = isLast && predicted.length ? columns.words - 6 : columns.head - 12;
    svg.append(lanesOf(env, row, laneAt, columns, end, isLast));
    svg.append(
      box({
        x: columns.embed, y, width: columns.embedWidth, height: rowHeight, colour: parts.embed, key: "embed",
        title: ctx.t("embedding"), lines: [embedLine(env), `${full(ctx.model.vocab)} × ${full(ctx.model.facts?.embed?.width ?? row.stack.width)}`],
        label: `${ctx.t("embedding")}. ${ctx.t("opens")}`, tip: costTip(ctx, costOf(env.costs, "embed")),
        onOpen: () => env.open("embed", row.name),
      }, number ? quietLine(ctx.t("sharedEmbedding"), columns.embed, y + rowHeight, columns.embedWidth) : costLines(env, "embed", columns.embed, y + rowHeight, columns.embedWidth)),
      stackBox(env, row, { x: columns.stack, y, width: stackWidth, height: rowHeight }, laneAt),
    );
    if (row.first) svg.append(strips(env, row, row.first, columns.embed + 14, columns.embedWidth - 28, laneAt));
    if (isLast && headKind(ctx.model) !== "none") {
      svg.append(
        box({
          x: columns.head, y, width: columns.headWidth, height: rowHeight, colour: parts.head, key: "head",
          title: ctx.t("outputHead"), lines: headLines(env),
          label: `${ctx.t("outputHead")}. ${ctx.t("opens")}`, tip: costTip(ctx, costOf(env.costs, "head")),
          onOpen: () => env.open("head", row.name),
        }, costLines(env, "head", columns.head, y + rowHeight, columns.headWidth)),
        row.last ? strips(env, row, row.last, columns.head + 14, columns.headWidth - 28, laneAt) : "",
        words(env, predicted, { x: columns.words, y: laneAt(row.token), width: width - columns.words, top: y, bottom: y + rowHeight }),
      );
    } else if (!isLast) {
      if (row.last) svg.append(strips(env, row, row.last, columns.head + 14, columns.headWidth - 28, laneAt));
      const middle = columns.head + columns.headWidth / 2;
      const to = columns.stack + stackWidth * 0.5;
      const turn = y + rowHeight + gap / 2;
      const start = laneAt(row.shown.last - 1) + 12;
      svg.append(
        s("text", { x: middle, y: y + 30, "text-anchor": "middle", "font-size": 12.5, "font-weight": 600 }, ctx.t("memoryArrow")),
        s("path", { d: `M${middle},${start} V${turn - 12} Q${middle},${turn} ${middle - 12},${turn} H${to + 12}`, fill: "none", stroke: parts.cross, "stroke-width": 3 }),
        arrow(`M${to + 12},${turn} Q${to},${turn} ${to},${turn + 10} L${to},${turn + gap / 2 - 2}`, parts.cross, 3),
      );
    }
    if (row.cross && laneAbove) svg.append(crossLines(env, row, rows[number - 1], { x: columns.stack, y, width: stackWidth, height: rowHeight }, laneAbove, columns.head + 8));
    laneAbove = laneAt;
    y += rowHeight + gap;
  });
  svg.append(s("title", {}, ctx.t("modelPicture")));
  svg.style.setProperty("color", colours.ink);
  return svg;
}

/**
 * What a part costs, at the bottom of its box.
 * @param {Env} env
 * @param {string} path
 * @param {number} x
 * @param {number} bottom
 * @param {number} width
 */
function costLines(env, path, x, bottom, width) {
  const cost = costOf(env.costs, path);
  if (!cost) return [];
  const lines = costText(env.ctx, cost).split(" · ");
  const texts = width > 220 ? [lines.join(" · ")] : lines.length > 2 ? [lines[0], lines.slice(1).join(" · ")] : lines;
  return texts.map((text, i) => quietLine(text, x, bottom - 14 * (texts.length - 1 - i), width));
}

/** A line of small text above the bottom of a box. @param {string} text @param {number} x @param {number} bottom @param {number} width */
const quietLine = (text, x, bottom, width) => s("text", { x: x + 12, y: bottom - 8, "font-size": 11, class: "quiet" }, fitted(text, width - 18, 11));

/**
 * Where the bars of the layers are in the box of a stack, below the lines about it.
 * @param {Env} env
 * @param {Row} row
 * @param {{x: number, y: number, width: number, height: number}} place
 */
function barsOf(env, row, place) {
  const lines = stackLines(env, row, place.width);
  const top = 31 + 15 * lines.length;
  const inner = { x: place.x + 14, width: place.width - 28, y: place.y + top, height: place.height - top - 44 };
  const each = inner.width / row.stack.layers;
  const { parallel } = placementOf(row.stack);
  return { inner, each, bar: Math.min(parallel ? 40 : 26, each * (parallel ? 0.6 : 0.5)), lines };
}

/**
 * What the chosen token of the decoder reads from the encoder's output in the chosen layer: lines from the output's
 * vectors down to the layer's cross-attention; mean of all heads.
 * @param {Env} env
 * @param {Row} row
 * @param {Row} source
 * @param {{x: number, y: number, width: number, height: number}} place of the decoder
 * @param {(index: number) => number} laneAt of the source
 * @param {number} x where its vectors begin
 */
function crossLines(env, row, source, place, laneAt, x) {
  const colour = partColours(env.ctx).cross;
  const layer = Math.min(env.state.layer, row.stack.layers - 1);
  const { inner, each, bar } = barsOf(env, row, place);
  const reader = layerBars(row.stack, inner.height, bar).find(({ kind, of }) => kind === "sublayer" && of === "cross");
  if (!reader) throw new Error("a decoder without cross-attention reads nothing from an encoder");
  const end = { x: inner.x + layer * each + reader.across + reader.breadth, y: inner.y + reader.along + reader.length / 2 };
  const turn = place.x + place.width + 12;
  const group = s("g", { class: "flow-cross", "data-layer": layer, "aria-hidden": "true" });
  row.cross?.[layer]?.forEach((weight, key) => {
    if (weight < 0.02 || key < source.shown.first || key >= source.shown.last) return;
    const y = laneAt(key);
    group.append(s("path", {
      d: `M${x},${y} C${turn},${y} ${turn},${y} ${turn},${(y + end.y) / 2} S${turn},${end.y} ${end.x},${end.y}`, fill: "none", stroke: colour,
      "stroke-width": 1 + 7 * weight, "stroke-opacity": 0.25 + 0.6 * weight, "data-key": key,
    }));
  });
  return group;
}

const CELLS = 16; // coordinates of a small strip

/**
 * A few coordinates of every drawn token, on its line.
 * @param {Env} env
 * @param {Row} row
 * @param {import("../arrays.js").Nd} values
 * @param {number} x
 * @param {number} width
 * @param {(index: number) => number} laneAt
 */
function strips(env, row, values, x, width, laneAt) {
  const reach = softReach(values.data);
  const group = s("g", { class: "flow-strips" });
  for (let index = row.shown.first; index < row.shown.last; index++) {
    const vector = at(values, index - row.shown.first).data.subarray(0, CELLS);
    const name = env.ctx.t("firstOf", { token: row.tokens[index].text, n: CELLS, all: values.shape[1] });
    group.append(svgVector(env.ctx, vector, reach, { x, y: laneAt(index) - 6, width, height: 12 }, name));
  }
  return group;
}

/**
 * Tokens, and the line of each through the model.
 * @param {Env} env
 * @param {Row} row
 * @param {(index: number) => number} laneAt
 * @param {Record<string, number>} columns
 * @param {number} end
 * @param {boolean} isLast
 */
function lanesOf(env, row, laneAt, columns, end, isLast) {
  const { ctx } = env;
  const colours = ctx.colours();
  const group = s("g", {});
  for (let index = row.shown.first; index < row.shown.last; index++) {
    const y = laneAt(index);
    const mine = index === row.token;
    const stop = mine && isLast ? end : columns.head + (isLast ? 0 : 10);
    group.append(
      s("path", {
        d: `M${columns.token + columns.tokenWidth},${y} H${stop}`, fill: "none", stroke: mine ? colours.accent : colours.line,
        "stroke-width": mine ? 3 : 1.5, "aria-hidden": "true",
      }),
      tokenChip(env, row, index, columns.token, y, columns.tokenWidth),
    );
  }
  const before = row.shown.first;
  const after = row.tokens.length - row.shown.last;
  if (before) group.append(s("text", { x: columns.tokenWidth - 6, y: laneAt(row.shown.first) - 17, "text-anchor": "end", "font-size": 11, class: "quiet" }, ctx.t("moreTokens", { n: before })));
  if (after) group.append(s("text", { x: columns.tokenWidth - 6, y: laneAt(row.shown.last - 1) + 24, "text-anchor": "end", "font-size": 11, class: "quiet" }, ctx.t("moreTokens", { n: after })));
  return group;
}

/**
 * @param {Env} env
 * @param {Row} row
 * @param {number} index
 * @param {number} x
 * @param {number} y
 * @param {number} width
 */
function tokenChip(env, row, index, x, y, width) {
  const { ctx } = env;
  const colours = ctx.colours();
  const token = row.tokens[index];
  const mine = index === row.token;
  const text = fitted(token.text, width - 14, 12.5);
  const wide = Math.min(width, textWidth(text, 12.5) + 14);
  const chip = s(
    "g",
    { role: "button", tabindex: mine ? 0 : -1, class: "flow-box", "aria-label": ctx.t("chooseToken", { token: token.text }), "aria-pressed": String(mine), "data-token": index },
    s("rect", { class: "frame", x: x + width - wide, y: y - 10, width: wide, height: 20, rx: 6, fill: mine ? colours.accent : colours.panel, stroke: mine ? colours.accent : colours.line }),
    s("text", { x: x + width - wide / 2, y: y + 4.5, "text-anchor": "middle", "font-size": 12.5, "font-style": token.special ? "italic" : "normal", style: mine ? { fill: colours.paper } : {} }, text),
  );
  const choose = () => env.choose(index, row.name);
  chip.addEventListener("click", choose);
  chip.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Enter" || event.key === " ") choose();
    else if (step) env.choose(Math.max(0, Math.min(row.tokens.length - 1, index + step)), row.name);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  return chip;
}

/**
 * A stack as a box, its layers as bars; lines show where the chosen token takes its information from.
 * @param {Env} env
 * @param {Row} row
 * @param {{x: number, y: number, width: number, height: number}} place
 * @param {(index: number) => number} laneAt
 */
function stackBox(env, row, place, laneAt) {
  const { ctx } = env;
  const colours = ctx.colours();
  const parts = partColours(ctx);
  const { stack } = row;
  const { inner, each, bar, lines } = barsOf(env, row, place);
  /** @type {Element[]} */
  const drawn = [];
  for (let layer = 0; layer < stack.layers; layer++) {
    const left = inner.x + layer * each;
    const weights = row.weights?.[layer];
    if (weights && each > 16) {
      const start = layer ? left - (each - bar) : place.x;
      weights.forEach((weight, key) => {
        if (weight < 0.02 || key < row.shown.first || key >= row.shown.last) return;
        const [y1, y2] = [laneAt(key), laneAt(row.token)];
        const middle = (start + left) / 2;
        drawn.push(
          s("path", {
            d: `M${start},${y1} C${middle},${y1} ${middle},${y2} ${left},${y2}`, fill: "none", stroke: parts.attention,
            "stroke-width": 1 + 7 * weight, "stroke-opacity": 0.25 + 0.6 * weight, "aria-hidden": "true",
          }),
        );
      });
    }
    drawn.push(drawBars(env, stack, layer, { x: left, y: inner.y, width: bar, height: inner.height }, true));
    if (each > 22) {
      drawn.push(s("text", { x: left + bar / 2, y: inner.y + inner.height + 13, "text-anchor": "middle", "font-size": 10.5, class: "quiet" }, String(layer)));
    }
  }
  const title = `${ctx.t(row.name)} · ${ctx.t("layersOf", { n: stack.layers })}`;
  const cost = costOf(env.costs, row.name);
  return box(
    {
      ...place, colour: parts.attention, key: `stack-${row.name}`, title, lines,
      label: `${title}. ${stackLine(env, row)}. ${costText(ctx, cost)}. ${ctx.t("opens")}`,
      tip: costTip(ctx, cost), onOpen: () => env.open("stack", row.name),
    },
    drawn,
    groupedHeads(env, row, place, title),
    costLines(env, row.name, place.x, place.y + place.height, place.width),
    s("rect", { x: place.x, y: laneAt(row.token) - 1.5, width: place.width, height: 3, fill: tint(colours.heads[0], 0.35), "aria-hidden": "true" }),
  );
}
