// @ts-check
// Prints the words of every view, and what the scripts answer for each kind of a fact; test_kinds.py passes the kinds.

import { activationOf, normOf, schemeOf, windowOf } from "../../glassformer/viewer/static/js/mechanisms.js";
import { headKind } from "../../glassformer/viewer/static/js/state.js";
import { layerBars } from "../../glassformer/viewer/static/js/views/flow_model_parts.js";
import { stepsOf } from "../../glassformer/viewer/static/js/views/flow_parts.js";
import { VIEWS } from "../../glassformer/viewer/static/js/views/index.js";
import { pairOf, sinusoidTerm } from "../../glassformer/viewer/static/js/views/positions_math.js";

/** @type {Record<string, (kind: any) => unknown>} */
const ANSWERS = {
  placement: (kind) => [stepsOf, layerBars].map((draw) => draw({ placement: kind, cross: true }, 90, 26).filter((part) => part.kind === "norm").length),
  norm: (kind) => normOf({ kind }).name,
  activation: (kind) => [-2, -0.5, 1].map(activationOf(kind).value),
  window: (kind) => windowOf({ windows: [kind] }, 0),
  scheme: (kind) => schemeOf({ kind }),
  layout: (kind) => sinusoidTerm(3, 8, kind),
  pairing: (kind) => pairOf(1, 4, kind),
  head: (kind) => headKind(/** @type {any} */ ({ facts: { head: { type: kind, task: "tag" } } })),
};

/** @param {string} fact @param {unknown} kind */
function answer(fact, kind) {
  try {
    return { answer: ANSWERS[fact](kind) };
  } catch (error) {
    return { error: /** @type {Error} */ (error).message };
  }
}

/** @type {[string, unknown][]} */
const asked = JSON.parse(process.argv[2]);
const words = Object.fromEntries(VIEWS.map((view) => [view.id, view.words]));
console.log(JSON.stringify({ words, facts: Object.keys(ANSWERS), answers: asked.map(([fact, kind]) => answer(fact, kind)) }));
