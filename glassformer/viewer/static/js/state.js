// @ts-check
// The one selection that all views share, and its form in the address: "#view=heads&layer=3&heads=0.2&x.heads.mode=sum".

/** @typedef {import("./types.js").State} State */
/** @typedef {import("./types.js").Model} Model */
/** @typedef {import("./types.js").Kind} Kind */

/** @returns {State} */
export function emptyState() {
  return {
    view: "", model: 0, text: "", text_b: null, target: null, kind: "decoder", layer: 0, heads: [], pins: [],
    ablate: [], lang: "en", theme: "auto", x: {},
  };
}

/** @param {string} text */
const integers = (text) => text.split(".").filter((part) => /^\d{1,6}$/.test(part)).map(Number);

/**
 * What an address asks for. Anything that makes no sense is left out.
 * @param {string} hash with or without "#"
 * @returns {Partial<State>}
 */
export function parse(hash) {
  /** @type {Partial<State>} */
  const state = {};
  /** @type {Record<string, string>} */
  const own = {};
  for (const [key, value] of new URLSearchParams(hash.replace(/^#/, ""))) {
    if (key === "view") state.view = value;
    else if (key === "text" || key === "text_b" || key === "target") state[key] = value;
    else if (key === "kind" && ["encoder", "decoder", "cross"].includes(value)) state.kind = /** @type {Kind} */ (value);
    else if ((key === "layer" || key === "model") && /^\d{1,4}$/.test(value)) state[key] = Number(value);
    else if (key === "heads" || key === "pins") state[key] = integers(value);
    else if (key === "ablate") state.ablate = parseAblated(value);
    else if (key === "lang" && (value === "en" || value === "zh")) state.lang = value;
    else if (key === "theme" && (value === "auto" || value === "light" || value === "dark")) state.theme = value;
    else if (/^x\.\w+\.\w+$/.test(key)) own[key.slice(2)] = value;
  }
  if (Object.keys(own).length) state.x = own;
  return state;
}

/**
 * "decoder.attention-3-0~decoder.cross-1-2"
 * @param {string} text
 * @returns {[string, number, number][]}
 */
function parseAblated(text) {
  /** @type {[string, number, number][]} */
  const found = [];
  for (const part of text.split("~")) {
    const match = /^(encoder\.attention|decoder\.attention|decoder\.cross)-(\d{1,4})-(\d{1,4})$/.exec(part);
    if (match) found.push([match[1], Number(match[2]), Number(match[3])]);
  }
  return found;
}

/**
 * The address of a state: only what differs from the state that would be shown anyway.
 * @param {State} state
 * @param {State} base
 */
export function format(state, base) {
  const out = new URLSearchParams();
  out.set("view", state.view);
  for (const key of /** @type {const} */ (["model", "text", "kind", "layer", "lang", "theme"])) {
    if (state[key] !== base[key]) out.set(key, String(state[key]));
  }
  for (const key of /** @type {const} */ (["text_b", "target"])) {
    if (state[key] !== base[key]) out.set(key, state[key] ?? "");
  }
  for (const key of /** @type {const} */ (["heads", "pins"])) {
    if (String(state[key]) !== String(base[key])) out.set(key, state[key].join("."));
  }
  if (state.ablate.length) out.set("ablate", state.ablate.map((head) => head.join("-")).join("~"));
  for (const key of Object.keys(state.x).sort()) out.set(`x.${key}`, state.x[key]);
  return `#${out}`;
}

/**
 * The kinds of attention that a model has.
 * @param {Model | null} model
 * @returns {Kind[]}
 */
export function kindsOf(model) {
  /** @type {Kind[]} */
  const kinds = [];
  if (model?.stacks.encoder) kinds.push("encoder");
  if (model?.stacks.decoder) kinds.push("decoder");
  if (model?.stacks.decoder?.cross) kinds.push("cross");
  return kinds;
}

/**
 * The stack whose layers and heads a kind counts.
 * @param {Model | null} model
 * @param {Kind} kind
 */
export function stackOf(model, kind) {
  return kind === "encoder" ? model?.stacks.encoder : model?.stacks.decoder;
}

/**
 * What the output head is for.
 * @param {Model} model
 */
export function headKind(model) {
  const type = model.facts?.head?.type;
  if (type === undefined) return "none";
  if (type === "LMHead" || type === "PretrainingHead") return "lm";
  if (type === "TaskHead") return model.facts.head.task;
  if (type === "EmbeddingHead") return "embedding";
  throw new Error(`the page does not know the head "${type}"; add it to headKind in viewer/static/js/state.js.`);
}

/**
 * The facts of the head that makes logits of the last vector; null where there is none.
 * @param {Model} model
 * @returns {{transform: string | null, scale: number, bias: boolean, tied: boolean} | null}
 */
export const lmOf = (model) => (headKind(model) === "lm" ? model.facts.head.lm ?? model.facts.head : null);

/**
 * The name of a kind's sublayer in `ablate` and in traces.
 * @param {Kind} kind
 */
export function sublayerOf(kind) {
  return { encoder: "encoder.attention", decoder: "decoder.attention", cross: "decoder.cross" }[kind];
}

/**
 * What a model shows when nothing has been chosen.
 * @param {Model | null} model
 * @param {string} view
 * @returns {State}
 */
export function baseState(model, view) {
  const state = emptyState();
  state.view = view;
  if (!model) return state;
  const kinds = kindsOf(model);
  state.kind = kinds.includes("cross") ? "cross" : kinds[0] ?? "decoder"; // which word came from where
  state.text = model.defaults.text;
  state.text_b = model.defaults.text_b;
  state.target = model.defaults.target;
  state.heads = allHeads(model, state.kind);
  return state;
}

/**
 * @param {Model | null} model
 * @param {Kind} kind
 */
export function allHeads(model, kind) {
  return Array.from({ length: stackOf(model, kind)?.heads ?? 0 }, (_, head) => head);
}

/**
 * A state that the model can show: a kind it has, a layer it has, heads it has.
 * @param {State} state
 * @param {Model | null} model
 * @returns {State}
 */
export function normalise(state, model) {
  const kinds = kindsOf(model);
  const kind = kinds.includes(state.kind) ? state.kind : kinds[0] ?? state.kind;
  const stack = stackOf(model, kind);
  const layer = Math.max(0, Math.min(state.layer, (stack?.layers ?? 1) - 1));
  let heads = [...new Set(state.heads)].filter((head) => head < (stack?.heads ?? 0)).sort((a, b) => a - b);
  if (!heads.length) heads = allHeads(model, kind);
  const textB = state.text_b === "" ? null : state.text_b;
  const target = state.target === "" ? null : state.target;
  return { ...state, kind, layer, heads, text_b: textB, target, pins: [...new Set(state.pins)] };
}

/**
 * The one head that a view for a single head shows.
 * @param {State} state
 */
export function headOf(state) {
  return state.heads[0] ?? 0;
}

/**
 * Which keys of two states differ.
 * @param {State} before
 * @param {State} after
 * @returns {Set<string>}
 */
export function differences(before, after) {
  const changed = new Set();
  for (const key of /** @type {(keyof State)[]} */ (Object.keys(after))) {
    if (JSON.stringify(before[key]) !== JSON.stringify(after[key])) changed.add(key);
  }
  return changed;
}

/**
 * Holds the state and tells listeners which keys changed.
 * @param {State} initial
 */
export function createStore(initial) {
  let state = initial;
  /** @type {Set<(state: State, changed: Set<string>) => void>} */
  const listeners = new Set();
  return {
    get: () => state,
    /** @param {State} next */
    set(next) {
      const changed = differences(state, next);
      if (!changed.size) return;
      state = next;
      for (const listener of [...listeners]) listener(state, changed);
    },
    /** @param {(state: State, changed: Set<string>) => void} listener */
    subscribe(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}
