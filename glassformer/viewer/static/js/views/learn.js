// @ts-check
// Learn: training runs as they go. The server sends the new lines of each log; curves, samples and tables follow.

import { number } from "../arrays.js";
import { choice, field, fill, h, segmented, slider } from "../dom.js";
import words from "../i18n/learn.js";
import { lineChart, smoothed } from "./learn_chart.js";
import { duration, RunData, short } from "./learn_data.js";

const EVERY = 2; // seconds between two questions
const SMALL = ["lr", "grad_norm", "tokens_per_second"];

/** A sample that is laid out in columns: wrapped, its lines could not be read. */
const COLUMNS = /\S {2,}\S|\t|\S \| \S/;

/** @type {import("../types.js").View} */
export default {
  id: "learn",
  words,
  uses: [],
  supports: (_, page) => page.runs,
  mount(root, ctx) {
    const { t } = ctx;
    /** @type {any} */
    let summary = null;
    /** @type {RunData[]} */
    const data = [];
    let closed = false;
    let polls = 0;
    let asking = false;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let timer;
    const served = ctx.page.mode === "server";

    const hidden = () => new Set(ctx.setting("hidden", "").split(".").filter(Boolean).map(Number));
    const isLive = () => served && ctx.setting("live", "on") === "on";
    const colourOf = (/** @type {number} */ run) => ctx.colours().heads[run % 12];

    const scale = segmented(
      [["linear", t("scale.linear")], ["log", t("scale.log")]], ctx.setting("scale", "linear"), (value) => ctx.set({ scale: value }), t("scale"));
    const axis = segmented(
      [["step", t("axis.step")], ["tokens", t("axis.tokens")]], ctx.setting("axis", "step"), (value) => ctx.set({ axis: value }), t("axis"));
    const smooth = slider({
      label: t("smooth"), min: 0, max: 10, step: 1, value: Number(ctx.setting("smooth", "3")), format: (value) => `${value}`,
      onInput: (value) => ctx.set({ smooth: value }),
    });
    const live = h("input", { type: "checkbox", checked: isLive(), disabled: !served, onchange: () => ctx.set({ live: live.checked ? null : "off" }) });
    const liveNote = h("span", { class: "note" });
    const chart = lineChart({ label: t("loss"), series: [], colours: ctx.colours(), height: 340, announce: ctx.announce });
    const legend = h("div", { class: "row learn-legend", role: "group", "aria-label": t("runs") });
    const small = SMALL.map((name) => ({ name, chart: lineChart({ label: t(name), series: [], colours: ctx.colours(), height: 150, announce: ctx.announce }) }));
    const table = h("div", { class: "scroll" });
    const differs = h("div", { class: "scroll" });
    const samples = h("div", {});
    const empty = h("p", { class: "note", hidden: true }, t("empty"));

    fill(
      root,
      h("div", { class: "controls" }, field(t("scale"), scale), field(t("axis"), axis), smooth,
        h("div", { class: "row" }, h("label", { class: "row learn-live" }, live, t("live")), liveNote)),
      empty,
      h("div", { class: "panel" }, legend, chart.element),
      h("div", { class: "learn-small" }, small.map((one) => h("div", { class: "panel" }, h("h3", {}, t(one.name)), one.chart.element))),
      h("div", { class: "panel" }, h("h2", {}, t("runs")), table),
      h("div", { class: "panel" }, h("h2", {}, t("samples")), samples),
      h("div", { class: "panel" }, h("h2", {}, t("differs")), differs),
    );

    /** The values of the horizontal axis. @param {RunData} run */
    const xOf = (run) => (ctx.setting("axis", "step") === "tokens" ? run.values.tokens_seen : run.steps);

    /** Where a validation stands on the horizontal axis. @param {RunData} run @param {number} step */
    function xAtStep(run, step) {
      if (ctx.setting("axis", "step") !== "tokens") return step;
      const i = run.steps.findIndex((other) => other >= step);
      return run.values.tokens_seen[i < 0 ? run.steps.length - 1 : i] ?? NaN;
    }

    /** How many neighbours on each side the slider asks for. @param {RunData} run */
    const reachOf = (run) => Math.round((run.steps.length / 200) * Number(ctx.setting("smooth", "3")));

    function drawCharts() {
      const colours = ctx.colours();
      const off = hidden();
      const names = summary.runs.map((/** @type {any} */ run) => run.name);
      const xLabel = t(ctx.setting("axis", "step") === "tokens" ? "tokens" : "step");
      const log = ctx.setting("scale", "linear") === "log";
      /** @type {import("./learn_chart.js").Series[]} */
      const series = [];
      /** @type {{x: number, y: number, colour: string, label: string}[]} */
      const rings = [];
      data.forEach((run, i) => {
        if (off.has(i)) return;
        const x = xOf(run);
        const reach = reachOf(run);
        if (reach) series.push({ name: names[i], colour: colourOf(i), x, y: run.values.loss, faint: true });
        series.push({ name: `${names[i]}, ${t("train")}`, colour: colourOf(i), x, y: reach ? smoothed(run.values.loss, reach) : run.values.loss });
        const points = run.validation.filter(({ loss }) => typeof loss === "number");
        if (!points.length) return;
        series.push({
          name: `${names[i]}, ${t("valid")}`, colour: colourOf(i), dots: true, dash: "5 4", width: 1.5,
          x: points.map(({ step }) => xAtStep(run, step)), y: points.map(({ loss }) => Number(loss)),
        });
        const best = run.best;
        if (best) rings.push({ x: xAtStep(run, best.step), y: Number(best.loss), colour: colourOf(i), label: `${names[i]}: ${t("best")} ${number(Number(best.loss), 4)}` });
      });
      const shown = names.filter((/** @type {string} */ _, /** @type {number} */ i) => !off.has(i)).join(", ");
      chart.update({ series, rings, log, xLabel, yLabel: t("loss"), colours, label: t("chart", { runs: shown, axis: xLabel }) });
      for (const one of small) {
        one.chart.update({
          series: data.flatMap((run, i) => off.has(i) ? [] : [{
            name: names[i], colour: colourOf(i), x: xOf(run), width: 1.5,
            y: one.name === "lr" ? run.values.lr : smoothed(run.values[one.name], reachOf(run)),
          }]),
          xLabel, colours, label: t("small", { name: t(one.name), axis: xLabel }),
        });
      }
    }

    function drawLegend() {
      const off = hidden();
      fill(legend, summary.runs.map((/** @type {any} */ run, /** @type {number} */ i) =>
        h("button", {
          type: "button", class: "chip learn-run", "aria-pressed": String(!off.has(i)), "aria-label": t("shown", { name: run.name }),
          style: { "--head": colourOf(i) },
          onclick: () => {
            const next = hidden();
            if (!next.delete(i)) next.add(i);
            ctx.set({ hidden: next.size ? [...next].sort((a, b) => a - b).join(".") : null });
          },
        }, h("span", { class: "learn-dot", "aria-hidden": "true" }), run.name)),
        h("span", { class: "note learn-key" }, `── ${t("train")}`),
        data.some((run) => run.validation.some(({ loss }) => typeof loss === "number")) ? h("span", { class: "note learn-key" }, `- ● - ${t("valid")}`) : null,
        data.some((run) => run.best) ? h("span", { class: "note learn-key" }, `◯ ${t("best")}`) : null);
    }

    /** @param {any} run @param {number} i */
    function stateOf(run, i) {
      if (run.error) return data[i]?.steps.length ? "" : t("state.waiting");
      return run.finished ? t("state.finished") : t("state.training", { age: duration(run.age) });
    }

    function drawTable() {
      const cell = (/** @type {any} */ value) => h("td", { class: "number" }, value);
      const metrics = [...new Set(summary.runs.flatMap((/** @type {any} */ run) => Object.keys(run.results ?? {})))];
      const head = ["run", "state", "progress", "last", "best.loss", "speed", "time", "memory", "parameters"].map((key, i) =>
        h("th", { scope: "col", class: i > 1 ? "number" : "" }, t(key)));
      const rows = summary.runs.map((/** @type {any} */ run, /** @type {number} */ i) => {
        const best = data[i].best ?? run.best;
        const steps = data[i].steps;
        const losses = data[i].values.loss;
        const step = steps[steps.length - 1] ?? run.steps;
        return h("tr", { "data-run": run.name },
          h("th", { scope: "row" }, h("span", { class: "learn-dot", style: { "--head": colourOf(i) }, "aria-hidden": "true" }), run.name),
          h("td", {}, stateOf(run, i)),
          h("td", { class: "number" }, run.planned ? t("progress.of", { step: step.toLocaleString("en"), planned: Number(run.planned).toLocaleString("en") }) : step,
            run.planned ? h("progress", { max: Number(run.planned), value: step, "aria-label": t("progress") }) : null),
          cell(losses.length ? number(losses[losses.length - 1], 4) : t("none")),
          cell(best ? t("best.at", { loss: number(Number(best.loss), 4), step: best.step }) : t("none")),
          cell(run.tokens_per_second ? short(run.tokens_per_second) : t("none")),
          cell(run.seconds ? duration(run.seconds) : t("none")),
          cell(run.memory ? `${short(run.memory)}B` : t("none")),
          cell(run.parameters ? run.parameters.toLocaleString("en") : t("none")),
          metrics.map((name) => cell(run.results?.[name] === undefined ? t("absent") : number(run.results[name], 4))));
      });
      fill(table, h("table", { class: "plain" },
        h("thead", {}, h("tr", {}, head, metrics.map((name) => h("th", { scope: "col", class: "number" }, name)))), h("tbody", {}, rows)));
    }

    function drawDifferences() {
      if (summary.runs.length < 2) return fill(differs, h("p", { class: "note" }, t("differs.one")));
      if (!summary.differs.length) return fill(differs, h("p", { class: "note" }, t("differs.none")));
      fill(differs, h("table", { class: "plain" },
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, t("differs.key")),
          summary.runs.map((/** @type {any} */ run) => h("th", { scope: "col" }, run.name)))),
        h("tbody", {}, summary.differs.map((/** @type {string} */ key) =>
          h("tr", {}, h("th", { scope: "row", class: "mono" }, key),
            summary.runs.map((/** @type {any} */ run) => h("td", { class: "mono" }, run.recipe?.[key] ?? t("absent"))))))));
    }

    function drawSamples() {
      const off = hidden();
      const own = Number(ctx.setting("samples", "-1"));
      const withText = data.map((run, i) => ({ run, i })).filter(({ run, i }) => run.samples.length && !off.has(i));
      if (!withText.length) return fill(samples, h("p", { class: "note" }, t("samples.none")));
      const chosen = withText.find(({ i }) => i === own) ?? withText[0];
      const steps = [...new Set(chosen.run.samples.map(({ step }) => step))];
      const asked = Number(ctx.setting("step", "-1"));
      const step = steps.includes(asked) ? asked : steps[steps.length - 1];
      const name = summary.runs[chosen.i].name;
      const runChoice = choice(withText.map(({ i }) => [String(i), summary.runs[i].name]), String(chosen.i), (value) => ctx.set({ samples: value, step: null }));
      const at = slider({
        label: t("samples.step"), min: 0, max: steps.length - 1, step: 1, value: steps.indexOf(step), format: (i) => String(steps[i]),
        onInput: (i) => ctx.set({ step: i === steps.length - 1 ? null : steps[i] }),
      });
      fill(samples,
        h("div", { class: "controls" }, withText.length > 1 ? field(t("samples.of"), runChoice) : h("span", { class: "note" }, name), steps.length > 1 ? at : null,
          h("span", { class: "note" }, t("samples.at", { step }))),
        chosen.run.samples.filter((sample) => sample.step === step).map((sample) =>
          h("pre", { class: COLUMNS.test(sample.text) ? "learn-sample columned scroll" : "learn-sample", tabindex: 0, "aria-label": `${t("samples")} ${sample.number}` }, sample.text)));
    }

    function draw() {
      if (!summary || closed) return;
      empty.hidden = data.some((run) => run.steps.length);
      live.checked = isLive();
      liveNote.textContent = !served ? t("live.file") : isLive() ? t("live.on", { seconds: EVERY }) : t("live.off");
      drawLegend();
      drawCharts();
      drawTable();
      drawDifferences();
      const held = samples.contains(document.activeElement) && document.activeElement instanceof HTMLInputElement;
      if (!held || !samples.firstChild) drawSamples();
      else fill(/** @type {Element} */ (samples), ...rebuilt());
    }

    /** The samples anew, with the slider that has the focus kept in place. */
    function rebuilt() {
      const old = /** @type {HTMLInputElement} */ (document.activeElement);
      drawSamples();
      const fresh = samples.querySelector("input[type=range]");
      fresh?.replaceWith(old);
      requestAnimationFrame(() => old.focus());
      return [...samples.childNodes];
    }

    /** Ask for what is new in every log; `poll` counts up so that no kept answer is used. */
    async function refresh() {
      if (asking || closed) return;
      asking = true;
      try {
        const poll = served ? polls : 0;
        summary = await ctx.api("runs", { poll }, { quiet: polls > 0 });
        while (data.length < summary.runs.length) data.push(new RunData());
        let fresh = polls === 0;
        for (let i = 0; i < data.length; i++) {
          let answer;
          do {
            answer = await ctx.api("run_log", { run: i, ...data[i].cursor, poll }, { slot: `log${i}`, quiet: polls > 0 });
            const grew = data[i].add(answer);
            if (grew && polls > 0) {
              const { steps, values } = data[i];
              ctx.announce(t("updated", { run: summary.runs[i].name, step: steps[steps.length - 1] ?? 0, loss: number(values.loss[steps.length - 1] ?? NaN, 3) }));
            }
            fresh = fresh || grew;
          } while (answer.more && served && !closed);
        }
        polls += 1;
        if (fresh) draw();
        else drawTable();
      } finally {
        asking = false;
        plan();
      }
    }

    function plan() {
      clearTimeout(timer);
      if (closed || !isLive()) return;
      timer = setTimeout(() => (document.hidden ? plan() : refresh().catch(() => {})), EVERY * 1000);
    }

    refresh().catch(() => {});

    return {
      update(_, changed) {
        if (changed.has("x")) {
          scale.mark(ctx.setting("scale", "linear"));
          axis.mark(ctx.setting("axis", "step"));
          draw();
          plan();
        }
      },
      destroy() {
        closed = true;
        clearTimeout(timer);
        chart.destroy();
        for (const one of small) one.chart.destroy();
      },
      picture: () => chart.picture(),
    };
  },
};
