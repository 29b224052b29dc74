// @ts-check
// Figure: decoding, one token after the other. It can be played, paused and stepped; every step reads all tokens before it.

import { decode as decodeArray, percent } from "../arrays.js";
import { fill, h, reducedMotion, s } from "../dom.js";
import { headOf } from "../state.js";
import { bars, tokenLabel } from "./figures_draw.js";

/** @type {import("./figures_types.js").Figure} */
export const decode = {
  id: "decode",
  supports: (model) => Boolean(model?.abilities.includes("generate")),
  mount(root, ctx) {
    const { t } = ctx;
    let turn = 0;
    /** @type {any} */
    let answer = null;
    /** @type {any[]} */
    let source = [];
    /** @type {any[]} */
    let given = [];
    /** @type {ReturnType<typeof setInterval> | undefined} */
    let timer;
    const play = h("button", { type: "button", class: "primary decode-play", onclick: () => (timer ? stop() : start()) }, t("play"));
    const back = h("button", { type: "button", class: "quiet", onclick: () => go(step() - 1) }, t("decode.back"));
    const next = h("button", { type: "button", class: "quiet", onclick: () => go(step() + 1) }, t("decode.next"));
    const again = h("button", { type: "button", class: "quiet", onclick: () => go(0) }, t("decode.again"));
    const count = h("span", { class: "note", role: "status" });
    const stage = h("div", { class: "decode-stage" });
    const side = h("div", {});
    fill(root, h("p", {}, t(ctx.model.stacks.encoder ? "decode.text.pair" : "decode.text")), h("div", { class: "controls" }, play, back, next, again, count),
      h("div", { class: "decode" }, stage, side), h("p", { class: "note" }, t("decode.parallel")));

    const last = () => (answer ? answer.steps.length : 0);
    const step = () => Math.max(0, Math.min(last(), Number(ctx.setting("at", "0")) || 0));
    function go(/** @type {number} */ to) {
      stop();
      ctx.set({ at: Math.max(0, Math.min(last(), to)) });
    }
    function stop() {
      clearInterval(timer);
      timer = undefined;
      play.textContent = t("play");
    }
    function start() {
      if (step() >= last()) ctx.set({ at: 0 });
      play.textContent = t("pause");
      timer = setInterval(() => {
        ctx.set({ at: step() + 1 });
        if (step() >= last()) stop();
      }, reducedMotion() ? 2000 : 1000);
    }

    function draw() {
      const at = step();
      const colours = ctx.colours();
      const now = at < last() ? answer.steps[at] : null;
      const rows = now?.attention ? decodeArray(now.attention).data : null;
      const cross = source.length > 0 && rows !== null && rows.length === source.length;
      const most = rows ? Math.max(...rows, 1e-9) : 1;
      /** @returns {Record<string, string>} */
      const shade = (/** @type {number} */ i, /** @type {boolean} */ on) => (on && rows && i < rows.length ? { "border-bottom": `${1 + Math.round(7 * (rows[i] / most))}px solid ${colours.accent}` } : {});
      const chip = (/** @type {any} */ token, /** @type {string} */ kind, /** @type {Record<string, string>} */ style) =>
        h("span", { class: `chip decode-token ${kind} ${token.special ? "token special" : ""}`.trim(), style }, tokenLabel(token));
      const produced = answer.steps.slice(0, at);
      const line = [
        ...given.map((token, i) => chip(token, "given", shade(i, !cross))),
        ...produced.map((/** @type {any} */ token, /** @type {number} */ i) => chip(token, i === at - 1 ? "fresh" : "made", shade(given.length + i, !cross))),
        now ? h("span", { class: "chip decode-token waiting" }, "?") : null,
      ];
      fill(stage,
        source.length ? [h("p", { class: "label" }, t("decode.source")), h("p", { class: "decode-line" }, source.map((token, i) => chip(token, "given", shade(i, cross))))] : null,
        h("p", { class: "label" }, t("decode.sees")), h("p", { class: "decode-line" }, line),
        now ? h("p", { class: "note" }, t(cross ? "decode.attention.cross" : "decode.attention", { layer: ctx.state().layer, head: headOf(ctx.state()) })) : h("p", { class: "note" }, t(`decode.ended.${answer.ended === "eos" ? "eos" : "length"}`)),
        mask(given.length + at));
      fill(side, now ? [h("h3", {}, t("decode.candidates")),
        bars(ctx, now.top.slice(0, 8).map((/** @type {any} */ token) => ({ name: tokenLabel(token), value: token.prob, shown: percent(token.prob), strong: token.id === now.id })), { label: t("decode.candidates"), most: 1 }),
        h("p", {}, t("decode.chosen"), " ", h("strong", { class: "token" }, tokenLabel(now)))] : [h("h3", {}, t("decode.result")), h("p", { class: "big-word" }, answer.text)]);
      count.textContent = t("decode.step", { step: at, count: last() });
      back.disabled = at === 0;
      next.disabled = at === last();
      if (at >= last()) stop();
    }

    /** What each step may see: a triangle that grows by a row. @param {number} length */
    function mask(length) {
      const size = Math.min(10, 150 / Math.max(length, 1));
      const total = given.length + last();
      const colours = ctx.colours();
      const svg = s("svg", { width: total * size + 2, height: total * size + 2, viewBox: `0 0 ${total * size + 2} ${total * size + 2}`, class: "decode-mask", role: "img", "aria-label": t("decode.mask", { count: length }) });
      for (let row = 0; row < total; row++) {
        const width = (row + 1) * size;
        svg.appendChild(s("rect", { x: 1, y: 1 + row * size, width, height: size - 1, fill: row < length - 1 ? colours.accentSoft : row === length - 1 ? colours.accent : "none", stroke: row < length ? "none" : colours.line }));
      }
      return svg;
    }

    return {
      async update(state, changed) {
        const asks = ["text", "target", "kind", "layer", "heads", "ablate", "model"].some((key) => changed.has(key));
        if (!answer || asks) {
          const mine = ++turn;
          stop();
          const kind = state.kind === "encoder" ? "cross" : state.kind;
          const [tokens, found] = await Promise.all([ctx.api("tokens"), ctx.api("generate", { kind: ctx.model.stacks.encoder ? kind : "decoder", layer: state.layer, head: headOf(state) })]);
          if (mine !== turn) return;
          answer = found;
          source = tokens.encoder ?? [];
          const prompt = typeof found.prompt === "number" ? found.prompt : found.given.length;
          given = tokens.decoder.slice(0, prompt);
        }
        draw();
      },
      destroy() {
        turn += 1;
        stop();
      },
    };
  },
};
