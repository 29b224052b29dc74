// @ts-check
// The stops of the tour: which a model has, what each asks the model, and the small live drawing of each.

import { at, decode, number, percent, topIndices } from "../arrays.js";
import { h } from "../dom.js";
import { activationOf, normOf, windowOf } from "../mechanisms.js";
import { lmOf } from "../state.js";
import { headWeights } from "./compare_weights.js";
import { bars, reach, shape, strip, sumText, thumb, tokenLabel, vectorsOf } from "./figures_draw.js";
import { WHOLE } from "./flow_parts.js";

/** @typedef {import("../types.js").Ctx} Ctx */
/** @typedef {import("../types.js").Model} Model */
/** @typedef {import("../types.js").Token} Token */

/**
 * What a stop looks at.
 * @typedef {object} Focus
 * @property {any} tokens the answer of `tokens`
 * @property {"encoder" | "decoder"} stack
 * @property {Token[]} own the tokens of the stack
 * @property {number} token index of the chosen one
 * @property {number} layer
 * @property {number} head
 */

/**
 * What a stop shows: sentences (key and values) and drawings.
 * @typedef {{say: [string, Record<string, string | number>?][], show: (HTMLElement | null)[]}} Scene
 */

/** @typedef {(ctx: Ctx, focus: Focus) => Promise<Scene>} Stop */

const KEYS = 14; // rows of a list of keys

/**
 * The stops that a model has, in their order.
 * @param {Model} model
 */
export function stopsOf(model) {
  const first = ["text", "embed", "positions", "qkv", "scores", "mask", "softmax", "sum", "concat", "residual", "ffn", "layers"];
  const predicts = ["generate", "fill"].some((name) => model.abilities.includes(name));
  const labels = ["tag", "classify"].some((name) => model.abilities.includes(name));
  if (model.stacks.encoder && model.stacks.decoder) return [...first, "memory", "target", "masked", "cross", ...(predicts ? ["logits", "next", "again"] : ["vectors"])];
  if (model.stacks.decoder) return [...first, ...(predicts ? ["logits", "next", "again"] : labels ? ["labels"] : ["vectors"])];
  return [...first, ...(predicts ? ["logits", "next"] : labels ? ["labels"] : ["vectors"])];
}

/**
 * The stack that a stop speaks of.
 * @param {Model} model
 * @param {string} stop
 * @returns {"encoder" | "decoder"}
 */
export function stackOfStop(model, stop) {
  if (!model.stacks.encoder) return "decoder";
  if (!model.stacks.decoder) return "encoder";
  return ["target", "masked", "cross", "logits", "next", "again"].includes(stop) ? "decoder" : "encoder";
}

/** @param {Focus} focus */
const nameOf = ({ own, token }) => tokenLabel(own[token]);

/** A heading over a drawing. @param {string} text @param {...any} children */
const titled = (text, ...children) => h("div", { class: "tour-part" }, h("h3", {}, text), ...children);

/** @param {Ctx} ctx @param {Focus} focus @param {"attention" | "ffn"} [part] @param {import("../types.js").Kind} [kind] */
const sublayer = (ctx, focus, part = "attention", kind = focus.stack) =>
  ctx.api("sublayer", { kind, layer: focus.layer, token: focus.token, head: focus.head, part }, { slot: `sublayer-${part}-${kind}` });

/** The keys with the largest numbers, in the order of the text. @param {ArrayLike<number>} values @param {number} must an index to keep */
function shownKeys(values, must) {
  if (values.length <= KEYS) return Array.from({ length: values.length }, (_, i) => i);
  const finite = Array.from(values, (value) => (Number.isFinite(value) ? value : -Infinity));
  const best = topIndices(finite, KEYS);
  if (!best.includes(must)) best[KEYS - 1] = must;
  return best.sort((a, b) => a - b);
}

/**
 * How many keys a list leaves out, and what they amount to.
 * @param {Ctx} ctx
 * @param {ArrayLike<number>} values of all keys
 * @param {number[]} rows those that are listed
 * @param {"weights" | "scores"} [kind] weights add up, scores do not
 */
function rest(ctx, values, rows, kind = "weights") {
  const count = values.length - rows.length;
  if (!count) return null;
  const listed = new Set(rows);
  let total = 0;
  for (let i = 0; i < values.length; i++) if (!listed.has(i)) total += values[i];
  return more(ctx, count, kind === "weights" ? ctx.t("rest.weights", { count, total: total.toFixed(3) }) : ctx.t("rest.scores", { count }));
}

/** A line for what a list leaves out; nothing if that is nothing. @param {Ctx} ctx @param {number} count @param {string} [text] */
const more = (ctx, count, text = ctx.t("rest.more", { count })) => (count > 0 ? h("p", { class: "note", "data-part": "rest" }, text) : null);

/** @type {Record<string, Stop>} */
export const STOPS = {
  async text(ctx, focus) {
    const { own, token } = focus;
    const { text } = ctx.state();
    return {
      say: [["text.text", { characters: Array.from(text).length, tokens: own.length, vocab: Number(ctx.model.vocab).toLocaleString("en") }], ["text.follow", { token: nameOf(focus), id: own[token].id }]],
      show: [
        h("p", { class: "tour-characters", "aria-label": ctx.t("text.characters") }, Array.from(text).slice(0, 90).map((character) => h("span", {}, character === " " ? "·" : character)), Array.from(text).length > 90 ? " …" : null),
        h("div", { class: "tour-ids", role: "list" }, own.slice(0, 40).map((one, i) => h("span", { class: `tour-id${i === token ? " on" : ""}`, role: "listitem" }, h("span", { class: one.special ? "token special" : "token" }, tokenLabel(one)), h("small", {}, String(one.id))))),
        more(ctx, own.length - 40),
      ],
    };
  },

  async embed(ctx, focus) {
    const answer = await ctx.api("embedding", { stack: focus.stack, token: focus.token });
    const vector = decode(answer.token).data;
    const width = ctx.model.stacks[focus.stack]?.width ?? vector.length;
    return {
      say: [["embed.text", { vocab: Number(ctx.model.vocab).toLocaleString("en"), width: vector.length, id: answer.id }], ["embed.same", { token: nameOf(focus) }],
        ...(answer.projected ? [/** @type {[string, any]} */ (["embed.projected", { narrow: vector.length, width }])] : []), ...(answer.scale !== 1 ? [/** @type {[string, any]} */ (["embed.scale", { scale: number(answer.scale, 2) }])] : [])],
      show: [
        h("div", { class: "row" }, h("figure", { class: "part" }, h("figcaption", {}, ctx.t("embed.table")), h("div", { class: "blank-matrix tour-table" }, h("span", { class: "tour-row" })), shape(ctx.model.vocab, vector.length)), h("span", { class: "op" }, "→"),
          h("div", { class: "grow" }, strip(ctx, vector, { label: ctx.t("embed.vector", { token: nameOf(focus) }), caption: nameOf(focus), height: 28 }))),
        numbersLine(vector),
      ],
    };
  },

  async positions(ctx, focus) {
    const answer = await ctx.api("embedding", { stack: focus.stack, token: focus.token });
    const stack = /** @type {any} */ (ctx.model.stacks[focus.stack]);
    const token = decode(answer.token).data;
    const kind = ctx.model.facts?.embed?.position?.kind;
    /** @type {Scene} */
    const scene = { say: [["positions.why"]], show: [] };
    if (answer.position || answer.segment || answer.language) {
      const parts = /** @type {[string, any][]} */ ([["token", answer.token], ["position", answer.position], ["segment", answer.segment], ["language", answer.language]]).filter(([, value]) => value);
      const most = Math.max(...parts.map(([, value]) => reach(decode(value).data)));
      const row = (/** @type {string} */ name, /** @type {ArrayLike<number>} */ data, /** @type {number} */ largest) => strip(ctx, data, { label: ctx.t(`positions.${name}`), caption: ctx.t(`positions.${name}`), most: largest });
      if (answer.position) scene.say.push([`positions.${kind}`, { position: focus.token }]);
      scene.show.push(...parts.map(([name, value]) => row(name, decode(value).data, most)));
      if (answer.sum) scene.show.push(row("sum", decode(answer.sum).data, most));
      if (answer.norm) {
        scene.say.push(["positions.norm"]);
        scene.show.push(row("normed", decode(answer.norm.output).data, reach(decode(answer.norm.output).data)));
      }
    }
    if (stack.rotary) {
      const found = await sublayer(ctx, focus);
      scene.say.push(["positions.rotary", { position: focus.token }]);
      if (found.q_before) {
        const [before, after] = [decode(found.q_before).data, decode(found.q).data];
        const most = Math.max(reach(before), reach(after));
        scene.show.push(titled(ctx.t("positions.query"), strip(ctx, before, { label: ctx.t("positions.before"), caption: ctx.t("positions.before"), most }), strip(ctx, after, { label: ctx.t("positions.after"), caption: ctx.t("positions.after"), most })));
      }
    }
    if (stack.score_bias) {
      const found = await sublayer(ctx, focus);
      scene.say.push([`positions.${stack.score_bias}`]);
      if (found.bias) {
        const bias = decode(found.bias).data;
        const rows = shownKeys(bias, focus.token);
        scene.show.push(titled(ctx.t("positions.bias"), bars(ctx, rows.map((i) => ({ name: tokenLabel(focus.own[i]), value: Number.isFinite(bias[i]) ? bias[i] : 0, shown: number(bias[i], 2) })), { label: ctx.t("positions.bias") }), rest(ctx, bias, rows, "scores")));
      }
    }
    if (scene.say.length === 1) scene.say.push(["positions.none"]);
    if (!scene.show.length) scene.show.push(strip(ctx, token, { label: ctx.t("positions.token"), caption: ctx.t("positions.token") }));
    return scene;
  },

  async qkv(ctx, focus) {
    const answer = await sublayer(ctx, focus);
    const read = decode(answer.read).data;
    const q = decode(answer.q_before ?? answer.q).data;
    const k = at(decode(answer.k_before ?? answer.k), focus.token).data;
    const v = at(decode(answer.v), focus.token).data;
    const kind = /** @type {any} */ (ctx.model.stacks[focus.stack]).qk_norm;
    const norm = kind ? normOf({ kind }).name : null;
    const row = (/** @type {string} */ name, /** @type {ArrayLike<number>} */ data) => h("div", { class: norm ? "tour-product normed" : "tour-product" }, h("span", { class: "op" }, "· W", h("sub", {}, name), norm && name !== "v" ? [h("br", {}), `→ ${norm}`] : "", " ="), strip(ctx, data, { label: ctx.t(`qkv.${name}`), caption: ctx.t(`qkv.${name}`), height: 22 }));
    return {
      say: [["qkv.text", { layer: focus.layer, head: focus.head, token: nameOf(focus), dim: q.length, heads: answer.heads }], ["qkv.roles"], ...(answer.kv_heads < answer.heads ? [/** @type {[string, any]} */ (["qkv.grouped", { heads: answer.heads, groups: answer.kv_heads }])] : []), ...(norm ? [/** @type {[string, any]} */ (["qkv.norm", { norm }])] : [])],
      show: [strip(ctx, read, { label: ctx.t("qkv.read", { token: nameOf(focus) }), caption: ctx.t(answer.norm ? "qkv.normed" : "qkv.vector"), height: 22 }), row("q", q), row("k", k), row("v", v)],
    };
  },

  async scores(ctx, focus) {
    const answer = await sublayer(ctx, focus);
    const products = decode(answer.products).data;
    const q = decode(answer.q).data;
    const keys = decode(answer.k);
    const allowed = decode(answer.allowed).data;
    const bias = answer.bias ? decode(answer.bias).data : null;
    const scaled = Float32Array.from(products, (value, i) => value * answer.scale + (bias ? bias[i] : 0));
    const visible = Array.from(scaled, (value, i) => (allowed[i] && Number.isFinite(value) ? value : -Infinity));
    const best = topIndices(visible, 1)[0];
    const usual = Math.abs(answer.scale * Math.sqrt(q.length) - 1) < 1e-6;
    const rows = shownKeys(scaled, focus.token);
    return {
      say: [["scores.text", { token: nameOf(focus) }], usual ? ["scores.root", { dim: q.length, root: number(Math.sqrt(q.length), 2) }] : answer.scale === 1 ? ["scores.unscaled"] : ["scores.scale", { scale: number(answer.scale, 4) }], ...(bias ? [/** @type {[string]} */ (["scores.bias"])] : [])],
      show: [
        bars(ctx, rows.map((i) => ({ name: tokenLabel(focus.own[i]), value: Number.isFinite(scaled[i]) ? scaled[i] : 0, shown: number(scaled[i], 2), strong: i === best, special: focus.own[i].special })), { label: ctx.t("scores.label", { token: nameOf(focus) }) }),
        rest(ctx, scaled, rows, "scores"),
        h("p", { class: "arithmetic mono" }, ctx.t("scores.sum", { token: nameOf(focus), other: tokenLabel(focus.own[best]) }), ` ${sumText(q, at(keys, best).data, products[best])}`, h("br", {}),
          `${number(products[best], 3)} · ${number(answer.scale, 4)}${bias ? ` + ${number(bias[best], 3)}` : ""} = ${number(scaled[best], 3)}`),
      ],
    };
  },

  async mask(ctx, focus) {
    const stack = /** @type {any} */ (ctx.model.stacks[focus.stack]);
    const [answer, found] = await Promise.all([sublayer(ctx, focus), ctx.api("mask", { kind: focus.stack, layer: focus.layer, head: focus.head })]);
    const allowed = decode(found.allowed);
    const scores = decode(answer.scores).data;
    const window = windowOf(stack, focus.layer);
    const size = Math.min(18, 300 / allowed.shape[1]);
    const hidden = Array.from(decode(answer.allowed).data).filter((value) => !value).length;
    /** @type {[string, Record<string, string | number>?][]} */
    const say = [[stack.causal ? "mask.causal" : "mask.none"]];
    if (window) say.push([`mask.${window}`, { window: stack.windows[focus.layer] }]);
    say.push(["mask.row", { token: nameOf(focus), seen: focus.own.length - hidden, hidden }]);
    const rows = shownKeys(scores, focus.token);
    return {
      say,
      show: [
        h("div", { class: "tour-two" },
          titled(ctx.t("mask.picture"), thumb(ctx, { shape: allowed.shape, data: allowed.data }, { label: ctx.t("mask.label"), map: "share", most: 1, width: allowed.shape[1] * size, height: allowed.shape[0] * size, name: (row, column) => `${tokenLabel(focus.own[row])} → ${tokenLabel(focus.own[column])}` })),
          titled(ctx.t("mask.scores", { token: nameOf(focus) }), h("table", { class: "bars" }, h("tbody", {}, rows.map((i) =>
            h("tr", { class: Number.isFinite(scores[i]) ? "" : "tour-hidden" }, h("th", { scope: "row" }, h("span", { class: "token" }, tokenLabel(focus.own[i]))), h("td", { class: "number" }, number(scores[i], 2)))))), rest(ctx, scores, rows, "scores"))),
      ],
    };
  },

  async softmax(ctx, focus) {
    const answer = await sublayer(ctx, focus);
    const scores = decode(answer.scores).data;
    const weights = decode(answer.weights).data;
    const best = topIndices(weights, 1)[0];
    const rows = shownKeys(weights, focus.token);
    const total = Array.from(weights).reduce((sum, value) => sum + value, 0);
    return {
      say: [["softmax.text"], ["softmax.best", { token: nameOf(focus), best: tokenLabel(focus.own[best]), weight: percent(weights[best]) }]],
      show: [
        bars(ctx, rows.map((i) => ({ name: tokenLabel(focus.own[i]), value: weights[i], shown: `${number(scores[i], 2)} → ${weights[i].toFixed(3)}`, strong: i === best, special: focus.own[i].special })), { label: ctx.t("softmax.label", { token: nameOf(focus) }), most: 1 }),
        rest(ctx, weights, rows),
        h("p", { class: "arithmetic mono" }, `e^${number(scores[best], 2)} / Σ e^s = ${weights[best].toFixed(3)} · ${ctx.t("softmax.total", { total: total.toFixed(3) })}`),
      ],
    };
  },

  async sum(ctx, focus) {
    const answer = await sublayer(ctx, focus);
    const weights = decode(answer.weights).data;
    const values = decode(answer.v);
    const output = decode(answer.head_output).data;
    const order = topIndices(weights, Math.min(5, weights.length));
    const most = Math.max(reach(values.data), reach(output));
    return {
      say: [["sum.text", { token: nameOf(focus) }]],
      show: [
        ...order.map((i) => h("div", { class: "tour-weighted" }, h("span", { class: "number" }, `${weights[i].toFixed(3)} ·`), strip(ctx, at(values, i).data, { label: ctx.t("sum.value", { token: tokenLabel(focus.own[i]) }), caption: tokenLabel(focus.own[i]), most }))),
        weights.length > order.length ? h("p", { class: "note" }, ctx.t("sum.rest", { count: weights.length - order.length })) : null,
        h("div", { class: "tour-weighted tour-result" }, h("span", { class: "number" }, "Σ ="), strip(ctx, output, { label: ctx.t("sum.output"), caption: ctx.t("sum.output"), most, height: 26 })),
        h("p", { class: "arithmetic mono" }, `z[0] = ${order.slice(0, 3).map((i) => `${weights[i].toFixed(2)}·${paren(at(values, i).data[0])}`).join(" + ")}${weights.length > 3 ? " + …" : ""} = ${number(output[0], 3)}`),
      ],
    };
  },

  async concat(ctx, focus) {
    const answer = await sublayer(ctx, focus);
    const joined = decode(answer.concat).data;
    const output = decode(answer.output).data;
    const colours = ctx.colours().heads;
    return {
      say: [["concat.text", { heads: answer.heads, dim: answer.head_dim, inner: joined.length, width: output.length }], ["concat.each"]],
      show: [
        h("div", { class: "tour-concat", "aria-hidden": "true" }, Array.from({ length: answer.heads }, (_, head) => h("span", { class: head === focus.head ? "on" : "", style: { background: colours[head % 12] } }, answer.heads <= 16 ? String(head) : ""))),
        strip(ctx, joined, { label: ctx.t("concat.joined"), caption: ctx.t("concat.joined"), height: 24 }),
        h("div", { class: "row" }, h("span", { class: "op" }, "· W", h("sub", {}, "o")), shape(joined.length, output.length), h("span", { class: "op" }, "=")),
        strip(ctx, output, { label: ctx.t("concat.output"), caption: ctx.t("concat.output"), height: 24 }),
      ],
    };
  },

  async residual(ctx, focus) {
    const answer = await sublayer(ctx, focus);
    const [input, output, added] = [answer.input, answer.output, answer.added].map((value) => decode(value).data);
    const most = Math.max(reach(input), reach(added));
    const norm = answer.norm ?? answer.post_norm;
    const row = (/** @type {string} */ name, /** @type {ArrayLike<number>} */ data, /** @type {number} */ largest) => strip(ctx, data, { label: ctx.t(`residual.${name}`), caption: ctx.t(`residual.${name}`), most: largest });
    return {
      say: [["residual.text"], [`residual.${answer.placement}`], ...(norm ? [/** @type {[string, any]} */ ([`residual.${norm.kind}`, { mean: number(norm.mean ?? 0, 3), size: number(Math.sqrt(norm.variance), 3) }])] : [])],
      show: [row("input", input, most), row("output", output, most), row("added", added, most),
        norm ? titled(ctx.t(answer.norm ? "residual.before" : "residual.after"), row("normed", decode(norm.output).data, reach(decode(norm.output).data))) : null,
        h("p", { class: "arithmetic mono" }, `${number(input[0], 3)} + ${paren(output[0])}${answer.others?.length ? " + …" : ""} ${answer.others?.length || addsUp([input[0], output[0]], added[0]) ? "=" : "≈"} ${number(added[0], 3)}`)],
    };
  },

  async ffn(ctx, focus) {
    const answer = await sublayer(ctx, focus, "ffn");
    const hidden = decode(answer.hidden).data;
    const output = decode(answer.output).data;
    const before = decode(answer.gate ?? answer.up).data;
    const active = Array.from(before).filter((value) => value > 0).length;
    const row = (/** @type {string} */ name, /** @type {ArrayLike<number>} */ data) => strip(ctx, data, { label: ctx.t(`ffn.${name}`), caption: ctx.t(`ffn.${name}`), height: 22 });
    const activation = activationOf(answer.activation).name;
    return {
      say: [["ffn.text", { width: output.length, hidden: hidden.length, activation }], ...(answer.gated ? [/** @type {[string]} */ (["ffn.gated"])] : []), ["ffn.active", { active, hidden: hidden.length }]],
      show: [row("read", decode(answer.read).data), answer.gate ? row("gate", before) : row("up", before), answer.gated ? row("up", decode(answer.up).data) : null, row("hidden", hidden), row("output", output)],
    };
  },

  async layers(ctx, focus) {
    // A saved page may not hold the vectors of every layer; the words of the lens are enough then.
    const stack = /** @type {any} */ (ctx.model.stacks[focus.stack]);
    const names = [`${focus.stack}.blocks.0.input`, ...Array.from({ length: stack.layers }, (_, n) => `${focus.stack}.blocks.${n}.output`)];
    const lensed = ctx.model.abilities.some((name) => name === "generate" || name === "fill") && focus.stack === (ctx.model.stacks.decoder ? "decoder" : "encoder");
    const all = focus.own.length <= WHOLE; // of a longer text, the token alone
    const [lens, ...states] = await Promise.all([lensed ? ctx.api("lens", all ? { top: 1 } : { top: 1, position: focus.token }) : null, ...names.map((name) => vectorsOf(ctx, name, [focus.token]))]);
    const vectors = states.map((state) => state?.data ?? null);
    const ids = lens ? decode(lens.ids) : null;
    const probs = lens ? decode(lens.probs) : null;
    const word = (/** @type {number} */ n) => (ids && probs ? `${tokenLabel({ text: lens.texts[String(at(ids, n, all ? focus.token : 0).data[0])] ?? "?" })} ${percent(at(probs, n, all ? focus.token : 0).data[0])}` : vectors[n] ? `|x| ${number(Math.hypot(...vectors[n]), 1)}` : "");
    const least = stack.layers > 12 ? Math.ceil((stack.layers + 1) / 13) : 1;
    const shown = names.map((_, n) => n).filter((n) => n % least === 0 || n === names.length - 1);
    return {
      say: [["layers.text", { layers: stack.layers, token: nameOf(focus) }], [stack.unique_layers < stack.layers ? "layers.shared" : "layers.own"], ...(lens ? [/** @type {[string]} */ (["layers.lens"])] : []), ...(stack.final_norm ? [/** @type {[string]} */ (["layers.norm"])] : [])],
      show: [h("div", { class: "tour-layers" }, shown.map((n) => h("div", { class: "tour-layer" }, h("span", { class: "strip-name" }, n ? ctx.t("layers.after", { layer: n - 1 }) : ctx.t("layers.embedding")), stripOrGap(ctx, vectors[n], n ? ctx.t("layers.after", { layer: n - 1 }) : ctx.t("layers.embedding")), h("span", { class: "tour-lens" }, word(n)))))],
    };
  },

  async memory(ctx, focus) {
    const memory = await vectorsOf(ctx, "encoder.output", focus.own.slice(0, 40).map((_, i) => i));
    const layers = ctx.model.stacks.decoder?.layers ?? 1;
    return {
      say: [["memory.text", { tokens: focus.own.length, width: ctx.model.stacks.encoder?.width ?? 0 }], ["memory.each", { layers }]],
      show: memory === null ? [] : [h("div", { class: "tour-memory" }, h("div", { class: "tour-memory-names" }, focus.own.slice(0, 40).map((token) => h("span", { class: "token" }, tokenLabel(token)))),
        thumb(ctx, memory, { label: ctx.t("memory.label"), width: 420, height: memory.shape[0] * 18, name: (row, column) => `${tokenLabel(focus.own[row])}[${column}]` })), more(ctx, focus.own.length - 40), shape(focus.own.length, memory.shape[1])],
    };
  },

  async target(ctx, focus) {
    const expected = focus.tokens.expected ?? [];
    return {
      say: [["target.text", { start: tokenLabel(focus.own[0]) }], ["target.shift", { count: focus.own.length }],
        ["target.follow", { token: nameOf(focus), writes: expected[focus.token] ? tokenLabel(expected[focus.token]) : "…" }]],
      show: [h("div", { class: "scroll" }, h("table", { class: "plain" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, ctx.t("target.step")), h("th", { scope: "col" }, ctx.t("target.reads")), h("th", { scope: "col" }, ctx.t("target.writes")))),
        h("tbody", {}, focus.own.slice(0, 12).map((_, i) => h("tr", {}, h("td", { class: "number" }, String(i + 1)), h("td", {}, focus.own.slice(0, i + 1).map((token) => h("span", { class: "chip" }, tokenLabel(token)))), h("td", {}, h("strong", {}, expected[i] ? tokenLabel(expected[i]) : "…"))))))), more(ctx, focus.own.length - 12)],
    };
  },

  async masked(ctx, focus) {
    const answer = await sublayer(ctx, focus, "attention", "decoder");
    const weights = decode(answer.weights).data;
    const best = topIndices(weights, 1)[0];
    const rows = shownKeys(weights, focus.token);
    return {
      say: [["masked.text", { layer: focus.layer, head: focus.head }], ["softmax.best", { token: nameOf(focus), best: tokenLabel(focus.own[best]), weight: percent(weights[best]) }]],
      show: [bars(ctx, rows.map((i) => ({ name: tokenLabel(focus.own[i]), value: weights[i], shown: weights[i].toFixed(3), strong: i === best, special: focus.own[i].special })), { label: ctx.t("softmax.label", { token: nameOf(focus) }), most: 1 }), rest(ctx, weights, rows)],
    };
  },

  async cross(ctx, focus) {
    const source = focus.tokens.encoder;
    const lengths = { queries: focus.own.length, keys: source.length, heads: ctx.model.stacks.decoder?.heads ?? 1, saved: ctx.page.mode === "file" };
    const [answer, map] = await Promise.all([sublayer(ctx, focus, "attention", "cross"), headWeights((name, params) => ctx.api(name, params), { kind: "cross", layer: focus.layer, head: focus.head }, lengths)]);
    const weights = decode(answer.weights).data;
    const best = topIndices(weights, 1)[0];
    const size = Math.min(16, 300 / map.shape[1], 300 / map.shape[0]);
    const rows = shownKeys(weights, best);
    return {
      say: [["cross.text"], ["cross.best", { token: nameOf(focus), best: tokenLabel(source[best]), weight: percent(weights[best]), layer: focus.layer, head: focus.head }]],
      show: [h("div", { class: "tour-two" },
        titled(ctx.t("cross.row", { token: nameOf(focus) }), bars(ctx, rows.map((i) => ({ name: tokenLabel(source[i]), value: weights[i], shown: weights[i].toFixed(3), strong: i === best, special: source[i].special })), { label: ctx.t("cross.row", { token: nameOf(focus) }), most: 1 }), rest(ctx, weights, rows)),
        titled(ctx.t("cross.all"), thumb(ctx, map, { label: ctx.t("cross.all"), map: "share", most: 1, width: map.shape[1] * size, height: map.shape[0] * size, name: (row, column) => `${tokenLabel(focus.own[row])} → ${tokenLabel(source[column])}` })))],
    };
  },

  async logits(ctx, focus) {
    const answer = await ctx.api("predict", { position: focus.token });
    const vector = (await vectorsOf(ctx, `${focus.stack}.output`, [focus.token]))?.data;
    const best = answer.top.slice(0, 10);
    const lm = lmOf(ctx.model);
    /** @type {[string, any][]} */
    const before = lm?.transform ? [["logits.transform", { activation: activationOf(lm.transform).name }]] : [];
    if (lm && lm.scale !== 1) before.push(["logits.scale", { scale: number(lm.scale, 4) }]);
    if (lm?.bias) before.push(["logits.bias", {}]);
    return {
      say: [["logits.text", { vocab: Number(ctx.model.vocab).toLocaleString("en"), token: nameOf(focus) }], ...before, ["logits.not"]],
      show: [vector ? strip(ctx, vector, { label: ctx.t("logits.vector"), caption: ctx.t("logits.vector"), height: 24 }) : null, h("div", { class: "row" }, h("span", { class: "op" }, "· W"), shape(ctx.model.stacks[focus.stack]?.width ?? 0, ctx.model.vocab), h("span", { class: "op" }, "=")),
        bars(ctx, best.map((/** @type {any} */ token) => ({ name: tokenLabel(token), special: token.special, value: token.logit, shown: number(token.logit, 2) })), { label: ctx.t("logits.label") })],
    };
  },

  async next(ctx, focus) {
    const answer = await ctx.api("predict", { position: focus.token });
    const best = answer.top.slice(0, 8);
    return {
      say: [["next.text"], [focus.stack === "decoder" ? "next.after" : "next.at", { token: nameOf(focus), best: tokenLabel(best[0]), prob: percent(best[0].prob) }], ...(answer.next ? [/** @type {[string, any]} */ (["next.actual", { token: tokenLabel(answer.next) }])] : [])],
      show: [h("div", { class: "tour-two" },
        bars(ctx, best.map((/** @type {any} */ token, /** @type {number} */ i) => ({ name: tokenLabel(token), special: token.special, value: token.prob, shown: percent(token.prob), strong: i === 0 })), { label: ctx.t("next.label"), most: 1 }),
        h("p", { class: "big-word tour-word" }, tokenLabel(best[0])))],
    };
  },

  async again(ctx, focus) {
    const pair = Boolean(ctx.model.stacks.encoder);
    const answer = await ctx.api("generate", { kind: pair ? "cross" : "decoder" });
    const given = pair ? focus.own.slice(0, answer.prompt) : focus.own;
    return {
      say: [["again.text"], [answer.ended === "eos" ? "again.eos" : "again.limit"]],
      show: [h("p", { class: "decode-line" }, given.map((token) => h("span", { class: "chip decode-token given" }, tokenLabel(token))), answer.steps.map((/** @type {any} */ step) => h("span", { class: "chip decode-token made", title: percent(step.prob) }, tokenLabel(step), h("small", { class: "tour-step-prob" }, percent(step.prob))))),
        h("p", { class: "note" }, ctx.t("again.parallel"))],
    };
  },

  async labels(ctx) {
    const tags = ctx.model.abilities.includes("tag");
    const answer = await ctx.api(tags ? "tag" : "classify");
    const count = ctx.model.labels?.length ?? 2;
    return {
      say: [[tags ? "labels.tag" : "labels.classify", { labels: count }]],
      show: [tags
        ? h("p", { class: "decode-line" }, answer.words.map((/** @type {any} */ word) => h("span", { class: `chip decode-token${word.label === "O" ? " given" : " fresh"}` }, word.text, h("small", { class: "tour-step-prob" }, `${word.label} ${percent(word.probability)}`))))
        : bars(ctx, answer.labels.map((/** @type {any} */ label, /** @type {number} */ i) => ({ name: label.name, value: label.probability, shown: percent(label.probability), strong: i === 0 })), { label: ctx.t("labels.label"), most: 1 })],
    };
  },

  async vectors(ctx, focus) {
    const vector = (await vectorsOf(ctx, `${focus.stack}.output`, [focus.token]))?.data;
    return { say: [["vectors.text"]], show: [vector === undefined ? null : strip(ctx, vector, { label: ctx.t("vectors.label", { token: nameOf(focus) }), caption: nameOf(focus), height: 28 })] };
  },
};

/** A vector after a layer, if it is known. @param {Ctx} ctx @param {ArrayLike<number> | null} vector @param {string} label */
const stripOrGap = (ctx, vector, label) => (vector ? strip(ctx, vector, { label, height: 14 }) : h("span", {}));

/** The first numbers of a vector. @param {ArrayLike<number>} vector */
function numbersLine(vector) {
  return h("p", { class: "arithmetic mono" }, `[${Array.from({ length: Math.min(6, vector.length) }, (_, i) => number(vector[i], 3)).join(", ")}${vector.length > 6 ? ", …" : ""}]`);
}

/** In thousandths. @param {number} value */
const rounded = (value) => Math.round(value * 1000);

/** Whether rounded terms add up to the rounded sum; if not, the sum is written as approximate. @param {number[]} terms @param {number} sum */
export const addsUp = (terms, sum) => terms.reduce((total, term) => total + rounded(term), 0) === rounded(sum);

/** @param {number} value */
const paren = (value) => (value < 0 ? `(${number(value, 3)})` : number(value, 3));
