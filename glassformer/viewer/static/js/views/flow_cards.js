// @ts-check
// Cards of arithmetic that several scenes of Flow share: a step with its formula, a norm, a sum with the stream.

import { decode, number } from "../arrays.js";
import { pixels } from "../canvas.js";
import { h } from "../dom.js";
import { normOf, placementOf } from "../mechanisms.js";
import { vector } from "./flow_draw.js";
import { full, softReach } from "./flow_parts.js";

/** @typedef {import("./flow.js").Env} Env */
/** @typedef {import("./flow_draw.js").Cursor} Cursor */
/** @typedef {import("../dom.js").Child} Child */

/**
 * Cards one below the other, joined by a line.
 * @param {(HTMLElement | null)[]} cards
 */
export function pipe(cards) {
  const pipeline = h("div", { class: "flow-pipe" });
  let count = 0;
  for (const card of cards) {
    if (!card) continue;
    if (count) pipeline.append(h("div", { class: `flow-joint${card.classList.contains("flow-branch") ? " flow-branch" : ""}`, "aria-hidden": "true" }));
    count += 1;
    const step = card.querySelector(".step");
    if (step) step.textContent = String(count);
    pipeline.append(card);
  }
  return pipeline;
}

/**
 * One step of the computation.
 * @param {object} options
 * @param {string} options.key
 * @param {string} options.title
 * @param {string} [options.formula]
 * @param {string} [options.cost]
 * @param {boolean} [options.onStream] drawn on the residual stream and not beside it
 * @param {...(Child | Child[])} children
 */
export function card({ key, title, formula, cost, onStream = false }, ...children) {
  return h(
    "section",
    { class: `flow-card ${onStream ? "flow-on-stream" : "flow-branch"}`, "data-step": key, "aria-label": title },
    h("h3", {}, h("span", { class: "step", "aria-hidden": "true" }), title, cost ? h("span", { class: "cost" }, cost) : null),
    formula ? h("p", { class: "flow-formula" }, formula) : null,
    ...children,
  );
}

/**
 * A line of arithmetic that follows a coordinate.
 * @param {Cursor} cursor
 * @param {(index: number) => string} write
 * @param {string} [key]
 */
export function sumLine(cursor, write, key) {
  const line = h("p", { class: "flow-sum", "data-sum": key });
  cursor.listen((index) => (line.textContent = write(index)));
  return line;
}

/** Brackets around a negative number. @param {number} value @param {number} [digits] */
export function signed(value, digits = 3) {
  return value < 0 ? `(${number(value, digits)})` : number(value, digits);
}

/** @param {number} value */
const tiny = (value) => value.toExponential(0).replace("-", "−");

/**
 * A norm, with the numbers of the chosen token.
 * @param {Env} env
 * @param {any} norm of the answer to `sublayer` or `embedding`
 * @param {ArrayLike<number>} input
 * @param {Cursor} cursor
 * @param {{onStream?: boolean, cost?: string, key?: string, reach?: number}} [options]
 */
export function normCard(env, norm, input, cursor, { onStream = false, cost = "", key = "norm", reach } = {}) {
  const { ctx } = env;
  const output = decode(norm.output).data;
  const gain = decode(norm.gain).data;
  const bias = norm.bias ? decode(norm.bias).data : null;
  const { name: title, centred } = normOf(norm);
  const root = Math.sqrt(norm.variance + norm.eps);
  const formula = centred ? `y = (x − μ) / √(σ² + ε) · γ${bias ? " + β" : ""}` : "y = x / √(mean(x²) + ε) · γ";
  const facts = centred
    ? `μ = ${number(norm.mean, 4)}, σ² = ${number(norm.variance, 4)}, ε = ${tiny(norm.eps)}`
    : `mean(x²) = ${number(norm.variance, 4)}, ε = ${tiny(norm.eps)}`;
  const write = (/** @type {number} */ i) => {
    const above = centred ? `(${number(input[i])} − ${signed(norm.mean)})` : signed(input[i]);
    const after = bias ? ` + ${signed(bias[i])}` : "";
    return `y[${i}] = ${above} / ${number(root)} · ${signed(gain[i])}${after} = ${number(output[i])}`;
  };
  return card(
    { key, title, formula, cost, onStream },
    h("p", { class: "hint" }, ctx.t("normAbout"), " ", facts),
    vector(ctx, { name: ctx.t("before"), values: input, reach: reach ?? softReach(input), cursor, key: `${key}-in` }),
    vector(ctx, { name: ctx.t("after"), values: output, reach: softReach(output), cursor, key: `${key}-out` }),
    sumLine(cursor, write, key),
  );
}

/**
 * The sum with the residual stream.
 * @param {Env} env
 * @param {any} answer of `sublayer`
 * @param {Cursor} cursor
 */
export function addCard(env, answer, cursor) {
  const { ctx, stack } = env;
  const input = decode(answer.input).data;
  const output = decode(answer.output).data;
  const added = decode(answer.added).data;
  const reach = softReach(added);
  const { parallel } = placementOf(stack);
  const others = parallel ? added.map((value, i) => value - input[i] - output[i]) : null;
  const write = (/** @type {number} */ i) => {
    const middle = others ? ` + ${signed(others[i])}` : "";
    return `x[${i}] + f(x)[${i}]${others ? " + …" : ""} = ${number(input[i])} + ${signed(output[i])}${middle} = ${number(added[i])}`;
  };
  return card(
    { key: "add", title: ctx.t("residual"), formula: "x + f(x)", onStream: true },
    h("p", { class: "hint" }, ctx.t("residualAbout")),
    vector(ctx, { name: "x", values: input, reach, cursor, key: "add-x" }),
    vector(ctx, { name: `+ f(x)`, values: output, reach, cursor, key: "add-f" }),
    others ? vector(ctx, { name: `+ ${ctx.t("otherSublayers")}`, values: others, reach, cursor }) : null,
    vector(ctx, { name: `= ${ctx.t("sum")}`, values: added, reach, cursor, key: "add-sum" }),
    sumLine(cursor, write, "add"),
  );
}

/**
 * Weight matrices of the chosen layer as small pictures; those that cannot be had are left out.
 * @param {Env} env
 * @param {[string, string][]} names of the query `matrix`, and as they are written
 * @param {number | null} head the head whose part is shown
 * @returns {Promise<HTMLElement | null>}
 */
export async function matrices(env, names, head) {
  const { ctx, state, name } = env;
  const kind = head === null ? name : state.kind;
  const answers = await Promise.all(
    names.map(([matrix]) => env.ask("matrix", { kind, layer: state.layer, name: matrix, head, size: 64 }, `matrix ${matrix}`)),
  );
  const figures = answers.map((answer, number_) => (answer ? matrixFigure(env, answer, names[number_][1]) : null)).filter((figure) => figure !== null);
  return figures.length ? h("div", { class: "flow-matrices", "aria-label": ctx.t("matrices") }, figures) : null;
}

/**
 * @param {Env} env
 * @param {any} answer
 * @param {string} label
 */
function matrixFigure(env, answer, label) {
  const { ctx } = env;
  const values = decode(answer.values);
  const [rows, columns] = values.shape;
  const reach = softReach(values.data);
  const { diverging } = ctx.colours();
  const canvas = pixels(rows, columns, (row, column) => diverging(values.data[row * columns + column] / reach));
  const scale = Math.min(150 / answer.columns, 96 / answer.rows);
  canvas.className = "flow-matrix";
  canvas.style.setProperty("width", `${Math.max(24, answer.columns * scale)}px`);
  canvas.style.setProperty("height", `${Math.max(24, answer.rows * scale)}px`);
  canvas.setAttribute("role", "img");
  const shape = `${full(answer.rows)} × ${full(answer.columns)}`;
  canvas.setAttribute("aria-label", `${label}, ${shape}`);
  return h("figure", { class: "flow-figure" }, canvas, h("figcaption", {}, `${label} · ${shape}${answer.bias ? ` + ${ctx.t("biasVector")}` : ""}`));
}

/**
 * What stands in place of numbers that an exported page does not hold.
 * @param {Env} env
 */
export function missingCard(env) {
  return h("p", { class: "flow-missing" }, env.missing ?? env.ctx.t("noValues"));
}
