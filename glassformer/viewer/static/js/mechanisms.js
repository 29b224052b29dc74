// @ts-check
// The mechanisms that the page can draw, compute and name. One that is not in its table is an error that says where to
// add it, so that no picture shows another mechanism instead. viewer/mechanisms.py gives them their names.

/**
 * The entry of a table.
 * @template T
 * @param {Record<string, T>} table
 * @param {unknown} kind
 * @param {string} what
 * @param {string} where
 * @returns {T}
 */
export function entry(table, kind, what, where) {
  if (typeof kind === "string" && Object.hasOwn(table, kind)) return table[kind];
  throw new Error(`the page does not know the ${what} "${kind}"; add it to ${where}, and its words to i18n/.`);
}

const HERE = "viewer/static/js/mechanisms.js";

/**
 * Where a layer has its norms.
 * @typedef {object} Placement
 * @property {boolean} parallel whether all sublayers read the stream at once
 * @property {boolean} onStream whether norms act on the stream, after each sum, and not on what a sublayer reads
 * @property {boolean} shared whether all sublayers read the first norm
 * @property {(norm: string) => string} formula
 */

/** @type {Record<string, Placement>} */
const PLACEMENTS = {
  pre: { parallel: false, onStream: false, shared: false, formula: (norm) => `x ← x + f(${norm}(x))` },
  post: { parallel: false, onStream: true, shared: false, formula: (norm) => `x ← ${norm}(x + f(x))` },
  parallel: { parallel: true, onStream: false, shared: true, formula: (norm) => `x ← x + Σ f(${norm}(x))` },
  parallel_norms: { parallel: true, onStream: false, shared: false, formula: (norm) => `x ← x + Σ f(${norm}ᵢ(x))` },
};

/** Where a stack has its norms. @param {any} stack of the query `model` */
export const placementOf = (stack) => entry(PLACEMENTS, stack.placement, "placement of norms", `PLACEMENTS in ${HERE}`);

/** @type {Record<string, {name: string, centred: boolean}>} centred: whether the mean is subtracted */
const NORMS = { layer: { name: "LayerNorm", centred: true }, rms: { name: "RMSNorm", centred: false } };

/** A kind of norm. @param {{kind: string}} norm */
export const normOf = (norm) => entry(NORMS, norm.kind, "norm", `NORMS in ${HERE}`);

/** @type {Record<string, {name: string, value: (x: number) => number}>} */
const ACTIVATIONS = {
  relu: { name: "ReLU", value: (x) => Math.max(0, x) },
  gelu: { name: "GELU", value: (x) => 0.5 * x * (1 + erf(x / Math.SQRT2)) },
  gelu_tanh: { name: "GELU (tanh)", value: (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))) },
  silu: { name: "SiLU", value: (x) => x / (1 + Math.exp(-x)) },
  tanh: { name: "tanh", value: (x) => Math.tanh(x) },
};

/** The names of all activations in the facts of a model. */
export const ACTIVATION_KINDS = Object.keys(ACTIVATIONS);

/** An activation: the usual way to write it, and its value at a number. @param {string} kind */
export const activationOf = (kind) => entry(ACTIVATIONS, kind, "activation", `ACTIVATIONS in ${HERE}`);

/**
 * The error function, within 1.2e-7 (Numerical Recipes' erfc by Chebyshev fitting).
 * @param {number} x
 */
export function erf(x) {
  const z = Math.abs(x);
  const t = 1 / (1 + z / 2);
  const terms = [
    -1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398, 1.48851587, -0.82215223,
    0.17087277,
  ];
  let sum = 0;
  for (let i = terms.length - 1; i >= 0; i--) sum = sum * t + terms[i];
  const complement = t * Math.exp(-z * z + sum);
  return x >= 0 ? 1 - complement : complement - 1;
}

/** @type {Record<string, string>} */
const WINDOWS = { "block-sparse": "block-sparse" };

/**
 * What limits the attention of a layer: nothing (null), a window of tokens, or another pattern.
 * @param {any} stack of the query `model`
 * @param {number} layer
 * @returns {string | null} the key of its words
 */
export function windowOf(stack, layer) {
  const window = stack.windows?.[layer] ?? null;
  if (window === null) return null;
  return typeof window === "number" ? "window" : entry(WINDOWS, window, "window", `WINDOWS in ${HERE}`);
}

/** @type {Record<string, "waves" | "table" | "rotation" | "biases" | "vectors">} */
const SCHEMES = { sinusoidal: "waves", learned: "table", rotary: "rotation", buckets: "biases", alibi: "biases", disentangled: "vectors" };

/** How a scheme of positions is drawn. @param {{kind: string}} scheme of the query `positions` */
export const schemeOf = (scheme) => entry(SCHEMES, scheme.kind, "scheme of positions", `SCHEMES in ${HERE}`);
