// @ts-check
// The shape of a figure. Only comments: nothing here runs.

/**
 * @typedef {object} Figure
 * @property {string} id also the key of its words: "ID.title"
 * @property {(model: import("../types.js").Model | null) => boolean} supports
 * @property {(root: HTMLElement, ctx: import("../types.js").Ctx) => FigureHandle} mount
 */

/**
 * @typedef {object} FigureHandle
 * @property {(state: import("../types.js").State, changed: Set<string>) => Promise<void> | void} update
 * @property {() => void} destroy
 * @property {() => Element} [picture] the whole figure unless given
 */

export {};
