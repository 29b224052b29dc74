// @ts-check
// Flow inside the feed-forward network: wide, activation, narrow; each token on its own.

import { decode, number, topIndices } from "../arrays.js";
import { h, s } from "../dom.js";
import { activationOf } from "../mechanisms.js";
import { addCard, card, matrices, missingCard, normCard, pipe, signed, sumLine } from "./flow_cards.js";
import { costTable, costText, createCursor, vector } from "./flow_draw.js";
import { full, layerCost, softReach } from "./flow_parts.js";

/** @typedef {import("./flow.js").Env} Env */

/**
 * @param {Env} env
 * @returns {Promise<HTMLElement>}
 */
export async function ffnScene(env) {
  const { ctx, state, stack, name } = env;
  /** @type {[string, string][]} */
  const first = stack.ffn.gated ? [["gate", "W_gate"], ["up", "W_up"]] : [["up", "W_up"]];
  const [answer, wide, down] = await Promise.all([
    env.ask("sublayer", { kind: name, layer: state.layer, part: "ffn", token: env.token }, "sublayer ffn"),
    matrices(env, first, null),
    matrices(env, [["down", "W_down"]], null),
  ]);
  const cost = (/** @type {string} */ part) => layerCost(env.costs, stack, name, state.layer, `ffn${part ? `.${part}` : ""}`);
  const rows = [["gate", ctx.t("gate")], ["up", ctx.t("up")], ["down", ctx.t("down")]].map(([key, label]) => ({ name: label, cost: cost(key), key }));
  const aside = h("div", { class: "flow-aside" }, costTable(ctx, ctx.t("costs"), rows, cost("")), h("p", { class: "flow-about" }, ctx.t("ffnAbout")));
  const body = answer ? pipe(steps(env, answer, cost, { wide, down })) : missingCard(env);
  return h("div", { class: "flow-scene with-aside" }, body, aside);
}

/**
 * @param {Env} env
 * @param {any} answer
 * @param {(part: string) => any} cost
 * @param {{wide: HTMLElement | null, down: HTMLElement | null}} pictures of matrices
 */
function steps(env, answer, cost, pictures) {
  const { ctx } = env;
  const coordinate = createCursor(0);
  const input = decode(answer.input).data;
  const hidden = decode(answer.hidden).data;
  const neuron = createCursor(topIndices(hidden.map(Math.abs), 1)[0] ?? 0);
  return [
    card(
      { key: "input", title: ctx.t("streamIn", { token: env.word }), onStream: true },
      vector(ctx, { name: "x", values: input, reach: softReach(input), cursor: coordinate, key: "x" }),
    ),
    answer.norm ? normCard(env, answer.norm, input, coordinate) : null,
    widen(env, answer, neuron, cost, pictures.wide),
    narrow(env, answer, { neuron, coordinate }, cost, pictures.down),
    addCard(env, answer, coordinate),
    answer.post_norm
      ? normCard(env, answer.post_norm, decode(answer.added).data, coordinate, { onStream: true, key: "post_norm" })
      : null,
  ];
}

/**
 * @param {Env} env
 * @param {any} answer
 * @param {import("./flow_draw.js").Cursor} neuron
 * @param {(part: string) => any} cost
 * @param {HTMLElement | null} pictures
 */
function widen(env, answer, neuron, cost, pictures) {
  const { ctx, stack } = env;
  const act = activationOf(answer.activation);
  const up = decode(answer.up).data;
  const gate = answer.gate ? decode(answer.gate).data : null;
  const hidden = decode(answer.hidden).data;
  const before = gate ?? up;
  const plus = env.ctx.model.facts?.[env.name]?.ffn?.bias;
  const formula = gate ? `h = ${act}(W_gate·x${plus ? " + b" : ""}) × (W_up·x${plus ? " + b" : ""})` : `h = ${act}(W_up·x${plus ? " + b" : ""})`;
  const write = (/** @type {number} */ i) => {
    if (i >= hidden.length) return "";
    const inside = `${act.name}(${number(before[i])}) = ${number(act.value(before[i]))}`;
    return gate ? `h[${i}]: ${inside}; × ${signed(up[i])} = ${number(hidden[i])}` : `h[${i}] = ${inside}`;
  };
  const active = Array.from(before).filter((value) => value > 0).length;
  const costs = [cost("gate"), cost("up")].filter(Boolean);
  const together = costs.length ? costs.reduce((sum, each) => ({ parameters: sum.parameters + each.parameters, bytes: sum.bytes + each.bytes, flops: sum.flops + each.flops })) : null;
  return card(
    { key: "hidden", title: ctx.t("widen", { from: full(stack.width), to: full(hidden.length) }), formula, cost: costText(ctx, together) },
    h("p", { class: "hint" }, ctx.t("activeAbout", { n: full(active), all: full(hidden.length) })),
    pictures,
    gate ? vector(ctx, { name: ctx.t("gate"), values: gate, reach: softReach(gate), cursor: neuron, key: "gate" }) : null,
    vector(ctx, { name: gate ? ctx.t("up") : ctx.t("beforeActivation"), values: up, reach: softReach(up), cursor: neuron, key: "up" }),
    vector(ctx, { name: ctx.t("hidden"), values: hidden, reach: softReach(hidden), cursor: neuron, key: "hidden" }),
    h("div", { class: "flow-two" }, curve(env, answer.activation, before, neuron), strongest(env, answer, before, hidden, neuron)),
    sumLine(neuron, write, "hidden"),
  );
}

/**
 * The activation as a curve, with a tick for every neuron below it.
 * @param {Env} env
 * @param {string} activation
 * @param {ArrayLike<number>} values
 * @param {import("./flow_draw.js").Cursor} neuron
 */
function curve(env, activation, values, neuron) {
  const { ctx } = env;
  const colours = ctx.colours();
  const [width, height] = [300, 150];
  const reach = Math.max(3, softReach(values) * 1.3);
  const x = (/** @type {number} */ value) => 10 + ((Math.max(-reach, Math.min(reach, value)) + reach) / (2 * reach)) * (width - 20);
  const { name, value: f } = activationOf(activation);
  const low = Math.min(-0.5, f(-reach));
  const high = Math.max(1, f(reach));
  const y = (/** @type {number} */ value) => 12 + ((high - value) / (high - low)) * (height - 44);
  const points = Array.from({ length: 81 }, (_, i) => {
    const value = -reach + (2 * reach * i) / 80;
    return `${x(value).toFixed(1)},${y(f(value)).toFixed(1)}`;
  });
  const shown = Math.min(values.length, 1024);
  const marks = Array.from({ length: shown }, (_, i) => `M${x(values[Math.floor((i * values.length) / shown)]).toFixed(1)},${height - 22}v10`);
  const dot = s("circle", { r: 5, fill: colours.accent, stroke: colours.panel, "stroke-width": 1.5 });
  const label = s("text", { "font-size": 11, "text-anchor": "middle" });
  const svg = s(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, width: "100%", role: "img", "aria-label": ctx.t("curveAbout", { name }) },
    s("path", { d: `M10,${y(0)}H${width - 10}M${x(0)},8V${height - 30}`, stroke: colours.line, fill: "none" }),
    s("path", { d: marks.join(""), stroke: colours.muted, "stroke-opacity": 0.35, fill: "none" }),
    s("polyline", { points: points.join(" "), fill: "none", stroke: colours.heads[1], "stroke-width": 2.5 }),
    dot,
    label,
    s("text", { x: 14, y: 20, "font-size": 12, class: "quiet" }, name),
    s("text", { x: width - 10, y: height - 2, "font-size": 10.5, "text-anchor": "end", class: "quiet" }, ctx.t("ticks")),
  );
  neuron.listen((i) => {
    if (i >= values.length) return;
    const value = values[i];
    dot.setAttribute("cx", String(x(value)));
    dot.setAttribute("cy", String(y(f(Math.max(-reach, Math.min(reach, value))))));
    label.setAttribute("x", String(Math.max(40, Math.min(width - 40, x(value)))));
    label.setAttribute("y", String(Math.max(12, Number(dot.getAttribute("cy")) - 10)));
    label.textContent = `${i}: ${number(value, 2)}`;
  });
  return h("figure", { class: "flow-figure" }, h("figcaption", {}, ctx.t("curveAbout", { name })), svg);
}

/**
 * The neurons that say most about this token.
 * @param {Env} env
 * @param {any} answer
 * @param {ArrayLike<number>} before
 * @param {ArrayLike<number>} hidden
 * @param {import("./flow_draw.js").Cursor} neuron
 */
function strongest(env, answer, before, hidden, neuron) {
  const { ctx } = env;
  const top = topIndices(Array.from(hidden, Math.abs), 7);
  const rows = top.map((i) => {
    const row = h("tr", { tabindex: 0, "data-neuron": i }, h("td", {}, String(i)), h("td", {}, number(before[i])), h("td", {}, number(hidden[i])));
    row.addEventListener("click", () => neuron.set(i));
    row.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      neuron.set(i);
    });
    return row;
  });
  neuron.listen((chosen) => rows.forEach((row) => row.setAttribute("aria-selected", String(Number(row.dataset.neuron) === chosen))));
  const heading = [ctx.t("neuron"), answer.gate ? ctx.t("gate") : ctx.t("beforeActivation"), ctx.t("hidden")];
  return h(
    "figure",
    { class: "flow-figure" },
    h("figcaption", {}, ctx.t("strongest")),
    h("table", { class: "flow-table" }, h("thead", {}, h("tr", {}, heading.map((word) => h("th", { scope: "col" }, word)))), h("tbody", {}, rows)),
  );
}

/**
 * @param {Env} env
 * @param {any} answer
 * @param {{neuron: import("./flow_draw.js").Cursor, coordinate: import("./flow_draw.js").Cursor}} cursors
 * @param {(part: string) => any} cost
 * @param {HTMLElement | null} picture
 */
function narrow(env, answer, { neuron, coordinate }, cost, picture) {
  const { ctx, stack } = env;
  const hidden = decode(answer.hidden).data;
  const output = decode(answer.output).data;
  return card(
    { key: "down", title: ctx.t("narrow", { from: full(hidden.length), to: full(stack.width) }), formula: env.ctx.model.facts?.[env.name]?.ffn?.bias ? "f(x) = W_down·h + b" : "f(x) = W_down·h", cost: costText(ctx, cost("down")) },
    vector(ctx, { name: ctx.t("hidden"), values: hidden, reach: softReach(hidden), cursor: neuron }),
    picture,
    vector(ctx, { name: "f(x)", values: output, reach: softReach(output), cursor: coordinate, key: "output" }),
    sumLine(coordinate, (i) => `f(x)[${i}] = Σ h[j]·W[j, ${i}] (${full(hidden.length)}) = ${number(output[i])}`, "down"),
  );
}
