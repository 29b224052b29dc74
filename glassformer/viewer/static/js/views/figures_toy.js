// @ts-check
// Figure: a vocabulary of six words. Targets as one-hot vectors, and the model's distributions while it is trained.

import { at, decode, number } from "../arrays.js";
import { css, inkOn } from "../colour.js";
import { fill, h, reducedMotion, slider } from "../dom.js";
import { lineChart } from "./learn_chart.js";

/** @typedef {import("../arrays.js").Nd} Nd */

/** @type {import("./figures_types.js").Figure} */
export const toy = {
  id: "toy",
  supports: () => true,
  mount(root, ctx) {
    const { t } = ctx;
    /** @type {any} */
    let answer = null;
    /** @type {ReturnType<typeof setInterval> | undefined} */
    let timer;
    const waiting = h("p", { class: "note" }, t("toy.training"));
    const body = h("div", { hidden: true });
    const tables = h("div", {});
    const chart = lineChart({ label: t("toy.loss"), series: [], colours: ctx.colours(), height: 200, log: true, announce: ctx.announce });
    const play = h("button", { type: "button", class: "primary", onclick: () => (timer ? stop() : start()) }, t("toy.play"));
    const control = h("div", { class: "controls" });
    fill(root, h("p", {}, t("toy.text")), waiting, body);
    fill(body, control, tables, h("h3", {}, t("toy.loss")), chart.element, h("p", { class: "note" }, t("toy.loss.text")));

    const step = () => {
      const asked = ctx.setting("step", "");
      const found = answer.steps.indexOf(Number(asked));
      return asked !== "" && found >= 0 ? found : answer.steps.length - 1;
    };

    function stop() {
      clearInterval(timer);
      timer = undefined;
      play.textContent = t("toy.play");
    }

    function start() {
      let at = step() === answer.steps.length - 1 ? 0 : step();
      ctx.set({ step: answer.steps[at] });
      play.textContent = t("pause");
      timer = setInterval(() => {
        at += 1;
        ctx.set({ step: answer.steps[at] });
        if (at >= answer.steps.length - 1) stop();
      }, reducedMotion() ? 1200 : 450);
    }

    /** @param {string} title @param {Nd} values (positions, words) @param {any} pair @param {boolean} sums */
    function table(title, values, pair, sums) {
      const colours = ctx.colours();
      const targets = decode(pair.one_hot);
      return h("div", { class: "scroll" }, h("table", { class: "toy-table" }, h("caption", {}, title),
        h("thead", {}, h("tr", {}, h("td", {}), answer.words.map((/** @type {string} */ word) => h("th", { scope: "col" }, word)), sums ? h("th", { scope: "col" }, t("toy.surprise")) : null)),
        h("tbody", {}, pair.target.map((/** @type {string} */ word, /** @type {number} */ row) => {
          const line = at(values, row);
          const goal = at(targets, row).data.indexOf(1);
          return h("tr", {}, h("th", { scope: "row" }, word), answer.words.map((/** @type {string} */ _, /** @type {number} */ column) => {
            const value = line.data[column];
            const background = colours.sequential(value);
            return h("td", { class: column === goal ? "goal" : "", style: { background: css(background), color: inkOn(background) } }, sums ? value.toFixed(3) : String(value));
          }), sums ? h("td", { class: "number plain-cell" }, number(-Math.log(Math.max(line.data[goal], 1e-38)), 3)) : null);
        }))));
    }

    function draw() {
      const now = step();
      const atStep = slider({
        label: t("toy.after"), min: 0, max: answer.steps.length - 1, step: 1, value: now, format: (i) => t("toy.steps", { step: answer.steps[i] }),
        onInput: (i) => { stop(); ctx.set({ step: answer.steps[i] }); },
      });
      const held = control.contains(document.activeElement);
      const range = control.querySelector("input");
      if (held && range && document.activeElement === range) {
        range.value = String(now);
        const output = control.querySelector("output");
        if (output) output.textContent = t("toy.steps", { step: answer.steps[now] });
      } else {
        fill(control, play, atStep);
        if (held) play.focus();
      }
      fill(tables, answer.pairs.map((/** @type {any} */ pair) => {
        const probs = decode(pair.probs);
        return h("section", { class: "toy-pair" }, h("h3", {}, `${pair.source} → ${pair.target.slice(0, -1).join(" ")}`), h("div", { class: "toy-tables" },
          table(t("toy.targets"), decode(pair.one_hot), pair, false), table(t("toy.before"), at(probs, 0), pair, true),
          table(t("toy.now", { step: answer.steps[now] }), at(probs, now), pair, true)));
      }));
      const losses = decode(answer.losses).data;
      const shown = answer.steps[now];
      chart.update({
        series: [{ name: t("toy.loss"), colour: ctx.colours().heads[0], x: Array.from(losses, (_, i) => i + 1), y: losses }], xLabel: t("toy.step"), colours: ctx.colours(),
        rings: shown ? [{ x: shown, y: losses[shown - 1], colour: ctx.colours().heads[1], label: t("toy.steps", { step: shown }) }] : [],
      });
    }

    return {
      async update() {
        answer ??= await ctx.api("toy");
        waiting.hidden = true;
        body.hidden = false;
        draw();
      },
      destroy() {
        stop();
        chart.destroy();
      },
    };
  },
};
