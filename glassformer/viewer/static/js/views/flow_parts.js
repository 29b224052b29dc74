// @ts-check
// What Flow draws, from the facts of the model alone: the boxes that open, their order, and what each costs.

import { normOf, placementOf } from "../mechanisms.js";
import { defaultToken } from "../tokens.js";

/** @typedef {import("../types.js").Model} Model */
/** @typedef {import("../types.js").State} State */
/** @typedef {"model" | "embed" | "stack" | "layer" | "attention" | "ffn" | "head"} Place */
/** @typedef {"attention" | "cross" | "ffn"} Sublayer */
/** @typedef {"encoder" | "decoder"} StackName */

/** @type {Place[]} */
export const PLACES = ["model", "embed", "stack", "layer", "attention", "ffn", "head"];

/** Tokens up to which values of all of them are asked for at once: an exported page then holds one answer for each. */
export const WHOLE = 64;

/** Queries and keys up to which the picture of the model has lines: those of the small pictures of all heads, unreduced. */
export const LINED = 48;

/** The box around each box. @type {Record<Place, Place | null>} */
export const OUTER = {
  model: null, embed: "model", stack: "model", layer: "stack", attention: "layer", ffn: "layer", head: "model",
};

/**
 * @param {string} text
 * @returns {Place}
 */
export function placeOf(text) {
  return PLACES.includes(/** @type {Place} */ (text)) ? /** @type {Place} */ (text) : "model";
}

/**
 * From the whole model to a box.
 * @param {Place} place
 */
export function pathTo(place) {
  /** @type {Place[]} */
  const path = [];
  for (let at = /** @type {Place | null} */ (place); at; at = OUTER[at]) path.unshift(at);
  return path;
}

/**
 * The stack that a kind of attention belongs to.
 * @param {import("../types.js").Kind} kind
 * @returns {StackName}
 */
export function stackName(kind) {
  return kind === "encoder" ? "encoder" : "decoder";
}

/**
 * The stacks of a model, in the order in which they run.
 * @param {Model} model
 * @returns {StackName[]}
 */
export function stacksOf(model) {
  return /** @type {StackName[]} */ (["encoder", "decoder"]).filter((name) => model.stacks[name]);
}

/**
 * The sublayers of each layer, in their order.
 * @param {any} stack
 * @returns {Sublayer[]}
 */
export function sublayersOf(stack) {
  return stack.cross ? ["attention", "cross", "ffn"] : ["attention", "ffn"];
}

/**
 * The parts of one layer, in their order: the sublayers, and the convolution beside the first layer of some encoders.
 * @param {any} stack
 * @param {number} layer
 * @returns {(Sublayer | "convolution")[]}
 */
export function partsOf(stack, layer) {
  return stack.convolution && layer === 0 ? [...sublayersOf(stack), "convolution"] : sublayersOf(stack);
}

/**
 * Which set of weights a layer uses: neighbours share one where there are fewer sets than layers.
 * @param {any} stack
 * @param {number} layer
 */
export function blockOf(stack, layer) {
  return Math.floor((layer * (stack.unique_layers ?? stack.layers)) / stack.layers);
}

/**
 * Layers that share one set of weights.
 * @param {any} stack
 * @returns {{block: number, first: number, last: number}[]}
 */
export function weightGroups(stack) {
  /** @type {{block: number, first: number, last: number}[]} */
  const groups = [];
  for (let layer = 0; layer < stack.layers; layer++) {
    const block = blockOf(stack, layer);
    const group = groups.at(-1);
    if (group && group.block === block) group.last = layer;
    else groups.push({ block, first: layer, last: layer });
  }
  return groups;
}

/**
 * One step of a layer, as it is drawn: a norm, a sublayer, or the sum with the residual stream.
 * @typedef {object} Step
 * @property {"norm" | "sublayer" | "add"} kind
 * @property {Sublayer} of the sublayer that it belongs to
 * @property {boolean} onStream whether it acts on the residual stream itself and not on a branch
 * @property {boolean} parallel whether it stands beside the other sublayers
 */

/**
 * The steps of a layer by the placement of its norms.
 * @param {any} stack
 * @returns {Step[]}
 */
export function stepsOf(stack) {
  const sublayers = sublayersOf(stack);
  const { parallel, onStream: normsOnStream, shared } = placementOf(stack);
  /** @type {Step[]} */
  const steps = [];
  /** @param {Step["kind"]} kind @param {Sublayer} of @param {boolean} onStream */
  const add = (kind, of, onStream) => steps.push({ kind, of, onStream, parallel });
  if (parallel) {
    for (const of of sublayers) {
      if (!shared || of === sublayers[0]) add("norm", of, false);
    }
    for (const of of sublayers) add("sublayer", of, false);
    add("add", sublayers[sublayers.length - 1], true);
    return steps;
  }
  for (const of of sublayers) {
    if (!normsOnStream) add("norm", of, false);
    add("sublayer", of, false);
    add("add", of, true);
    if (normsOnStream) add("norm", of, true);
  }
  return steps;
}

/**
 * The key head that a query head uses.
 * @param {any} stack
 * @param {number} head
 */
export function keyHead(stack, head) {
  return Math.floor((head * stack.kv_heads) / stack.heads);
}

/**
 * The query heads that share a key head with a head, itself included.
 * @param {any} stack
 * @param {number} head
 */
export function sharers(stack, head) {
  const mine = keyHead(stack, head);
  return Array.from({ length: stack.heads }, (_, other) => other).filter((other) => keyHead(stack, other) === mine);
}

/**
 * The norm's short name.
 * @param {Model} model
 */
export function normName(model) {
  return normOf(model.norm).name;
}

/**
 * What a part costs; null where the account has no such part.
 * @typedef {{parameters: number, bytes: number, flops: number}} Cost
 */

/** @type {WeakMap<object, Map<string, Cost>>} */
const accounts = new WeakMap();

/**
 * The parts of an account by their paths; the whole model has the path "".
 * @param {any} costs the answer to `costs`
 */
function account(costs) {
  const known = accounts.get(costs);
  if (known) return known;
  /** @type {Map<string, Cost>} */
  const parts = new Map();
  const size = costs.parameters ? costs.bytes.weights / costs.parameters : 4; // bytes of a parameter
  const visit = (/** @type {any} */ part) => {
    parts.set(part.path, { parameters: part.parameters, bytes: part.parameters * size, flops: part.flops });
    part.parts.forEach(visit);
  };
  visit(costs.parts);
  accounts.set(costs, parts);
  return parts;
}

/**
 * @param {any} costs the answer to `costs`, or null
 * @param {string} path
 * @returns {Cost | null}
 */
export function costOf(costs, path) {
  return (costs && account(costs).get(path)) ?? null;
}

/**
 * The cost of one run of a part of a layer. Layers that share weights are one part that runs several times.
 * @param {any} costs
 * @param {any} stack
 * @param {StackName} name
 * @param {number} layer
 * @param {string} [inner] such as "attention.q"
 */
export function layerCost(costs, stack, name, layer, inner = "") {
  const block = blockOf(stack, layer);
  const cost = costOf(costs, `${name}.blocks.${block}${inner ? `.${inner}` : ""}`);
  if (!cost) return null;
  const runs = Array.from({ length: stack.layers }, (_, other) => blockOf(stack, other)).filter((b) => b === block);
  return { ...cost, flops: cost.flops / Math.max(1, runs.length) };
}

const THOUSANDS = [
  [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"],
];

/**
 * A large number in short: 1.05 M.
 * @param {number} value
 * @param {string} [unit]
 */
export function short(value, unit = "") {
  for (const [size, letter] of /** @type {[number, string][]} */ (THOUSANDS)) {
    if (Math.abs(value) < size * 0.9995) continue;
    const scaled = value / size;
    const digits = scaled < 10 ? 2 : scaled < 100 ? 1 : 0;
    return `${scaled.toFixed(digits)} ${letter}${unit}`;
  }
  return unit ? `${Math.round(value)} ${unit}` : String(Math.round(value));
}

/**
 * With separators: 1,048,576.
 * @param {number} value
 */
export function full(value) {
  return Math.round(value).toString().replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

/**
 * The token that Flow follows: the last pinned one, else that of all views.
 * @param {State} state
 * @param {{encoder?: any[], decoder?: any[], expected?: any[]}} tokens
 * @param {StackName} name
 * @param {boolean} tags whether the model tags words
 */
export function tokenOf(state, tokens, name, tags) {
  const own = tokens[name] ?? [];
  const pinned = state.pins.at(-1);
  if (pinned !== undefined && pinned < own.length) return pinned;
  return defaultToken(own.map(({ word, special }) => ({ text: word, special })), name, tokens.expected, tags);
}

/**
 * The tokens around the chosen one that fit into a number of places.
 * @param {number} count
 * @param {number} chosen
 * @param {number} places
 * @returns {{first: number, last: number}} `last` is the one after
 */
export function around(count, chosen, places) {
  if (count <= places) return { first: 0, last: count };
  const first = Math.max(0, Math.min(count - places, chosen - Math.floor(places / 2)));
  return { first, last: first + places };
}

/**
 * The largest absolute finite value, at least a tiny one.
 * @param {...ArrayLike<number>} vectors
 */
export function reach(...vectors) {
  let most = 1e-9;
  for (const values of vectors) {
    for (let i = 0; i < values.length; i++) {
      const size = Math.abs(values[i]);
      if (size > most && Number.isFinite(size)) most = size;
    }
  }
  return most;
}

/**
 * A reach for colours that single large values do not spoil: the 98th percentile of sizes.
 * @param {ArrayLike<number>} values
 */
export function softReach(values) {
  const sizes = Array.from(values, (value) => Math.abs(value)).filter(Number.isFinite).sort((a, b) => a - b);
  if (!sizes.length) return 1;
  return Math.max(1e-9, sizes[Math.min(sizes.length - 1, Math.floor(sizes.length * 0.98))]);
}
