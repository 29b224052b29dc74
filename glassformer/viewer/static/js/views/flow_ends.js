// @ts-check
// Flow at both ends: from a token's id to its vector, and from the last vector to probabilities.

import { at, decode, number } from "../arrays.js";
import { h, s } from "../dom.js";
import { activationOf } from "../mechanisms.js";
import { visibleText } from "../tokens.js";
import { headKind, lmOf } from "../state.js";
import { card, missingCard, normCard, pipe, signed, sumLine } from "./flow_cards.js";
import { costTable, costText, createCursor, tint, vector } from "./flow_draw.js";
import { costOf, full, normName, short, softReach, WHOLE } from "./flow_parts.js";
import { mostProbable, readPrediction } from "./predict_read.js";

/** @typedef {import("./flow.js").Env} Env */

/**
 * @param {Env} env
 * @returns {Promise<HTMLElement>}
 */
export async function embedScene(env) {
  const { ctx, name } = env;
  const answer = await env.ask("embedding", { stack: name, token: env.token });
  const rows = ["token", "position", "segment", "language", "norm", "project"].map((part) => ({
    name: ctx.t(`embed.${part}`), cost: costOf(env.costs, `embed.${part}`), key: part,
  }));
  const aside = h("div", { class: "flow-aside" }, costTable(ctx, ctx.t("costs"), rows, costOf(env.costs, "embed")), h("p", { class: "flow-about" }, ctx.t("embedAbout")));
  const body = answer ? pipe(embedSteps(env, answer)) : missingCard(env);
  return h("div", { class: "flow-scene with-aside" }, body, aside);
}

/**
 * @param {Env} env
 * @param {any} answer
 */
function embedSteps(env, answer) {
  const { ctx } = env;
  const cursor = createCursor(0);
  const token = decode(answer.token).data;
  const reach = softReach(token);
  const added = ["position", "segment", "language"]
    .filter((part) => answer[part])
    .map((part) => ({ part, values: decode(answer[part]).data }));
  const sum = answer.sum ? decode(answer.sum).data : token;
  const output = decode(answer.output).data;
  const kind = ctx.model.facts?.embed?.position?.kind;
  const write = (/** @type {number} */ i) => {
    if (i >= token.length) return "";
    const terms = added.map(({ values }) => ` + ${signed(values[i])}`).join("");
    return `${number(token[i])}${terms} = ${number(sum[i])}`;
  };
  return [
    card(
      { key: "lookup", title: ctx.t("lookup", { id: answer.id }), formula: answer.scale && answer.scale !== 1 ? `E[${answer.id}] · ${number(answer.scale, 2)}` : `E[${answer.id}]` },
      h("p", { class: "hint" }, ctx.t("lookupAbout", { token: env.word, id: answer.id, vocab: full(ctx.model.vocab) })),
      tablePicture(env, answer.id, token.length),
      vector(ctx, { name: ctx.t("embed.token"), values: token, reach, cursor, key: "token" }),
    ),
    added.length
      ? card(
          { key: "sum", title: ctx.t("addedUp"), formula: ["E[id]", ...added.map(({ part }) => ctx.t(`embed.${part}`))].join(" + ") },
          kind ? h("p", { class: "hint" }, ctx.t(`positionAbout.${kind}`, { position: env.token })) : null,
          vector(ctx, { name: ctx.t("embed.token"), values: token, reach, cursor }),
          added.map(({ part, values }) => vector(ctx, { name: `+ ${ctx.t(`embed.${part}`)}`, values, reach, cursor, key: part })),
          vector(ctx, { name: `= ${ctx.t("sum")}`, values: sum, reach, cursor, key: "sum" }),
          sumLine(cursor, write, "sum"),
        )
      : h("p", { class: "flow-card flow-branch hint" }, ctx.t("noInputPositions")),
    answer.norm ? normCard(env, answer.norm, sum, cursor) : null,
    card(
      { key: "result", title: ctx.t("streamBegins"), onStream: true },
      answer.projected ? h("p", { class: "hint" }, ctx.t("projected", { from: full(sum.length), to: full(output.length) })) : null,
      vector(ctx, { name: "x", values: output, reach: softReach(output), cursor: createCursor(0), key: "output" }),
    ),
  ];
}

/**
 * The table of embeddings with the row of one token.
 * @param {Env} env
 * @param {number} id
 * @param {number} width
 */
function tablePicture(env, id, width) {
  const { ctx } = env;
  const colours = ctx.colours();
  const [wide, high] = [260, 76];
  const y = 6 + (id / Math.max(1, ctx.model.vocab - 1)) * (high - 16);
  return s(
    "svg",
    { width: 420, height: high + 6, viewBox: `0 0 420 ${high + 6}`, role: "img", "aria-label": ctx.t("tableAbout", { id, vocab: full(ctx.model.vocab), width }), style: { "max-width": "100%" } },
    s("rect", { x: 2, y: 3, width: wide, height: high, rx: 4, fill: tint(colours.heads[5], 0.14), stroke: colours.heads[5] }),
    s("rect", { x: 2, y, width: wide, height: 5, fill: colours.accent }),
    s("text", { x: wide + 12, y: y + 8, "font-size": 12 }, ctx.t("rowOf", { id })),
    s("text", { x: wide / 2, y: high - 6, "font-size": 11.5, "text-anchor": "middle", class: "quiet" }, `${full(ctx.model.vocab)} × ${full(width)}`),
  );
}

/**
 * @param {Env} env
 * @returns {Promise<HTMLElement>}
 */
export async function headScene(env) {
  const { ctx, name, stack } = env;
  const kind = headKind(ctx.model);
  const hidden = await vectorOf(env, `${name}.output`);
  const stream = stack.final_norm ? await vectorOf(env, `${name}.blocks.${stack.layers - 1}.output`) : null;
  const rows = [
    { name: ctx.t("finalNorm"), cost: costOf(env.costs, `${name}.norm`), key: "norm" },
    { name: ctx.t("outputHead"), cost: costOf(env.costs, "head"), key: "head" },
  ];
  const aside = h("div", { class: "flow-aside" }, costTable(ctx, ctx.t("costs"), rows, null), h("p", { class: "flow-about" }, ctx.t("headAbout")));
  const cursor = createCursor(0);
  const cards = [
    hidden
      ? card(
          { key: "hidden", title: ctx.t(stack.final_norm ? "finalVector" : "lastVector"), onStream: true },
          stream ? vector(ctx, { name: ctx.t("lastVector"), values: stream, reach: softReach(stream), cursor, key: "stream" }) : null,
          vector(ctx, { name: stack.final_norm ? normName(ctx.model) : "x", values: hidden, reach: softReach(hidden), cursor, key: "hidden" }),
          sumLine(cursor, (i) => (stream ? `x[${i}] = ${number(stream[i])} → ${number(hidden[i])}` : `x[${i}] = ${number(hidden[i])}`), "hidden"),
        )
      : null,
    kind === "lm" ? await logitsCard(env) : await labelsCard(env),
  ];
  const shown = cards.some(Boolean) ? pipe(cards) : missingCard(env);
  return h("div", { class: "flow-scene with-aside" }, shown, aside);
}

/**
 * A recorded vector of the chosen token.
 * @param {Env} env
 * @param {string} name
 */
async function vectorOf(env, name) {
  const all = (env.tokens[env.name]?.length ?? 0) <= WHOLE;
  const answer = await env.ask("values", { name, tokens: all ? null : [env.token] }, `values ${name}`);
  return answer ? at(decode(answer.values), all ? env.token : 0).data : null;
}

/** @param {Env} env */
async function logitsCard(env) {
  const { ctx } = env;
  const answer = await env.ask("predict", { position: env.token });
  if (!answer) return null;
  const prediction = readPrediction(answer);
  const top = mostProbable(prediction, 12);
  const lm = /** @type {NonNullable<ReturnType<typeof lmOf>>} */ (lmOf(ctx.model));
  const max = top[0]?.logit ?? 0;
  const sum = Math.exp(prediction.logsumexp - max); // Σ exp(logit − max)
  const rows = top.map((word) =>
    h(
      "tr",
      { "data-word": word.id },
      h("td", { class: "flow-word" }, visibleText(word.text)),
      h("td", {}, String(word.id)),
      h("td", {}, number(word.logit)),
      h("td", {}, number(Math.exp(word.logit - max))),
      h("td", { class: "flow-bar-cell" }, h("span", { class: "flow-bar", style: { width: `${(60 * word.prob) / top[0].prob}%` } }), ` ${(100 * word.prob).toFixed(2)} %`),
    ),
  );
  const heading = ["tokenWord", "id", "logit", "exponential", "probability"].map((word) => h("th", { scope: "col", class: word === "probability" ? "flow-bar-cell" : null }, ctx.t(word)));
  const first = top[0];
  return card(
    {
      key: "logits", title: ctx.t("logits", { vocab: full(ctx.model.vocab) }), formula: `softmax(${lm.tied ? "E" : "W"}·x${lm.scale !== 1 ? ` · ${number(lm.scale, 4)}` : ""}${lm.bias ? " + b" : ""})`,
      cost: costText(ctx, costOf(env.costs, "head")),
    },
    h("p", { class: "hint" }, ctx.t(lm.tied ? "tiedAbout" : "untiedAbout", { vocab: full(ctx.model.vocab) })),
    lm.transform ? h("p", { class: "hint" }, ctx.t("transformAbout", { activation: activationOf(lm.transform).name })) : null,
    h("div", { class: "flow-table-frame" }, h("table", { class: "flow-table" }, h("thead", {}, h("tr", {}, heading)), h("tbody", {}, rows))),
    first ? h("p", { class: "flow-sum", "data-sum": "softmax" }, `exp(${number(first.logit)} − ${signed(max)}) / ${number(sum)} = ${number(first.prob, 4)}`) : null,
    h("p", { class: "hint" }, ctx.t("softmaxAbout", { vocab: short(ctx.model.vocab) })),
  );
}

/** @param {Env} env */
async function labelsCard(env) {
  const { ctx } = env;
  const { abilities } = ctx.model;
  if (abilities.includes("classify")) {
    const answer = await env.ask("classify", {});
    if (!answer) return null;
    return card(
      { key: "labels", title: ctx.t("labelsTitle"), cost: costText(ctx, costOf(env.costs, "head")) },
      labelTable(env, answer.labels.map((/** @type {any} */ label) => [label.name, label.probability])),
    );
  }
  if (abilities.includes("tag")) {
    const answer = await env.ask("tag", {});
    if (!answer) return null;
    return card(
      { key: "labels", title: ctx.t("labelsTitle"), cost: costText(ctx, costOf(env.costs, "head")) },
      labelTable(env, answer.words.map((/** @type {any} */ word) => [`${word.text}  ${word.label}`, word.probability])),
    );
  }
  return null;
}

/**
 * @param {Env} env
 * @param {[string, number][]} rows
 */
function labelTable(env, rows) {
  const { ctx } = env;
  return h(
    "div",
    { class: "flow-table-frame" },
    h(
      "table",
      { class: "flow-table" },
      h("thead", {}, h("tr", {}, ["label", "probability"].map((word) => h("th", { scope: "col", class: word === "probability" ? "flow-bar-cell" : null }, ctx.t(word))))),
      h("tbody", {}, rows.map(([name, share]) =>
        h("tr", {}, h("td", { class: "flow-word" }, name), h("td", { class: "flow-bar-cell" }, h("span", { class: "flow-bar", style: { width: `${60 * share}%` } }), ` ${(100 * share).toFixed(1)} %`)))),
    ),
  );
}
