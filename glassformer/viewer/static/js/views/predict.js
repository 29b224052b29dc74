// @ts-check
// Predict: what the model says next, how it is chosen, and what happens without one of its heads.

import { fill, h, segmented } from "../dom.js";
import words from "../i18n/predict.js";
import { headKind } from "../state.js";
import { ablatePart } from "./predict_ablate.js";
import { generatePart } from "./predict_generate.js";
import { lensPart } from "./predict_lens.js";
import { nextPart } from "./predict_next.js";
import { fillPart, labelsPart } from "./predict_tasks.js";

/** @typedef {import("../types.js").Model} Model */
/** @typedef {import("./predict_parts.js").Part} Part */

/** @type {Record<string, (ctx: import("../types.js").Ctx) => Part>} */
const PARTS = { next: nextPart, generate: generatePart, fill: fillPart, labels: labelsPart, lens: lensPart, ablate: ablatePart };

/** The shared selectors that a part needs; none for the others. @type {Record<string, import("../types.js").Uses[]>} */
const USES = { generate: ["kind", "layer", "head"], ablate: ["kind", "layer"] };

/** @param {string[]} names @param {string | undefined} asked */
const chosenPart = (names, asked) => (asked !== undefined && names.includes(asked) ? asked : names[0]);

/**
 * The parts that a model has something to say in.
 * @param {Model} model
 */
export function partsOf(model) {
  const lm = headKind(model) === "lm";
  const has = (/** @type {string} */ ability) => model.abilities.includes(ability);
  const labels = has("classify") || has("tag") || has("answer");
  const parts = [];
  if (lm && model.stacks.decoder) parts.push("next", "generate");
  if (has("fill")) parts.push("fill");
  if (lm && !model.stacks.decoder) parts.push("next");
  if (labels) parts.push("labels");
  if (lm) parts.push("lens");
  if (lm || has("classify") || has("tag")) parts.push("ablate");
  return parts;
}

/**
 * @param {HTMLElement} root
 * @param {import("../types.js").Ctx} ctx
 */
function mount(root, ctx) {
  const names = partsOf(ctx.model);
  const chosen = () => chosenPart(names, ctx.setting("tab", names[0]));
  const tabs = segmented(names.map((name) => [name, ctx.t(name === "next" && !ctx.model.stacks.decoder ? "tab.here" : `tab.${name}`)]), chosen(), (value) => ctx.set({ tab: value === names[0] ? null : value }), ctx.t("title"));
  const stage = h("div", {});
  root.append(h("div", { class: "controls" }, tabs), stage);
  /** @type {Part | null} */
  let part = null;
  let shown = "";
  return {
    /** @param {import("../types.js").State} state @param {Set<string>} changed */
    update(state, changed) {
      const name = chosen();
      if (name !== shown) {
        part?.destroy?.();
        part = PARTS[name](ctx);
        shown = name;
        tabs.mark(name);
        fill(stage, part.element);
        stage.dataset.tab = name;
        part.update(state, new Set(Object.keys(state)));
      } else {
        part?.update(state, changed);
      }
    },
    destroy() {
      part?.destroy?.();
    },
    picture: () => stage,
  };
}

/** @type {import("../types.js").View} */
export default {
  id: "predict",
  words,
  uses: ["text", "kind", "layer", "head"],
  usesNow: (model, state) => USES[chosenPart(partsOf(model), state.x["predict.tab"])] ?? [],
  supports: (model) => Boolean(model && partsOf(model).length),
  mount,
};
