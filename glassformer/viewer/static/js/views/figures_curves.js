// @ts-check
// Figure: the activations, drawn by the functions that the models use.

import { decode, number } from "../arrays.js";
import { field, fill, h, segmented } from "../dom.js";
import { ACTIVATION_KINDS } from "../mechanisms.js";
import { lineChart } from "./learn_chart.js";

const DASHES = ["", "", "2 5", "7 4"];

/** @type {import("./figures_types.js").Figure} */
export const curves = {
  id: "curves",
  supports: () => true,
  mount(root, ctx) {
    const { t } = ctx;
    const which = segmented([["value", t("curves.value")], ["slope", t("curves.slope")]], ctx.setting("curve", "value"), (value) => ctx.set({ curve: value }), t("curves.show"));
    const chart = lineChart({ label: t("curves.title"), series: [], colours: ctx.colours(), height: 360, announce: ctx.announce });
    const key = h("div", { class: "row" });
    const own = h("p", { class: "note" });
    fill(root, h("p", {}, t("curves.text")), h("div", { class: "controls" }, field(t("curves.show"), which)), chart.element, key,
      h("dl", { class: "facts" }, ACTIVATION_KINDS.map((name) => [h("dt", {}, t(`curves.${name}`)), h("dd", {}, t(`curves.${name}.text`))]).flat()), own);
    return {
      async update() {
        const what = ctx.setting("curve", "value");
        which.mark(what);
        const answer = await ctx.api("activations");
        const x = Array.from(decode(answer.x).data);
        const colours = ctx.colours();
        const facts = ctx.model?.stacks.decoder ?? ctx.model?.stacks.encoder;
        const used = /** @type {any} */ (facts)?.ffn;
        const series = ACTIVATION_KINDS.map((name, i) => ({
          name: t(`curves.${name}`), colour: colours.heads[i], x, y: Array.from(decode(answer.curves[name][what]).data),
          dash: name === used?.activation ? "" : DASHES[i % DASHES.length], width: name === used?.activation ? 4 : 1.8,
        }));
        chart.update({ series, colours, xLabel: "x", yLabel: what === "value" ? "f(x)" : "f′(x)", label: t("curves.label", { what: t(`curves.${what}`) }), yValue: (y) => number(y, 3) });
        fill(key, series.map(({ name, colour, dash }) => h("span", { class: "legend" },
          h("span", { class: `line-key${dash ? " dashed" : ""}`, style: { "border-color": colour } }), name)));
        own.textContent = used ? t(used.gated ? "curves.own.gated" : "curves.own", { name: t(`curves.${used.activation}`) }) : "";
      },
      destroy: () => chart.destroy(),
      picture: () => chart.picture(),
    };
  },
};
