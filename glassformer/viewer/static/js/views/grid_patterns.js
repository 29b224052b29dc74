// @ts-check
// Which heads follow which pattern.

import { at } from "../arrays.js";

/**
 * How much more than chance a share must be to name a head, and to frame it: of what an even spread of the weight over
 * all visible tokens leaves. With few tokens, an even spread alone puts much weight on any pattern.
 */
export const NAMED = 0.3;
export const FRAMED = 0.5;
/** Nearly every head spreads some weight, so evenness has a name only when most of the weight is spread evenly. */
export const EVEN = 0.7;

/**
 * @typedef {object} Stats
 * @property {string[]} patterns
 * @property {import("../arrays.js").Nd} values (layers, heads, patterns): shares of the weight
 * @property {import("../arrays.js").Nd} even (layers, patterns): the shares of a head that attends evenly
 */
/** @typedef {{pattern: string, share: number, excess: number}} Mark a pattern of a head, and how far it is above chance */

/**
 * How much a head follows a pattern.
 * @param {Stats} stats
 * @param {number} layer
 * @param {number} head
 * @param {string} pattern
 * @returns {Mark}
 */
export function markOf({ patterns, values, even }, layer, head, pattern) {
  const index = patterns.indexOf(pattern);
  const share = at(values, layer, head).data[index];
  const chance = at(even, layer).data[index];
  return { pattern, share, excess: chance < 1 ? (share - chance) / (1 - chance) : 0 };
}

/**
 * The pattern that a head follows, if it clearly follows one; evenness only if no other does.
 * @param {Stats} stats
 * @param {number} layer
 * @param {number} head
 * @returns {Mark | null}
 */
export function strongest(stats, layer, head) {
  const marks = stats.patterns.filter((pattern) => pattern !== "broad").map((pattern) => markOf(stats, layer, head, pattern));
  const best = marks.filter(({ excess }) => excess >= NAMED).sort((a, b) => b.excess - a.excess)[0];
  if (best || !stats.patterns.includes("broad")) return best ?? null;
  const broad = markOf(stats, layer, head, "broad");
  return broad.share >= EVEN ? broad : null;
}

/** Whether a head has a frame for a pattern. @param {Mark} mark */
export const isFramed = ({ pattern, share, excess }) => (pattern === "broad" ? share >= EVEN : excess >= FRAMED);

/**
 * All heads, by how much they follow a pattern.
 * @param {Stats} stats
 * @param {string} pattern
 * @returns {{layer: number, head: number, share: number}[]}
 */
export function ranked({ patterns, values }, pattern) {
  const index = patterns.indexOf(pattern);
  const [layers, heads] = values.shape;
  const found = [];
  for (let layer = 0; layer < layers; layer++) {
    for (let head = 0; head < heads; head++) found.push({ layer, head, share: index < 0 ? 0 : at(values, layer, head).data[index] });
  }
  return found.sort((a, b) => b.share - a.share || a.layer - b.layer || a.head - b.head);
}
