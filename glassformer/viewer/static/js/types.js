// @ts-check
// The shapes of everything that passes between the page and its views. Only comments: nothing here runs.

/**
 * Which attention: self-attention of the encoder, of the decoder, or from decoder to encoder.
 * @typedef {"encoder" | "decoder" | "cross"} Kind
 */

/**
 * What the reader has chosen. The address of the page holds all of it.
 * @typedef {object} State
 * @property {string} view id of the view
 * @property {number} model index in `ctx.models`
 * @property {string} text
 * @property {string | null} text_b second sentence of a pair
 * @property {string | null} target text of the decoder; null: the model generates it
 * @property {Kind} kind
 * @property {number} layer counted from 0, as the layers run
 * @property {number[]} heads chosen heads, ascending; never empty where the model has heads
 * @property {number[]} pins pinned query tokens, in the order they were pinned
 * @property {[string, number, number][]} ablate heads switched off: ["decoder.attention", layer, head]
 * @property {"en" | "zh"} lang
 * @property {"auto" | "light" | "dark"} theme
 * @property {Record<string, string>} x settings of single views: "heads.mode" → "sum"
 */

/**
 * One stack, as the query `model` describes it. More keys than these: see the query.
 * @typedef {object} Stack
 * @property {number} layers
 * @property {number} heads
 * @property {number} kv_heads
 * @property {number} head_dim
 * @property {number} width null for plain attention weights, which few views show
 * @property {boolean} causal
 * @property {boolean} cross
 * @property {boolean} rotary
 * @property {string | null} [qk_norm] kind of the norm of each head's queries and keys
 * @property {string | null} score_bias
 * @property {(null | number | string)[]} windows
 */

/**
 * The answer to the query `model`. Views may read further keys: `model.facts`, `model.parts`.
 * @typedef {object} Model
 * @property {string} name
 * @property {string | null} lineage
 * @property {string} family
 * @property {boolean} pairs whether it reads two texts as one
 * @property {{encoder?: Stack, decoder?: Stack}} stacks
 * @property {string[]} abilities
 * @property {{bound: number, error: number, cases: number} | null} parity
 * @property {{text: string, text_b: string | null, target: string | null}} defaults
 * @property {string[]} examples
 * @property {any} [facts]
 * @property {any} [parts]
 * @property {any} [norm]
 * @property {any} [vocab]
 * @property {any} [longest]
 * @property {any} [labels]
 * @property {any} [languages]
 */

/**
 * @typedef {object} Token
 * @property {number} id
 * @property {string} text
 * @property {boolean} special
 * @property {number} segment
 * @property {string} [writes] in cross-attention: the text of the token that this position predicts
 * @property {boolean} [writesSpecial] whether that is a special token
 */

/**
 * Colours of the present theme. Functions return [red, green, blue], 0 to 255.
 * @typedef {object} Colours
 * @property {boolean} dark
 * @property {string} paper background of the page
 * @property {string} panel background of a panel
 * @property {string} ink text
 * @property {string} muted secondary text
 * @property {string} line borders
 * @property {string} accent
 * @property {string} accentSoft
 * @property {string} positive
 * @property {string} negative
 * @property {string} masked a position that attention may not see
 * @property {string[]} heads twelve colours; head h has `heads[h % 12]`
 * @property {(share: number) => [number, number, number]} sequential 0 to 1
 * @property {(share: number) => [number, number, number]} diverging −1 to 1
 */

/**
 * How a call behaves. Calls of one view with the same slot replace each other: only the last is answered.
 * The slot is the name of the query unless given.
 * @typedef {{slot?: string, quiet?: boolean}} CallOptions
 */

/**
 * What kind of page this is.
 * @typedef {object} Page
 * @property {"server" | "file"} mode a file holds the answers to some questions and can ask no others
 * @property {boolean} runs whether folders of training runs are shown
 * @property {number} models how many models
 */

/**
 * What a view gets.
 * @typedef {object} Ctx
 * @property {Model} model
 * @property {{name: string}[]} models
 * @property {(key: string, values?: Record<string, string | number>) => string} t words of the view, then of the page
 * @property {(name: string, params?: Record<string, any>, options?: CallOptions) => Promise<any>} api adds model and input;
 *   `params.model` and the keys of `params.input` override those of the state
 * @property {() => State} state
 * @property {(patch: Partial<State>) => void} select
 * @property {(key: string, fallback: string) => string} setting the view's own setting from the address
 * @property {(patch: Record<string, string | number | boolean | null>) => void} set change own settings; null forgets one
 * @property {() => Colours} colours
 * @property {(text: string) => void} announce speak to screen readers
 * @property {(text: string | null) => void} fail show text in the page's error line; null hides it
 * @property {"en" | "zh"} lang
 * @property {Page} page
 */

/**
 * A mounted view.
 * @typedef {object} Handle
 * @property {(state: State, changed: Set<string>) => void} update after mounting (changed has every key) and after each change
 * @property {() => void} destroy
 * @property {() => (SVGElement | HTMLCanvasElement | Element)} [picture] what the buttons SVG and PNG save; the whole
 *   view unless given. An HTML element is drawn box by box into an SVG.
 */

/** @typedef {"kind" | "layer" | "head" | "heads" | "text"} Uses */

/**
 * @typedef {object} View
 * @property {string} id
 * @property {{en: Record<string, string>, zh: Record<string, string>}} words needs `title` (in the navigation) and `about`
 * @property {Uses[]} uses which shared selectors the page shows
 * @property {(model: Model, state: State) => Uses[]} [usesNow] which of them are of use in this state; all unless given
 * @property {(model: Model | null, page: Page) => boolean} supports
 * @property {(root: HTMLElement, ctx: Ctx) => Handle} mount
 */

/** @type {Kind[]} */
export const KINDS = ["encoder", "decoder", "cross"];
