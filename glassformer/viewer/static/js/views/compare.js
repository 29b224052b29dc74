// @ts-check
// Compare: two texts, two models (or checkpoints), or one model with and without some heads, side by side.

import { explained } from "../api.js";
import { at, decode, number, percent } from "../arrays.js";
import { heatMap, legend } from "../canvas.js";
import { choice, field, fill, h, segmented } from "../dom.js";
import words from "../i18n/compare.js";
import { headOf, kindsOf, stackOf } from "../state.js";
import { align, cosine, moved } from "./compare_align.js";
import { headWeights, readWeights } from "./compare_weights.js";
import { distances, distribution, merged, shares, tagTable } from "./compare_next.js";

/** @typedef {import("../types.js").Token} Token */
/** @typedef {import("../types.js").Model} Model */
/** @typedef {import("./compare_align.js").Pair} Pair */
/** @typedef {{name: string, model: number, facts: Model, input: Record<string, any>, layer: number, head: number}} Side */
/** @typedef {"encoder" | "decoder"} StackName */

const AUTOMATIC = 6_000_000; // weights of all heads of both sides that are computed without being asked for

/** Tokens as labels: spaces are seen. @param {Token} token */
const label = (token) => token.text.replace(/^ /, "").replace(/ /g, "·") || "·";

/** One word for another, where a small change of the text is worth a look. */
const SWAPS = [
  ["time flies like an arrow", "fruit flies like a banana"], ["fruit flies like a banana", "time flies like an arrow"],
  ["too tired", "too wide"], ["girl", "boy"], ["Lily", "Tom"], ["Warsaw", "London"], ["station", "hospital"],
];

/**
 * The second text to begin with: the first with one word changed, else another example.
 * @param {string} text
 * @param {string[]} examples
 */
export function variant(text, examples) {
  const swap = SWAPS.find(([from]) => text.includes(from));
  return swap ? text.replace(swap[0], swap[1]) : examples.find((example) => example !== text) ?? text;
}

/**
 * Where the tokens of a model stand that has not the wanted stack: in the one that it has.
 * @param {Model} facts
 * @param {StackName} wanted
 * @returns {StackName}
 */
const ownStack = (facts, wanted) => (facts.stacks[wanted] ? wanted : facts.stacks.decoder ? "decoder" : "encoder");

/** @type {import("../types.js").View} */
export default {
  id: "compare",
  words,
  uses: ["text", "kind", "layer", "head"],
  supports: (model, page) => kindsOf(model).length > 0 && (page.mode === "server" || page.models > 1),
  mount(root, ctx) {
    const { t } = ctx;
    let turn = 0;
    let computeAll = "";
    /** @type {{destroy: () => void}[]} */
    let maps = [];
    /** @type {ReturnType<typeof heatMap> | null} */
    let difference = null;
    const controls = h("div", { class: "controls" });
    const tokensPanel = h("div", { class: "panel compare-tokens" });
    const mapsPanel = h("div", { class: "panel" });
    const headsPanel = h("div", { class: "panel" });
    const nextPanel = h("div", { class: "panel" });
    const statesPanel = h("div", { class: "panel", hidden: true });
    const unshared = h("p", { class: "panel", "data-part": "unshared", hidden: true });
    const cards = h("div", {}, tokensPanel, unshared, mapsPanel, h("div", { class: "compare-lower" }, headsPanel, nextPanel), statesPanel);
    fill(root, controls, cards);

    const modes = () => {
      /** @type {[string, string][]} */
      const found = ctx.page.mode === "server" ? [["texts", t("mode.texts")]] : []; // a file holds one text
      if (ctx.models.length > 1) found.push(["models", t("mode.models")]);
      if (ctx.state().ablate.length) found.push(["ablate", t("mode.ablate")]);
      return found;
    };
    const mode = () => {
      const asked = ctx.setting("mode", ctx.models.length > 1 ? "models" : ctx.state().ablate.length ? "ablate" : "texts");
      return modes().some(([name]) => name === asked) ? asked : modes()[0][0];
    };
    const otherModel = () => {
      const asked = Number(ctx.setting("model", "-1"));
      if (asked >= 0 && asked < ctx.models.length) return asked;
      return ctx.models.findIndex((_, i) => i !== ctx.state().model);
    };
    const otherText = () => ctx.setting("text", variant(ctx.state().text, ctx.model.examples));

    /** @param {Model | null} facts of the second model */
    function drawControls(facts) {
      const state = ctx.state();
      const parts = [field(t("mode"), segmented(modes(), mode(), (value) => ctx.set({ mode: value }), t("mode")))];
      if (mode() === "texts") {
        const input = h("input", { type: "text", name: "second", class: "compare-text", title: t("second.hint"), value: otherText() });
        input.addEventListener("change", () => ctx.set({ text: input.value }));
        parts.push(field(t("second.text"), input, "compare-grow"));
      }
      if (mode() === "models") {
        parts.push(field(t("second.model"), choice(ctx.models.map(({ name }, i) => [String(i), name]), String(otherModel()),
          (value) => ctx.set({ model: value, layer: null, head: null }), { name: "second-model" })));
        const stack = facts && kindsOf(facts).includes(state.kind) && stackOf(facts, state.kind);
        if (stack) {
          const numbers = (/** @type {number} */ count) => /** @type {[string, string][]} */ (
            [["-1", t("same")], ...Array.from({ length: count }, (_, i) => [String(i), String(i)])]);
          parts.push(field(t("second.layer"), choice(numbers(stack.layers), ctx.setting("layer", "-1"), (value) => ctx.set({ layer: value }), { name: "second-layer" })));
          parts.push(field(t("second.head"), choice(numbers(stack.heads), ctx.setting("head", "-1"), (value) => ctx.set({ head: value }), { name: "second-head" })));
        }
      }
      const active = controls.contains(document.activeElement) ? document.activeElement : null;
      const again = active?.getAttribute("role") === "radio" ? "[role=radio][aria-checked=true]" : active?.getAttribute("name") ? `[name=${active.getAttribute("name")}]` : null;
      fill(controls, parts);
      if (again) /** @type {HTMLElement | null} */ (controls.querySelector(again))?.focus();
    }

    /** @returns {Promise<{a: Side, b: Side}>} */
    async function sides() {
      const state = ctx.state();
      const a = { name: state.text, model: state.model, facts: ctx.model, input: {}, layer: state.layer, head: headOf(state) };
      if (mode() === "texts") {
        const text = otherText();
        return { a, b: { ...a, name: text, input: { text, text_b: null, target: null } } };
      }
      if (mode() === "ablate") return { a: { ...a, name: t("side.on"), input: { ablate: [] } }, b: { ...a, name: t("side.off") } };
      const model = otherModel();
      const facts = await ctx.api("model", { model, input: {} }, { slot: "model-b" });
      const stack = stackOf(facts, state.kind) ?? { layers: 1, heads: 1 }; // a model of another family is compared without attention
      const own = (/** @type {string} */ key, /** @type {number} */ same, /** @type {number} */ count) => {
        const asked = Number(ctx.setting(key, "-1"));
        return Math.min(asked < 0 ? same : asked, count - 1);
      };
      const input = facts.family === ctx.model.family && facts.pairs === ctx.model.pairs ? { ablate: [] } : { ablate: [], text_b: null, target: null };
      return {
        a: { ...a, name: ctx.models[state.model].name },
        b: { name: ctx.models[model].name, model, facts, input, layer: own("layer", a.layer, stack.layers), head: own("head", a.head, stack.heads) },
      };
    }

    /** @param {Side} side @param {string} which */
    const ask = (side, /** @type {string} */ which) =>
      (/** @type {string} */ name, /** @type {Record<string, any>} */ params = {}, slot = name) =>
        ctx.api(name, { ...params, model: side.model, input: side.input }, { slot: `${slot}-${which}`, quiet: ctx.page.mode === "file" });

    async function draw() {
      const mine = ++turn;
      const both = await sides().catch((error) => {
        ctx.fail(explained(error, t));
        return null;
      });
      if (mine !== turn) return;
      drawControls(both && mode() === "models" ? both.b.facts : null);
      if (!both) return;
      const { a, b } = both;
      const fromA = ask(a, "a");
      const fromB = ask(b, "b");
      const { kind } = ctx.state();
      const [tokensA, tokensB] = await Promise.all([fromA("tokens"), fromB("tokens")]);
      if (mine !== turn) return;
      const queryStack = kind === "encoder" ? "encoder" : "decoder";
      const keyStack = kind === "decoder" ? "decoder" : "encoder";
      const texts = (/** @type {Token[]} */ tokens) => tokens.map((token) => token.text.trim().toLowerCase());
      const tokensOf = (/** @type {StackName} */ stack) => ({ a: tokensA[ownStack(a.facts, stack)], b: tokensB[ownStack(b.facts, stack)] });
      const shared = kindsOf(b.facts).includes(kind);
      const queries = tokensOf(queryStack);
      const keys = tokensOf(shared ? keyStack : queryStack);
      const queryPairs = align(texts(queries.a), texts(queries.b));
      const aligned = {
        a: { queries: queries.a, keys: keys.a }, b: { queries: queries.b, keys: keys.b },
        queries: queryPairs, keys: keys.a === queries.a ? queryPairs : align(texts(keys.a), texts(keys.b)),
      };
      drawTokens(aligned, keys.a !== queries.a);
      for (const panel of [mapsPanel, headsPanel]) panel.hidden = !shared;
      unshared.hidden = shared;
      if (!shared) {
        statesPanel.hidden = true;
        fill(unshared, ...whyUnshared(a, b));
        await drawNext(both, tokensA, tokensB, fromA, fromB, mine).catch(() => {});
        return;
      }
      const work = [drawMaps(both, aligned, fromA, fromB, mine), drawHeads(both, aligned, fromA, fromB, mine),
        drawNext(both, tokensA, tokensB, fromA, fromB, mine), drawStates(both, aligned, queryStack, fromA, fromB, mine)];
      for (const part of work) part.catch(() => {});
      await Promise.allSettled(work);
    }

    /** Why there is no attention to compare, and what to choose instead. @param {Side} a @param {Side} b */
    function whyUnshared(a, b) {
      const { kind } = ctx.state();
      const both = kindsOf(a.facts).filter((one) => kindsOf(b.facts).includes(one));
      const name = (/** @type {import("../types.js").Kind} */ one) => t(`kind.${one}.long`);
      if (!both.length) return [t("unshared.families", { a: a.name, b: b.name, familyA: t(`family.${a.facts.family.replace("-", "_")}`), familyB: t(`family.${b.facts.family.replace("-", "_")}`) })];
      return [t("unshared.kind", { b: b.name, kind: name(kind) }), " ", ...both.map((one) =>
        h("button", { type: "button", class: "quiet small", "data-kind": one, onclick: () => ctx.select({ kind: one }) }, name(one)))];
    }

    /** @typedef {{a: {queries: Token[], keys: Token[]}, b: {queries: Token[], keys: Token[]}, queries: Pair[], keys: Pair[]}} Aligned */

    /** @param {Aligned} aligned @param {boolean} apart queries and keys are different tokens */
    function drawTokens(aligned, apart) {
      const row = (/** @type {"a" | "b"} */ side, /** @type {"queries" | "keys"} */ role) =>
        h("tr", {}, h("th", { scope: "row" }, t(`side.${side}`)), aligned[role].map((pair) => {
          const index = pair[side];
          const token = index === null ? null : aligned[side][role][index];
          return h("td", {}, token
            ? h("span", { class: `chip ${pair.same ? "" : "compare-other"} ${token.special ? "token special" : ""}` }, label(token))
            : h("span", { class: "compare-gap", "aria-label": t("absent") }));
        }));
      const table = (/** @type {"queries" | "keys"} */ role) =>
        h("div", { class: "scroll" }, h("table", { class: "compare-aligned" }, apart ? h("caption", {}, t(`tokens.${role}`)) : null,
          h("tbody", {}, row("a", role), row("b", role))));
      const equal = [...aligned.queries, ...aligned.keys].every(({ same }) => same);
      fill(tokensPanel, h("h2", {}, t("tokens")), h("p", { class: "note" }, equal ? t("tokens.equal") : t("tokens.note")),
        table("queries"), apart ? table("keys") : null);
    }

    /** @typedef {ReturnType<typeof ask>} Ask */

    /** @param {{a: Side, b: Side}} both @param {Aligned} aligned @param {Ask} fromA @param {Ask} fromB @param {number} mine */
    async function drawMaps({ a, b }, aligned, fromA, fromB, mine) {
      const { kind } = ctx.state();
      const size = (/** @type {Side} */ side, /** @type {"a" | "b"} */ which) => ({
        queries: aligned[which].queries.length, keys: aligned[which].keys.length, heads: stackOf(side.facts, kind)?.heads ?? 1, saved: ctx.page.mode === "file",
      });
      const [inA, inB] = await Promise.all([
        headWeights(fromA, { kind, layer: a.layer, head: a.head }, size(a, "a")), headWeights(fromB, { kind, layer: b.layer, head: b.head }, size(b, "b"))]);
      if (mine !== turn) return;
      const value = (/** @type {import("./compare_weights.js").HeadWeights} */ side, /** @type {number | null} */ row, /** @type {number | null} */ column) => {
        if (row === null || column === null) return null;
        const i = row * side.shape[1] + column;
        return side.allowed && !side.allowed[i] ? null : side.data[i];
      };
      const valueOf = (/** @type {"a" | "b"} */ side, /** @type {number} */ row, /** @type {number} */ column) =>
        value(side === "a" ? inA : inB, aligned.queries[row][side], aligned.keys[column][side]);
      const nameOf = (/** @type {"queries" | "keys"} */ role, /** @type {Pair} */ pair) => {
        const one = pair.a === null ? null : label(aligned.a[role][pair.a]);
        const other = pair.b === null ? null : label(aligned.b[role][pair.b]);
        return one === other || other === null ? String(one) : one === null ? other : `${one}/${other}`;
      };
      const rowLabels = aligned.queries.map((pair) => nameOf("queries", pair));
      const columnLabels = aligned.keys.map((pair) => nameOf("keys", pair));
      const say = (/** @type {number | null} */ one) => (one === null ? t("absent") : number(one, 3));
      const colours = ctx.colours();
      const describe = (/** @type {import("../canvas.js").Cell} */ { row, column }) => {
        const one = valueOf("a", row, column);
        const other = valueOf("b", row, column);
        const d = one === null && other === null ? null : (other ?? 0) - (one ?? 0);
        return t("map.cell", { query: rowLabels[row], key: columnLabels[column], a: say(one), b: say(other), d: say(d) });
      };
      const common = {
        rows: rowLabels.length, columns: columnLabels.length, rowLabels, columnLabels, colours, describe, announce: ctx.announce, maxCell: 26, maxHeight: 420,
      };
      let most = 0.05;
      for (let row = 0; row < common.rows; row++) {
        for (let column = 0; column < common.columns; column++) {
          most = Math.max(most, Math.abs((valueOf("b", row, column) ?? 0) - (valueOf("a", row, column) ?? 0)));
        }
      }
      for (const map of maps) map.destroy();
      const mapA = heatMap({ ...common, label: t("map.label", { side: "A" }), colour: colours.sequential, value: (row, column) => valueOf("a", row, column) });
      const mapB = heatMap({ ...common, label: t("map.label", { side: "B" }), colour: colours.sequential, value: (row, column) => valueOf("b", row, column) });
      difference = heatMap({
        ...common, label: t("map.difference.label"), colour: (d) => colours.diverging(d / most),
        value: (row, column) => {
          const one = valueOf("a", row, column);
          const other = valueOf("b", row, column);
          return one === null && other === null ? null : (other ?? 0) - (one ?? 0);
        },
      });
      maps = [mapA, mapB, difference];
      const where = (/** @type {Side} */ side) => (mode() === "models" ? `${side.name}, ${side.layer}·${side.head}` : side.name);
      fill(mapsPanel, h("h2", {}, t("maps", { layer: a.layer, head: a.head })),
        h("div", { class: "compare-maps" },
          h("figure", { "data-side": "a" }, h("figcaption", {}, t("map.a", { name: where(a) })), mapA.element, legend(colours.sequential, 0, 1, "0", "1")),
          h("figure", { "data-side": "b" }, h("figcaption", {}, t("map.b", { name: where(b) })), mapB.element, legend(colours.sequential, 0, 1, "0", "1")),
          h("figure", { "data-side": "difference" }, h("figcaption", {}, t("map.difference")), difference.element,
            legend((share) => colours.diverging(share), -1, 1, `−${number(most, 2)} ${t("legend.less")}`, `${t("legend.more")} ${number(most, 2)}`))));
      for (const map of [mapA, mapB, difference]) map.update({});
    }

    /** @param {{a: Side, b: Side}} both @param {Aligned} aligned @param {Ask} fromA @param {Ask} fromB @param {number} mine */
    async function drawHeads({ a, b }, aligned, fromA, fromB, mine) {
      const state = ctx.state();
      const stackA = /** @type {import("../types.js").Stack} */ (stackOf(a.facts, state.kind));
      const stackB = /** @type {import("../types.js").Stack} */ (stackOf(b.facts, state.kind));
      const layers = Math.min(stackA.layers, stackB.layers);
      const heads = Math.min(stackA.heads, stackB.heads);
      const size = layers * (stackA.heads * aligned.a.queries.length * aligned.a.keys.length + stackB.heads * aligned.b.queries.length * aligned.b.keys.length);
      const title = [h("h2", {}, t("heads")), h("p", { class: "note" }, t("heads.note"), a.model === b.model ? null : ` ${t("heads.seeds")}`)];
      const key = JSON.stringify([state.text, state.kind, otherText(), mode()]);
      if (size > AUTOMATIC && computeAll !== key) {
        fill(headsPanel, title, h("p", { class: "note" }, t("heads.long", { tokens: aligned.a.queries.length })),
          h("button", { type: "button", class: "primary", onclick: () => { computeAll = key; void drawHeads({ a, b }, aligned, fromA, fromB, mine).catch(() => {}); } },
            t("heads.compute", { count: layers * heads })));
        return;
      }
      const share = new Float64Array(layers * heads);
      for (let layer = 0; layer < layers; layer++) {
        const params = { kind: state.kind, layer, heads: null, rows: null };
        const [answerA, answerB] = await Promise.all([fromA("attention", params, "all"), fromB("attention", params, "all")]);
        if (mine !== turn) return;
        const inA = readWeights(answerA);
        const inB = readWeights(answerB);
        const keys = { a: inA.shape[2], b: inB.shape[2] };
        for (let head = 0; head < heads; head++) {
          share[layer * heads + head] = moved(at(/** @type {any} */ (inA), head).data, at(/** @type {any} */ (inB), head).data, keys, aligned.queries, aligned.keys);
        }
      }
      const colours = ctx.colours();
      const most = Math.max(...share, 1e-6);
      const name = (/** @type {number} */ i) => ({ layer: Math.floor(i / heads), head: i % heads });
      const map = heatMap({
        rows: layers, columns: heads, value: (row, column) => share[row * heads + column], colour: (value) => colours.sequential(value / most), colours,
        label: t("heads.label"), rowLabels: Array.from({ length: layers }, (_, i) => String(i)), columnLabels: Array.from({ length: heads }, (_, i) => String(i)),
        describe: ({ row, column, value }) => t("heads.cell", { layer: row, head: column, value: number(value ?? 0, 3) }),
        onSelect: ({ row, column }) => ctx.select({ layer: row, heads: [column] }), announce: ctx.announce,
        marked: { row: a.layer, column: a.head }, minCell: 16, maxCell: 30,
      });
      maps.push(map);
      const order = Array.from(share, (_, i) => i).sort((one, other) => share[other] - share[one]).filter((i) => share[i] > 1e-6).slice(0, 5);
      fill(headsPanel, title, map.element, legend(colours.sequential, 0, 1, "0", number(most, 2)),
        order.length ? h("p", { class: "row compare-top" }, h("span", { class: "label" }, t("heads.top")), order.map((i) =>
          h("button", { type: "button", class: "chip", "data-layer": name(i).layer, "data-head": name(i).head, onclick: () => ctx.select({ layer: name(i).layer, heads: [name(i).head] }) },
            t("heads.cell", { ...name(i), value: number(share[i], 3) })))) : h("p", { class: "note" }, t("heads.equal")));
      map.update({});
    }

    /** Where two translations part: after this token, which both have, they differ. @param {Side} a @param {Side} b @param {any} tokensA @param {any} tokensB */
    function parting(a, b, tokensA, tokensB) {
      if (!a.facts.stacks.encoder || !b.facts.stacks.encoder || !tokensA.decoder || !tokensB.decoder) return {};
      const first = tokensA.decoder.findIndex((/** @type {Token} */ token, /** @type {number} */ i) => token.text !== tokensB.decoder[i]?.text);
      return first > 0 ? { position: first - 1 } : {};
    }

    /** @param {{a: Side, b: Side}} both @param {any} tokensA @param {any} tokensB @param {Ask} fromA @param {Ask} fromB @param {number} mine */
    async function drawNext({ a, b }, tokensA, tokensB, fromA, fromB, mine) {
      const can = (/** @type {string[]} */ names) => [a, b].every(({ facts }) => names.some((name) => facts.abilities.includes(name)));
      nextPanel.hidden = false;
      if (can(["generate", "fill"])) {
        const position = parting(a, b, tokensA, tokensB);
        const [answerA, answerB] = await Promise.all([fromA("predict", position), fromB("predict", position)]);
        if (mine !== turn) return;
        const inA = distribution(answerA);
        const inB = distribution(answerB);
        const byText = a.model !== b.model && (a.facts.vocab !== b.facts.vocab || inA.top.some(({ id, text }) => inB.top.some((other) => other.id === id && other.text !== text)));
        const best = (/** @type {ReturnType<typeof distribution>} */ side) => `${side.top[0].text.trim() || "␣"} (${percent(side.probs[side.top[0].id])})`;
        const last = (/** @type {any} */ answer, /** @type {any} */ tokens) => label((tokens.decoder ?? tokens.encoder)[answer.position]);
        const after = Boolean(a.facts.stacks.decoder);
        const mixed = after !== Boolean(b.facts.stacks.decoder);
        const where = mixed ? (after ? "next.afterAt" : "next.atAfter") : after ? "next.position" : "next.at";
        const { tv, kl } = byText ? { tv: 0, kl: 0 } : distances(inA, inB);
        fill(nextPanel, h("h2", {}, t(mixed ? "next.mixed" : after ? "next" : "next.mask")),
          h("p", { class: "note" }, t(where, { token: last(answerA, tokensA), other: last(answerB, tokensB) })),
          h("div", { class: "scroll" }, shares(ctx, merged(inA, inB, byText), t("next.token"))),
          h("p", { class: "note compare-numbers" }, t(byText ? "next.numbers.texts" : "next.numbers", { a: best(inA), b: best(inB), tv: number(tv, 3), kl: number(kl, 3) })));
      } else if (can(["tag"])) {
        const [inA, inB] = await Promise.all([fromA("tag"), fromB("tag")]);
        if (mine !== turn) return;
        const pairs = align(inA.words.map((/** @type {any} */ word) => word.text), inB.words.map((/** @type {any} */ word) => word.text));
        fill(nextPanel, h("h2", {}, t("tags")), h("div", { class: "scroll" }, tagTable(ctx, inA, inB, pairs)));
      } else if (can(["classify"])) {
        const [inA, inB] = await Promise.all([fromA("classify"), fromB("classify")]);
        if (mine !== turn) return;
        const names = [...new Set([...inA.labels, ...inB.labels].map(({ name }) => name))];
        const of = (/** @type {any} */ side, /** @type {string} */ name) => side.labels.find((/** @type {any} */ one) => one.name === name)?.probability ?? 0;
        fill(nextPanel, h("h2", {}, t("labels")), h("div", { class: "scroll" },
          shares(ctx, names.map((name) => ({ text: name, a: of(inA, name), b: of(inB, name) })), t("labels.label"))));
      } else {
        nextPanel.hidden = true;
      }
    }

    /** @param {{a: Side, b: Side}} both @param {Aligned} aligned @param {string} stack @param {Ask} fromA @param {Ask} fromB @param {number} mine */
    async function drawStates({ a, b }, aligned, stack, fromA, fromB, mine) {
      const kind = /** @type {"encoder" | "decoder"} */ (stack);
      const stackA = stackOf(a.facts, kind);
      const stackB = stackOf(b.facts, kind);
      const tokens = Math.max(aligned.a.queries.length, aligned.b.queries.length);
      const fits = stackA && stackB && stackA.width === stackB.width && stackA.layers === stackB.layers && tokens * stackA.width <= 262144;
      if (!fits) statesPanel.hidden = true;
      if (!fits) return;
      const names = [`${stack}.blocks.0.input`, ...Array.from({ length: stackA.layers }, (_, n) => `${stack}.blocks.${n}.output`)];
      const pairs = aligned.queries.filter((pair) => pair.a !== null && pair.b !== null);
      const table = new Float64Array(pairs.length * names.length);
      for (let n = 0; n < names.length; n++) {
        const [answerA, answerB] = await Promise.all([fromA("values", { name: names[n], tokens: null }), fromB("values", { name: names[n], tokens: null })]);
        if (mine !== turn) return;
        const inA = decode(answerA.values);
        const inB = decode(answerB.values);
        pairs.forEach((pair, i) => {
          table[i * names.length + n] = cosine(at(inA, /** @type {number} */ (pair.a)).data, at(inB, /** @type {number} */ (pair.b)).data);
        });
      }
      const colours = ctx.colours();
      const tokenOf = (/** @type {Pair} */ pair) => {
        const one = label(aligned.a.queries[/** @type {number} */ (pair.a)]);
        const other = label(aligned.b.queries[/** @type {number} */ (pair.b)]);
        return one === other ? one : `${one}/${other}`;
      };
      const layerName = (/** @type {number} */ n) => (n ? t("states.layer", { layer: n - 1 }) : t("states.embed"));
      const low = Math.min(...table, 0.999);
      const map = heatMap({
        rows: pairs.length, columns: names.length, colours, value: (row, column) => table[row * names.length + column],
        colour: (value) => colours.sequential((1 - value) / Math.max(1 - low, 1e-9)), label: t("states.label"),
        rowLabels: pairs.map(tokenOf), columnLabels: names.map((_, n) => layerName(n)), announce: ctx.announce, maxCell: 40, cellHeight: 22, maxHeight: 420,
        describe: ({ row, column, value }) => t("states.cell", { token: tokenOf(pairs[row]), layer: layerName(column), value: number(value ?? 0, 3) }),
      });
      maps.push(map);
      statesPanel.hidden = false;
      fill(statesPanel, h("h2", {}, t("states")), h("p", { class: "note" }, t("states.note")), map.element,
        legend(colours.sequential, 0, 1, "1", number(low, 2)));
      map.update({});
    }

    return {
      update() {
        draw().catch((error) => {
          if (!error?.missing) throw error;
          fill(tokensPanel, h("p", { class: "note missing" }, t("error.missing")));
          for (const panel of [unshared, mapsPanel, headsPanel, nextPanel, statesPanel]) panel.hidden = true;
        });
      },
      destroy() {
        turn += 1;
        for (const map of maps) map.destroy();
      },
      picture: () => cards,
    };
  },
};
