// @ts-check
// Flow inside attention: every step of one head for one token, with its numbers.

import { at, decode, number } from "../arrays.js";
import { heatMap } from "../canvas.js";
import { h } from "../dom.js";
import { normOf, placementOf } from "../mechanisms.js";
import { addCard, card, matrices, missingCard, normCard, pipe, signed, sumLine } from "./flow_cards.js";
import { costTable, costText, createCursor, vector } from "./flow_draw.js";
import { layerCost, reach as largest, sharers, softReach } from "./flow_parts.js";

/** @typedef {import("./flow.js").Env} Env */

const ROWS = 40; // keys that are listed; longer texts show those with the largest weights

/**
 * @param {Env} env
 * @returns {Promise<HTMLElement>}
 */
export async function attentionScene(env) {
  const { ctx, state, stack, name } = env;
  const cross = state.kind === "cross";
  const sub = cross ? "cross" : "attention";
  const [answer, weights, out] = await Promise.all([
    env.ask("sublayer", { kind: state.kind, layer: state.layer, part: "attention", token: env.token, head: env.head }, "sublayer attention"),
    matrices(env, [["q", "W_Q"], ["k", "W_K"], ["v", "W_V"]], env.head),
    matrices(env, [["o", "W_O"]], env.head),
  ]);
  const cost = (/** @type {string} */ part) => layerCost(env.costs, stack, name, state.layer, `${sub}${part ? `.${part}` : ""}`);
  const rows = [
    ["q", "W_Q"], ["k", "W_K"], ["v", "W_V"], ["scores", ctx.t("scoresShort")], ["weighted_sum", ctx.t("weightedSum")], ["o", "W_O"],
  ].map(([key, label]) => ({ name: label, cost: cost(key), key }));
  const aside = h("div", { class: "flow-aside" }, costTable(ctx, ctx.t("costsAllHeads"), rows, cost("")));
  if (stack.kv_heads !== stack.heads) aside.append(h("p", { class: "flow-about" }, ctx.t("groupedAbout", { heads: stack.heads, n: stack.kv_heads })));
  if (cross) aside.append(h("p", { class: "flow-about" }, ctx.t("crossAbout")));
  const body = answer ? pipe(steps(env, answer, cost, { weights, out })) : missingCard(env);
  return h("div", { class: "flow-scene with-aside" }, body, aside);
}

/**
 * @param {Env} env
 * @param {any} answer
 * @param {(part: string) => any} cost
 * @param {{weights: HTMLElement | null, out: HTMLElement | null}} pictures of matrices
 */
function steps(env, answer, cost, pictures) {
  const { ctx, stack } = env;
  const coordinate = createCursor(0);
  const dimension = createCursor(0);
  const keyNames = (env.tokens[answer.keys] ?? []).map((/** @type {any} */ token) => token.text);
  const input = decode(answer.input).data;
  const read = decode(answer.read).data;
  const weights = decode(answer.weights).data;
  const listed = listKeys(weights);
  const key = createCursor(listed.order.reduce((best, j) => (weights[j] > weights[best] ? j : best), listed.order[0] ?? 0));
  const shared = { env, answer, coordinate, dimension, key, keyNames, weights, listed };
  return [
    card(
      { key: "input", title: ctx.t("streamIn", { token: env.word }), onStream: true },
      vector(ctx, { name: "x", values: input, reach: softReach(input), cursor: coordinate, key: "x" }),
    ),
    answer.norm ? normCard(env, answer.norm, input, coordinate, { cost: "" }) : null,
    projections(shared, read, cost, pictures.weights),
    scores(shared, cost),
    weightedSum(shared, cost),
    joined(shared, cost, pictures.out),
    addCard(env, answer, coordinate),
    answer.post_norm
      ? normCard(env, answer.post_norm, decode(answer.added).data, coordinate, { onStream: true, key: "post_norm" })
      : null,
    placementOf(stack).onStream ? null : h("p", { class: "flow-card flow-on-stream hint" }, ctx.t("streamGoesOn")),
  ];
}

/**
 * The keys that are listed: all in their order, or the heaviest of many.
 * @param {ArrayLike<number>} weights
 */
function listKeys(weights) {
  const all = Array.from({ length: weights.length }, (_, j) => j);
  if (weights.length <= ROWS) return { order: all, rest: 0, restWeight: 0 };
  const order = all.sort((a, b) => weights[b] - weights[a] || a - b).slice(0, ROWS);
  const chosen = new Set(order);
  let restWeight = 0;
  for (let j = 0; j < weights.length; j++) if (!chosen.has(j)) restWeight += weights[j];
  return { order: order.sort((a, b) => a - b), rest: weights.length - ROWS, restWeight };
}

/**
 * @typedef {object} Shared
 * @property {Env} env
 * @property {any} answer
 * @property {import("./flow_draw.js").Cursor} coordinate of the model's width
 * @property {import("./flow_draw.js").Cursor} dimension of the head's width
 * @property {import("./flow_draw.js").Cursor} key the chosen key
 * @property {string[]} keyNames
 * @property {ArrayLike<number>} weights
 * @property {{order: number[], rest: number, restWeight: number}} listed
 */

/**
 * A small heat map of one row per key.
 * @param {Shared} shared
 * @param {import("../arrays.js").Nd} values (S, K)
 * @param {string} label
 * @param {(key: number) => number} [factor]
 */
function keyMap({ env, keyNames, listed, dimension, key }, values, label, factor = () => 1) {
  const { ctx } = env;
  const { diverging } = ctx.colours();
  const most = softReach(values.data) * largest(listed.order.map(factor));
  const map = heatMap({
    rows: listed.order.length, columns: values.shape[1], colours: ctx.colours(), label,
    value: (row, column) => at(values, listed.order[row]).data[column] * factor(listed.order[row]),
    colour: (value) => diverging(value / most),
    rowLabels: listed.order.map((j) => keyNames[j] ?? String(j)),
    describe: ({ row, column, value }) => `${keyNames[listed.order[row]] ?? listed.order[row]}[${column}] = ${number(value ?? 0, 4)}`,
    announce: ctx.announce, minCell: 2, maxCell: 16, cellHeight: 15, maxHeight: 330,
    onHover: (cell) => {
      if (cell) dimension.set(cell.column);
    },
    onSelect: (cell) => key.set(listed.order[cell.row]),
  });
  return h("figure", { class: "flow-figure" }, h("figcaption", {}, label), map.element);
}

/**
 * @param {Shared} shared
 * @param {ArrayLike<number>} read
 * @param {(part: string) => any} cost
 * @param {HTMLElement | null} pictures
 */
function projections(shared, read, cost, pictures) {
  const { env, answer, dimension, coordinate } = shared;
  const { ctx, stack } = env;
  const q = decode(answer.q).data;
  const width = `${answer.head_dim} × ${stack.width}`;
  const mates = sharers(stack, env.head);
  const notes = [h("p", { class: "hint" }, ctx.t("projectAbout", { head: env.head, width }))];
  if (mates.length > 1) notes.push(h("p", { class: "hint" }, ctx.t("sharesKeys", { heads: mates.join(", "), key: answer.kv_head })));
  const total = ["q", "k", "v"].map(cost).filter(Boolean);
  const together = total.length ? total.reduce((sum, each) => ({ parameters: sum.parameters + each.parameters, bytes: sum.bytes + each.bytes, flops: sum.flops + each.flops })) : null;
  const vectors = [vector(ctx, { name: ctx.t("reads"), values: read, reach: softReach(read), cursor: coordinate, key: "read" })];
  const norm = stack.qk_norm ? normOf({ kind: stack.qk_norm }).name : null;
  if (norm) notes.push(h("p", { class: "hint" }, ctx.t("qkNormAbout", { norm })));
  if (answer.rotary && answer.q_before) {
    const before = decode(answer.q_before).data;
    vectors.push(vector(ctx, { name: ctx.t("qBefore"), values: before, reach: softReach(q), cursor: dimension, key: "q_before" }));
    notes.push(h("p", { class: "hint" }, ctx.t("rotaryAbout", { position: env.token })));
  }
  vectors.push(vector(ctx, { name: answer.rotary ? ctx.t("qAfter") : "q", values: q, reach: softReach(q), cursor: dimension, key: "q" }));
  const productOf = (/** @type {string} */ letter) => {
    const product = `W_${letter.toUpperCase()}·x${biasOf(env, letter)}`;
    return norm && letter !== "v" ? `${norm}(${product})` : product;
  };
  return card(
    { key: "project", title: ctx.t("project"), formula: ["q", "k", "v"].map((letter) => `${letter} = ${productOf(letter)}`).join(",  "), cost: costText(ctx, together) },
    notes,
    pictures,
    vectors,
    h(
      "div",
      { class: "flow-two" },
      keyMap(shared, decode(answer.k), ctx.t("keysOf")),
      keyMap(shared, decode(answer.v), ctx.t("valuesOf")),
    ),
  );
}

/**
 * @param {Shared} shared
 * @param {(part: string) => any} cost
 */
function scores(shared, cost) {
  const { env, answer, key, keyNames, listed, weights } = shared;
  const { ctx } = env;
  const products = decode(answer.products).data;
  const logits = decode(answer.scores).data;
  const bias = answer.bias ? decode(answer.bias).data : null;
  const allowed = decode(answer.allowed).data;
  let max = -Infinity;
  for (let j = 0; j < logits.length; j++) if (logits[j] > max) max = logits[j];
  let total = 0;
  for (let j = 0; j < logits.length; j++) total += Math.exp(logits[j] - max);
  const heading = ["keyWord", "product", "scaled", ...(bias ? ["biasWord"] : []), "mask", "exponential", "weight"];
  const most = largest(listed.order.map((j) => weights[j]));
  const body = h("tbody", {});
  for (const j of listed.order) {
    const open = Boolean(allowed[j]);
    const cells = [
      h("td", { class: "flow-word" }, `${keyNames[j] ?? j}`),
      h("td", {}, number(products[j])),
      h("td", {}, number(products[j] * answer.scale)),
      bias ? h("td", {}, number(bias[j])) : null,
      h("td", {}, open ? "" : "−∞"),
      h("td", {}, open ? number(Math.exp(logits[j] - max)) : "0"),
      h("td", { class: "flow-bar-cell" }, h("span", { class: "flow-bar", style: { width: `${(60 * weights[j]) / most}%` } }), ` ${number(weights[j])}`),
    ];
    const row = h("tr", { tabindex: 0, "data-key": j, class: open ? "" : "hidden-key" }, cells);
    row.addEventListener("click", () => key.set(j));
    row.addEventListener("keydown", (event) => {
      const next = event.key === "ArrowDown" ? row.nextElementSibling : event.key === "ArrowUp" ? row.previousElementSibling : null;
      if (next instanceof HTMLElement) next.focus();
      else if (event.key === "Enter" || event.key === " ") key.set(j);
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    body.append(row);
  }
  key.listen((chosen) => {
    for (const row of body.children) row.setAttribute("aria-selected", String(Number(/** @type {HTMLElement} */ (row).dataset.key) === chosen));
  });
  const sum = weights.length ? Array.from(weights).reduce((all, weight) => all + weight, 0) : 0;
  const foot = h(
    "tfoot",
    {},
    listed.rest ? h("tr", {}, h("td", { colspan: heading.length - 1 }, ctx.t("otherKeys", { n: listed.rest })), h("td", { class: "flow-bar-cell" }, number(listed.restWeight))) : null,
    h("tr", {}, h("td", { colspan: heading.length - 2 }, ctx.t("rowSum")), h("td", {}, number(total)), h("td", { class: "flow-bar-cell" }, number(sum))),
  );
  const table = h("table", { class: "flow-table" }, h("thead", {}, h("tr", {}, heading.map((word) => h("th", { scope: "col", class: word === "weight" ? "flow-bar-cell" : null }, ctx.t(word))))), body, foot);
  return card(
    { key: "scores", title: ctx.t("scores"), formula: `softmax(${scaleText(answer)}${bias ? " + b" : ""} + mask)`, cost: costText(ctx, cost("scores")) },
    h("p", { class: "hint" }, ctx.t("scoresAbout", { scale: number(answer.scale, 4) })),
    h("div", { class: "flow-table-frame", tabindex: -1 }, table),
    chosenKey(shared, { products, logits, bias, max, total }),
  );
}

/**
 * The arithmetic of one query and one key.
 * @param {Shared} shared
 * @param {{products: ArrayLike<number>, logits: ArrayLike<number>, bias: ArrayLike<number> | null, max: number, total: number}} numbers
 */
function chosenKey({ env, answer, key, keyNames, dimension, weights }, { products, logits, bias, max, total }) {
  const { ctx } = env;
  const q = decode(answer.q).data;
  const k = decode(answer.k);
  const holder = h("div", { class: "flow-figure", "data-part": "chosen-key" });
  key.listen((j) => {
    const kj = at(k, j).data;
    const terms = Array.from(q, (value, d) => value * kj[d]);
    const reach = Math.max(softReach(q), softReach(kj));
    const shown = terms.slice(0, 3).map((_, d) => `${number(q[d], 2)}·${signed(kj[d], 2)}`);
    const scaled = products[j] * answer.scale;
    const lines = [
      `q·k = ${shown.join(" + ")} + … (${terms.length}) = ${number(products[j])}`,
      `${number(products[j])} · ${number(answer.scale, 4)}${bias ? ` + ${signed(bias[j])}` : ""} = ${number(scaled + (bias ? bias[j] : 0))}`,
      Number.isFinite(logits[j])
        ? `exp(${number(logits[j])} − ${signed(max)}) / ${number(total)} = ${number(weights[j], 4)}`
        : `exp(−∞) / ${number(total)} = 0`,
    ];
    holder.replaceChildren(
      h("p", { class: "hint" }, ctx.t("chosenKey", { key: keyNames[j] ?? j })),
      vector(ctx, { name: "q", values: q, reach, cursor: dimension, height: 14 }),
      vector(ctx, { name: `k · ${keyNames[j] ?? j}`, values: kj, reach, cursor: dimension, height: 14 }),
      vector(ctx, { name: "q × k", values: terms, reach: softReach(terms), cursor: dimension, height: 14 }),
      ...lines.map((line, number_) => h("p", { class: "flow-sum", "data-sum": `key-${number_}` }, line)),
    );
  });
  return holder;
}

/**
 * @param {Shared} shared
 * @param {(part: string) => any} cost
 */
function weightedSum(shared, cost) {
  const { env, answer, dimension, weights, listed } = shared;
  const { ctx } = env;
  const v = decode(answer.v);
  const result = decode(answer.head_output).data;
  const order = [...listed.order].sort((a, b) => weights[b] - weights[a]).slice(0, 3);
  const write = (/** @type {number} */ d) => {
    if (d >= result.length) return "";
    const terms = order.map((j) => `${number(weights[j])}·${signed(at(v, j).data[d])}`);
    return `Σ w·v[${d}] = ${terms.join(" + ")}${weights.length > order.length ? " + …" : ""} = ${number(result[d])}`;
  };
  return card(
    { key: "weighted", title: ctx.t("weightedSum"), formula: "z = Σⱼ wⱼ·vⱼ", cost: costText(ctx, cost("weighted_sum")) },
    h("p", { class: "hint" }, ctx.t("weightedAbout")),
    keyMap(shared, v, ctx.t("weightedValues"), (j) => weights[j]),
    vector(ctx, { name: ctx.t("headOutput", { head: env.head }), values: result, reach: softReach(result), cursor: dimension, key: "head_output" }),
    sumLine(dimension, write, "weighted"),
  );
}

/**
 * @param {Shared} shared
 * @param {(part: string) => any} cost
 * @param {HTMLElement | null} picture
 */
function joined({ env, answer, coordinate }, cost, picture) {
  const { ctx } = env;
  const { heads } = ctx.colours();
  const concat = decode(answer.concat).data;
  const output = decode(answer.output).data;
  const share = answer.head_share ? decode(answer.head_share).data : null;
  const width = answer.head_dim;
  const parts = Array.from({ length: answer.heads }, (_, head) => ({ from: head * width, to: (head + 1) * width, colour: heads[head % 12] }));
  const along = createCursor(env.head * width);
  const write = (/** @type {number} */ i) =>
    share ? ctx.t("shareLine", { i, share: number(share[i]), whole: number(output[i]), head: env.head }) : `f(x)[${i}] = ${number(output[i])}`;
  return card(
    { key: "output", title: ctx.t("outputProjection"), formula: `f(x) = W_O·[z₀ … z${subscript(answer.heads - 1)}]${biasOf(env, "o")}`, cost: costText(ctx, cost("o")) },
    h("p", { class: "hint" }, ctx.t("concatAbout", { heads: answer.heads, head: env.head })),
    vector(ctx, { name: ctx.t("allHeads"), values: concat, reach: softReach(concat), cursor: along, parts, key: "concat" }),
    picture,
    share ? vector(ctx, { name: ctx.t("thisHead", { head: env.head }), values: share, reach: softReach(output), cursor: coordinate, key: "share" }) : null,
    vector(ctx, { name: "f(x)", values: output, reach: softReach(output), cursor: coordinate, key: "output" }),
    sumLine(coordinate, write, "output"),
  );
}

/** @param {number} n */
function subscript(n) {
  return String(n).replace(/\d/g, (digit) => String.fromCharCode(0x2080 + Number(digit)));
}

/**
 * How this model scales its scores: most divide by √d, T5 does not.
 * @param {any} answer
 */
function scaleText({ scale, head_dim: width }) {
  if (Math.abs(scale * Math.sqrt(width) - 1) < 1e-6) return "q·k / √d";
  return scale === 1 ? "q·k" : `q·k · ${number(scale, 4)}`;
}

/**
 * The bias of a projection, where this model has one.
 * @param {Env} env
 * @param {string} letter
 */
function biasOf(env, letter) {
  const biases = env.ctx.model.facts?.[env.name]?.attention?.biases ?? "";
  return biases.includes(letter) ? ` + b_${letter.toUpperCase()}` : "";
}
