// @ts-check
// Two models as the server describes them, without what these tests do not read.

/** @typedef {import("../../glassformer/viewer/static/js/types.js").Model} Model */

const stack = { kv_heads: 4, head_dim: 8, width: 32, causal: true, cross: false, rotary: false, score_bias: null, windows: [] };

/** @type {Model} */
export const MODEL = {
  name: "small", lineage: "gpt2", family: "decoder", stacks: { decoder: { ...stack, layers: 4, heads: 4 } }, abilities: ["generate"],
  parity: null, defaults: { text: "once", text_b: null, target: null }, examples: [],
};

/** @type {Model} */
export const TRANSLATOR = {
  ...MODEL, name: "two", family: "encoder-decoder",
  stacks: { encoder: { ...stack, layers: 3, heads: 8, causal: false }, decoder: { ...stack, layers: 3, heads: 8, cross: true } },
};
