// @ts-check
// The views, in the order of the navigation.

import beams from "./beams.js";
import compare from "./compare.js";
import figures from "./figures.js";
import flow from "./flow.js";
import grid from "./grid.js";
import heads from "./heads.js";
import learn from "./learn.js";
import masks from "./masks.js";
import neuron from "./neuron.js";
import positions from "./positions.js";
import predict from "./predict.js";
import tour from "./tour.js";

/** The view that a page opens with, unless its address names another. */
export const FIRST = "heads";

/** @type {import("../types.js").View[]} */
export const VIEWS = [tour, flow, heads, grid, neuron, predict, beams, masks, positions, compare, figures, learn];
