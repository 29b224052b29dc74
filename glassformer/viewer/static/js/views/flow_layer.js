// @ts-check
// Flow inside a layer: norms, sublayers and sums, placed as this model places them, with the chosen token's vectors.

import { decode } from "../arrays.js";
import { h, s } from "../dom.js";
import { activationOf, normOf, placementOf, windowOf } from "../mechanisms.js";
import { arrow, box, costTable, costText, costTip, funnel, headSquares, partColours, plus, svgVector, textWidth, wrapped } from "./flow_draw.js";
import { costOf, full, layerCost, normName, partsOf, softReach, stepsOf, sublayersOf } from "./flow_parts.js";

/** @typedef {import("./flow.js").Env} Env */
/** @typedef {import("./flow_parts.js").Step} Step */
/** @typedef {import("./flow_parts.js").Sublayer} Sublayer */
/** @typedef {Partial<Record<Sublayer, any>>} Values answers to `sublayer` */

/**
 * @param {Env} env
 * @returns {Promise<HTMLElement>}
 */
export async function layerScene(env) {
  const { ctx, stack, name, state } = env;
  const sublayers = sublayersOf(stack);
  const answers = await Promise.all(
    sublayers.map((sub) =>
      env.ask("sublayer", { kind: sub === "cross" ? "cross" : name, layer: state.layer, token: env.token, ...(sub === "ffn" ? { part: "ffn" } : { part: "attention", head: env.head }) }, `sublayer ${sub}`),
    ),
  );
  /** @type {Values} */
  const values = {};
  sublayers.forEach((sub, number) => (values[sub] = answers[number]));
  const rows = [];
  for (const sub of sublayers) {
    rows.push({ name: `${ctx.t("norm")} (${ctx.t(`${sub}Short`)})`, cost: layerCost(env.costs, stack, name, state.layer, `${sub}_norm`), key: `${sub}_norm` });
    rows.push({ name: ctx.t(sub), cost: layerCost(env.costs, stack, name, state.layer, sub), key: sub });
  }
  return h(
    "div",
    { class: "flow-scene with-aside" },
    h("div", { class: "flow-picture" }, draw(env, values)),
    h(
      "div",
      { class: "flow-aside" },
      h("p", {}, h("strong", {}, ctx.t(`placement.${stack.placement}`)), " ", ctx.t(`placementAbout.${stack.placement}`)),
      h("p", { class: "flow-formula" }, placementOf(stack).formula(ctx.t("norm"))),
      costTable(ctx, ctx.t("costs"), rows, layerCost(env.costs, stack, name, state.layer)),
      h("p", { class: "flow-about" }, ctx.t("stripAbout")),
    ),
  );
}

const GAP = 26;

/**
 * A picture that grows downwards.
 * @param {Env} env
 * @param {Values} values
 */
function draw(env, values) {
  const { ctx, stack } = env;
  const colours = ctx.colours();
  const width = Math.min(env.pictureWidth, 780);
  const stream = env.narrow ? 18 : 34;
  const left = env.narrow ? 48 : 92;
  const inner = width - left - 6;
  const svg = s("svg", { width, role: "group", "aria-label": ctx.t("layerPicture", { layer: env.state.layer }) });
  const back = s("g", { "aria-hidden": "true" });
  svg.append(back);
  const shared = streamReach(values, sublayersOf(stack));
  /** @type {DrawStrip} */
  const strip = (vector, label, y, from = left, across = inner, own = false) => {
    if (!vector) return;
    svg.append(svgVector(ctx, vector, own ? softReach(vector) : shared, { x: from, y, width: across, height: 12 }, label));
  };
  let y = 18;
  svg.append(s("text", { x: left, y: y - 4, "font-size": 12, class: "quiet" }, ctx.t("streamIn", { token: env.word })));
  strip(stripValues(values, "input", sublayersOf(stack)[0]), "x", y + 2);
  y += 30;
  const steps = stepsOf(stack);
  if (steps[0]?.parallel) y = drawParallel(env, values, svg, { y, stream, left, inner }, strip);
  else {
    for (let i = 0; i < steps.length; i++) {
      const step = steps[i];
      const before = steps[i - 1];
      if (step.kind === "norm" && step.onStream) {
        y = normOnStream(env, values, svg, step.of, { y, width }, strip);
      } else if (step.kind === "norm") {
        fork(svg, colours, stream, left, y, y + 22);
        y = normBox(env, values, svg, step.of, { x: left, y, width: inner }, strip);
      } else if (step.kind === "sublayer") {
        if (before?.kind === "norm" && !before.onStream) svg.append(arrow(`M${left + inner / 2},${y - GAP + 4} L${left + inner / 2},${y - 3}`, colours.muted));
        else fork(svg, colours, stream, left, y, y + 22);
        y = sublayerBox(env, values, svg, step.of, { x: left, y, width: inner }, strip);
      } else {
        y = sum(env, values, svg, step.of, { y, stream, left, inner }, strip);
      }
    }
  }
  if (partsOf(stack, env.state.layer).includes("convolution")) y = drawConvolution(env, values, svg, { y, stream, left, inner, width }, strip);
  svg.append(s("text", { x: left, y: y + 12, "font-size": 12, class: "quiet" }, ctx.t("streamOut")));
  back.append(arrow(`M${stream},6 L${stream},${y + 14}`, colours.accent, 6));
  svg.setAttribute("height", String(y + 26));
  svg.setAttribute("viewBox", `0 0 ${width} ${y + 26}`);
  return svg;
}

/**
 * One scale for the stream and all that is added to it, so that their strips can be compared.
 * @param {Values} values
 * @param {Sublayer[]} sublayers
 */
function streamReach(values, sublayers) {
  let most = 1e-9;
  for (const sub of sublayers) {
    for (const which of ["input", "output", "added"]) {
      const vector = stripValues(values, which, sub);
      if (vector) most = Math.max(most, softReach(vector));
    }
  }
  return most;
}

/**
 * @param {Values} values
 * @param {string} which
 * @param {Sublayer} sub
 * @returns {ArrayLike<number> | null}
 */
function stripValues(values, which, sub) {
  const answer = values[sub];
  if (!answer) return null;
  if (which === "norm") return answer.norm ? decode(answer.norm.output).data : null;
  if (which === "post_norm") return answer.post_norm ? decode(answer.post_norm.output).data : null;
  return answer[which] ? decode(answer[which]).data : null;
}

/**
 * The way from the stream into a branch.
 * @param {SVGElement} svg
 * @param {any} colours
 * @param {number} stream
 * @param {number} left
 * @param {number} from
 * @param {number} to
 */
function fork(svg, colours, stream, left, from, to) {
  svg.append(arrow(`M${stream},${from - 8} C${stream},${to} ${stream},${to} ${left - 3},${to}`, colours.muted));
}

/**
 * Draws a vector; `own`: with a scale of its own, as norms have.
 * @typedef {(vector: ArrayLike<number> | null, label: string, y: number, from?: number, across?: number, own?: boolean) => void} DrawStrip
 */

/**
 * @param {Env} env
 * @param {Values} values
 * @param {SVGElement} svg
 * @param {Sublayer} sub
 * @param {{x: number, y: number, width: number}} place
 * @param {DrawStrip} strip
 */
function normBox(env, values, svg, sub, { x, y, width }, strip) {
  const { ctx, stack, name, state } = env;
  const cost = layerCost(env.costs, stack, name, state.layer, `${sub}_norm`);
  const place = sub === "ffn" ? "ffn" : "attention";
  svg.append(
    box({
      x, y, width, height: 46, colour: partColours(ctx).norm, key: `norm-${sub}`, title: normName(ctx.model), rx: 8,
      label: `${normName(ctx.model)}. ${ctx.t("opens")}`, tip: costTip(ctx, cost), onOpen: () => env.open(place, name, sub === "cross" ? { kind: "cross" } : {}),
    }),
  );
  strip(stripValues(values, "norm", sub), ctx.t("normOfX"), y + 28, x + 12, width - 24, true);
  return y + 46 + GAP;
}

/**
 * @param {Env} env
 * @param {Values} values
 * @param {SVGElement} svg
 * @param {Sublayer} sub
 * @param {{y: number, width: number}} place
 * @param {DrawStrip} strip
 */
function normOnStream(env, values, svg, sub, { y, width }, strip) {
  const { ctx, stack, name, state } = env;
  const colours = ctx.colours();
  const cost = layerCost(env.costs, stack, name, state.layer, `${sub}_norm`);
  const place = sub === "ffn" ? "ffn" : "attention";
  svg.append(
    s("rect", { x: 4, y, width: width - 10, height: 46, rx: 8, fill: colours.paper }),
    box({
      x: 4, y, width: width - 10, height: 46, colour: partColours(ctx).norm, key: `norm-${sub}`, rx: 8,
      label: `${normName(ctx.model)}. ${ctx.t("opens")}`, tip: costTip(ctx, cost), onOpen: () => env.open(place, name, sub === "cross" ? { kind: "cross" } : {}),
    },
    s("text", { x: env.narrow ? 48 : 92, y: y + 18, "font-size": 13.5, "font-weight": 600 }, `${normName(ctx.model)} · ${ctx.t("onStream")}`)),
  );
  strip(stripValues(values, "post_norm", sub), ctx.t("normOfX"), y + 27);
  return y + 46 + GAP + 4;
}

/**
 * @param {Env} env
 * @param {Values} values
 * @param {SVGElement} svg
 * @param {Sublayer} sub
 * @param {{x: number, y: number, width: number, height?: number}} place height: with a single line of text
 * @param {DrawStrip} strip
 * @param {number} [rows] lines of text that there is room for
 */
function sublayerBox(env, values, svg, sub, { x, y, width, height: wanted }, strip, rows = 1) {
  const { ctx, stack, name, state } = env;
  const parts = partColours(ctx);
  const cost = layerCost(env.costs, stack, name, state.layer, sub);
  const grouped = stack.kv_heads !== stack.heads && sub !== "ffn";
  const lines = detailLines(env, sub, width);
  const more = 15 * (Math.max(rows, lines.length) - 1);
  const height = (wanted ?? (sub === "ffn" ? 148 : grouped ? 128 : 116)) + more;
  const top = y + more;
  const title = textWidth(ctx.t(sub), 13.5, 600) > width - 20 ? ctx.t(`${sub}Short`) : ctx.t(sub);
  /** @type {Element[]} */
  const inside = [];
  if (sub === "ffn") {
    const wide = Math.min(width - 130, 190);
    inside.push(funnel(stack, { x: x + 14, y: top + 54, width: wide, height: 58 }, parts.ffn));
    const texts = [full(stack.width), `${full(stack.ffn.hidden)} · ${activationOf(stack.ffn.activation).name}`, full(stack.width)];
    texts.forEach((text, number) => inside.push(s("text", { x: x + wide + 26, y: top + 61 + number * 26, "font-size": 11.5, class: "quiet" }, text)));
  } else {
    inside.push(headSquares(ctx, stack, { x: x + 14, y: top + 56, width: width - 30, size: Math.max(9, Math.min(18, (width - 40) / stack.heads - 3)) }, env.head));
  }
  const patch = sub === "cross" ? { kind: /** @type {const} */ ("cross") } : sub === "attention" ? { kind: name } : {};
  svg.append(
    box(
      {
        x, y, width, height, colour: parts[sub], key: sub, title, lines,
        label: `${ctx.t(sub)}. ${detail(env, sub)}. ${costText(ctx, cost)}. ${ctx.t("opens")}`, tip: costTip(ctx, cost),
        onOpen: () => env.open(sub === "ffn" ? "ffn" : "attention", name, patch),
      },
      inside,
      s("text", { x: x + width - 12, y: y + 20, "text-anchor": "end", "font-size": 11, class: "quiet" }, env.narrow || width < 380 ? "" : costText(ctx, cost)),
    ),
  );
  strip(stripValues(values, "output", sub), `${ctx.t(`${sub}Short`)}(x)`, y + height - 20, x + 12, width - 24);
  if (sub === "cross") {
    const end = x + width;
    svg.append(
      arrow(`M${end - 4},${y - 16} C${end - 4},${y - 8} ${end - 20},${y - 12} ${end - 24},${y - 1}`, parts.cross, 3),
      s("text", { x: end - 12, y: y - 12, "text-anchor": "end", "font-size": 11, class: "quiet" }, ctx.t("memoryArrow")),
    );
  }
  return y + height + GAP - 8;
}

/**
 * What follows the first layer of some encoders: a convolution of the layer's input is added, and the sum is normalised.
 * @param {Env} env
 * @param {Values} values
 * @param {SVGElement} svg
 * @param {{y: number, stream: number, left: number, inner: number, width: number}} place
 * @param {DrawStrip} strip
 */
function drawConvolution(env, values, svg, { y, stream, left, inner, width }, strip) {
  const { ctx, stack, name } = env;
  const colours = ctx.colours();
  const parts = partColours(ctx);
  const { kernel, activation } = stack.convolution;
  const cost = costOf(env.costs, `${name}.convolution`);
  const vector = (/** @type {any} */ encoded) => (encoded ? decode(encoded).data : null);
  const answer = values.ffn?.convolution;
  const lines = [`${ctx.t("neighbours", { n: kernel })}, ${activationOf(activation).name}`, ctx.t("convolutionReads")];
  svg.append(box({ x: left, y, width: inner, height: 84, colour: parts.convolution, key: "convolution", title: ctx.t("convolution"), lines, label: ctx.t("convolution"), tip: costTip(ctx, cost) }));
  strip(vector(answer?.output), "conv(x)", y + 64, left + 12, inner - 24);
  const level = y + 84 + GAP - 6;
  const top = level + 28;
  svg.append(
    arrow(`M${left + 24},${y + 86} C${left + 24},${level} ${left + 24},${level} ${stream + 13},${level}`, colours.muted),
    plus(stream, level, colours.accent, colours.paper),
    s("rect", { x: 4, y: top, width: width - 10, height: 46, rx: 8, fill: colours.paper }),
    box(
      { x: 4, y: top, width: width - 10, height: 46, colour: parts.norm, key: "norm-convolution", rx: 8, label: normName(ctx.model) },
      s("text", { x: left, y: top + 18, "font-size": 13.5, "font-weight": 600 }, `${normName(ctx.model)} · ${ctx.t("onStream")}`),
    ),
  );
  strip(vector(answer?.result), ctx.t("normOfX"), top + 27);
  return top + 46 + GAP + 4;
}

/** What a sublayer is, in lines that fit a box. @param {Env} env @param {Sublayer} sub @param {number} width */
const detailLines = (env, sub, width) => wrapped(detail(env, sub), width - 20, 11.5);

/**
 * @param {Env} env
 * @param {Sublayer} sub
 */
export function detail(env, sub) {
  const { ctx, stack, state } = env;
  if (sub === "ffn") return ctx.t(stack.ffn.gated ? "ffnGated" : "ffnPlain", { activation: activationOf(stack.ffn.activation).name });
  const words = [ctx.t("headsOf", { heads: stack.heads, size: stack.head_dim })];
  if (stack.kv_heads !== stack.heads) words.push(ctx.t("keyHeads", { n: stack.kv_heads }));
  const normed = stack.qk_norm ? [ctx.t("qkNorm", { norm: normOf({ kind: stack.qk_norm }).name })] : [];
  if (sub === "cross") return [...words, ...normed].join(", ");
  if (stack.causal) words.push(ctx.t("causal"));
  if (stack.rotary) words.push(ctx.t("rotary"));
  words.push(...normed);
  if (stack.score_bias) words.push(ctx.t(`bias.${stack.score_bias}`));
  const window = windowOf(stack, state.layer);
  if (window) words.push(ctx.t(window, { n: stack.windows[state.layer] }));
  return words.join(", ");
}

/**
 * The circle where a sublayer's output joins the stream.
 * @param {Env} env
 * @param {Values} values
 * @param {SVGElement} svg
 * @param {Sublayer} sub
 * @param {{y: number, stream: number, left: number, inner: number}} place
 * @param {DrawStrip} strip
 */
function sum(env, values, svg, sub, { y, stream, left, inner }, strip) {
  const colours = env.ctx.colours();
  const level = y + 2;
  const { parallel, onStream } = placementOf(env.stack);
  const below = env.narrow || parallel;
  svg.append(
    arrow(`M${left + 24},${y - GAP + 10} C${left + 24},${level} ${left + 24},${level} ${stream + 13},${level}`, colours.muted),
    plus(stream, level, colours.accent, colours.paper),
  );
  if (!onStream) {
    const inset = below ? 0 : 36;
    strip(stripValues(values, "added", sub), "x + f(x)", level - 6 + (below ? 18 : 0), left + inset, inner - inset);
  }
  return level + (below ? 34 : 28);
}

/**
 * Sublayers side by side: all read the stream at once, and their outputs are added at once.
 * @param {Env} env
 * @param {Values} values
 * @param {SVGElement} svg
 * @param {{y: number, stream: number, left: number, inner: number}} place
 * @param {DrawStrip} strip
 */
function drawParallel(env, values, svg, { y, stream, left, inner }, strip) {
  const { stack, ctx } = env;
  const colours = ctx.colours();
  const sublayers = sublayersOf(stack);
  const each = (inner - 12 * (sublayers.length - 1)) / sublayers.length;
  const xAt = (/** @type {number} */ number) => left + number * (each + 12);
  let next = y;
  if (!placementOf(stack).shared) {
    const top = y + 14;
    sublayers.forEach((sub, number) => {
      if (number) svg.append(arrow(`M${stream},${y + 2} H${xAt(number) + 30} L${xAt(number) + 30},${y + 2} L${xAt(number) + 30},${top - 3}`, colours.muted));
      else fork(svg, colours, stream, left, top, top + 22);
      next = normBox(env, values, svg, sub, { x: xAt(number), y: top, width: each }, strip);
    });
  } else {
    fork(svg, colours, stream, left, y, y + 22);
    next = normBox(env, values, svg, sublayers[0], { x: left, y, width: inner }, strip);
  }
  let bottom = next;
  const rows = Math.max(...sublayers.map((sub) => detailLines(env, sub, each).length));
  sublayers.forEach((sub, number) => {
    const middle = xAt(number) + each / 2;
    svg.append(arrow(`M${middle},${next - GAP + 4} L${middle},${next - 3}`, colours.muted));
    bottom = sublayerBox(env, values, svg, sub, { x: xAt(number), y: next, width: each, height: 148 }, strip, rows);
  });
  const level = bottom + 2;
  sublayers.forEach((_, number) => {
    const from = xAt(number) + 30;
    if (number) svg.append(s("path", { d: `M${from},${bottom - GAP + 9} V${level} H${left + 18}`, fill: "none", stroke: colours.muted, "stroke-width": 2 }));
  });
  return sum(env, values, svg, sublayers[sublayers.length - 1], { y: bottom, stream, left, inner }, strip);
}
