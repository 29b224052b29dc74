// @ts-check
// Figure: attention as a soft dictionary. The query is a point that can be moved; every key answers a little.

import { number, softmax } from "../arrays.js";
import { FONT } from "../canvas.js";
import { fill, h, s, segmented, slider } from "../dom.js";
import { bars } from "./figures_draw.js";

const KEYS = [
  { name: "apple", vector: [2, 1], value: 10 },
  { name: "banana", vector: [2, -1], value: 5 },
  { name: "chair", vector: [-2, 0.5], value: 2 },
];
/** The query "fruit": weights of 0.6 and 0.4 for the two fruits, so that the answer is 8. */
const FRUIT = [2, Math.log(1.5) / 2];
const PRESETS = /** @type {Record<string, number[]>} */ ({ fruit: FRUIT, apple: [2.2, 1.8], banana: [2.2, -1.8], chair: [-2.4, 0.4], nothing: [0, 0] });
const REACH = 2.9;
const SIZE = 330;

/**
 * What the dictionary answers.
 * @param {number[]} query
 * @param {number} sharpness
 */
export function lookUp(query, sharpness) {
  const scores = KEYS.map(({ vector }) => (query[0] * vector[0] + query[1] * vector[1]));
  const weights = softmax(scores.map((score) => score * sharpness));
  return { scores, weights, answer: KEYS.reduce((sum, { value }, i) => sum + weights[i] * value, 0) };
}

/** @type {import("./figures_types.js").Figure} */
export const dictionary = {
  id: "dictionary",
  supports: () => true,
  mount(root, ctx) {
    const { t } = ctx;
    const plane = s("svg", { viewBox: `0 0 ${SIZE} ${SIZE}`, width: SIZE, height: SIZE, class: "plane", role: "application", tabindex: 0, "aria-label": t("dictionary.plane") });
    const result = h("div", { class: "dictionary-result", role: "status" });
    const query = () => {
      const [x, y] = ctx.setting("query", "").split("_").map(Number);
      return Number.isFinite(x) && Number.isFinite(y) && ctx.setting("query", "") !== "" ? [x, y] : FRUIT;
    };
    const sharpness = () => Math.max(0, Math.min(8, Number(ctx.setting("sharp", "1")) || 0));
    const move = (/** @type {number} */ x, /** @type {number} */ y) => {
      const clamp = (/** @type {number} */ value) => Math.max(-REACH, Math.min(REACH, value));
      ctx.set({ query: `${clamp(x).toFixed(2)}_${clamp(y).toFixed(2)}` });
    };
    const preset = segmented(Object.keys(PRESETS).map((name) => [name, t(`dictionary.${name}`)]), "fruit", (name) =>
      name === "fruit" ? ctx.set({ query: null }) : move(PRESETS[name][0], PRESETS[name][1]), t("dictionary.query"));
    const sharp = slider({ label: t("dictionary.sharp"), min: 0, max: 8, step: 0.25, value: sharpness(), format: (value) => `× ${value}`, onInput: (value) => ctx.set({ sharp: value }) });
    fill(root, h("p", {}, t("dictionary.text")), h("div", { class: "controls" }, preset, sharp),
      h("div", { class: "dictionary" }, h("figure", {}, plane, h("figcaption", { class: "note" }, t("dictionary.drag"))), result),
      h("p", { class: "note" }, t("dictionary.note")));

    const xAt = (/** @type {number} */ x) => SIZE / 2 + (x / REACH) * (SIZE / 2 - 14);
    const yAt = (/** @type {number} */ y) => SIZE / 2 - (y / REACH) * (SIZE / 2 - 14);

    function drawPlane() {
      const colours = ctx.colours();
      const { weights } = lookUp(query(), sharpness());
      const arrow = (/** @type {number[]} */ [x, y], /** @type {string} */ colour, /** @type {number} */ width, /** @type {string} */ name, opacity = 1) => {
        const angle = Math.atan2(yAt(y) - yAt(0), xAt(x) - xAt(0));
        const tip = [xAt(x), yAt(y)];
        const barb = (/** @type {number} */ turn) => `L${tip[0] - 10 * Math.cos(angle + turn)} ${tip[1] - 10 * Math.sin(angle + turn)}`;
        const far = Math.hypot(x, y) > 0.05;
        return [
          far ? s("path", { d: `M${xAt(0)} ${yAt(0)}L${tip[0]} ${tip[1]}${barb(0.4)}M${tip[0]} ${tip[1]}${barb(-0.4)}`, fill: "none", stroke: colour, "stroke-width": width, "stroke-opacity": opacity, "stroke-linecap": "round" }) : null,
          s("text", { x: tip[0] + (x >= 0 ? 6 : -6), y: tip[1] + (y >= 0 ? -8 : 16), "text-anchor": x > 1.2 ? "end" : x < -1.2 ? "start" : "middle", "font-family": FONT, "font-size": 13, fill: colour, "font-weight": 600 }, name),
        ];
      };
      fill(plane,
        s("rect", { x: 0.5, y: 0.5, width: SIZE - 1, height: SIZE - 1, rx: 8, fill: colours.panel, stroke: colours.line }),
        s("line", { x1: 0, x2: SIZE, y1: yAt(0), y2: yAt(0), stroke: colours.line }), s("line", { x1: xAt(0), x2: xAt(0), y1: 0, y2: SIZE, stroke: colours.line }),
        KEYS.flatMap(({ name, vector }, i) => arrow(vector, colours.heads[i], 2 + 5 * weights[i], t(`dictionary.${name}`), 0.45 + 0.55 * weights[i])),
        arrow(query(), colours.ink, 2, ""),
        s("text", { x: xAt(query()[0]), y: yAt(query()[1]) + 24, "text-anchor": "middle", "font-family": FONT, "font-size": 12, fill: colours.ink }, t("dictionary.q")),
        s("circle", { cx: xAt(query()[0]), cy: yAt(query()[1]), r: 8, fill: colours.accent, stroke: colours.panel, "stroke-width": 2, class: "handle" }));
    }

    function drawResult() {
      const { scores, weights, answer } = lookUp(query(), sharpness());
      const names = KEYS.map(({ name }) => t(`dictionary.${name}`));
      fill(result,
        h("h3", {}, t("dictionary.scores")), bars(ctx, scores.map((value, i) => ({ name: names[i], value, shown: number(value, 2) })), { label: t("dictionary.scores"), most: 10 }),
        h("h3", {}, t("dictionary.weights")), bars(ctx, Array.from(weights, (value, i) => ({ name: names[i], value, shown: value.toFixed(3) })), { label: t("dictionary.weights"), most: 1 }),
        h("h3", {}, t("dictionary.answer")),
        h("p", { class: "arithmetic mono" }, `${KEYS.map(({ value }, i) => `${weights[i].toFixed(2)} · ${value}`).join(" + ")} = `, h("strong", { class: "dictionary-answer" }, number(answer, 2))));
    }

    let dragging = false;
    const toPlane = (/** @type {PointerEvent} */ event) => {
      const box = plane.getBoundingClientRect();
      const [x, y] = [((event.clientX - box.left) / box.width) * SIZE, ((event.clientY - box.top) / box.height) * SIZE];
      move(((x - SIZE / 2) / (SIZE / 2 - 14)) * REACH, ((SIZE / 2 - y) / (SIZE / 2 - 14)) * REACH);
    };
    plane.addEventListener("pointerdown", (event) => {
      dragging = true;
      plane.setPointerCapture(event.pointerId);
      toPlane(event);
    });
    plane.addEventListener("pointermove", (event) => dragging && toPlane(event));
    plane.addEventListener("pointerup", () => (dragging = false));
    plane.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, 0.1], ArrowDown: [0, -0.1] }[event.key];
      if (!by) return;
      event.preventDefault();
      event.stopPropagation();
      move(query()[0] + by[0], query()[1] + by[1]);
      ctx.announce(t("dictionary.say", { answer: number(lookUp(query(), sharpness()).answer, 2) }));
    });

    return {
      update() {
        const [x, y] = query();
        preset.mark(Object.keys(PRESETS).find((name) => Math.hypot(PRESETS[name][0] - x, PRESETS[name][1] - y) < 0.02) ?? "");
        sharp.set(sharpness());
        drawPlane();
        drawResult();
      },
      destroy() {},
    };
  },
};
