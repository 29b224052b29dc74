// @ts-check
// Starts the page: reads what it was given, asks for the model, draws the frame and mounts the chosen view.

import { ApiError, Stale, createClient, embeddedTransport, explained, serverTransport } from "./api.js";
import { colours } from "./colour.js";
import { fill, h } from "./dom.js";
import { savePicture } from "./exporting.js";
import { createFailures } from "./failures.js";
import { PAGE, preferred, translator } from "./i18n.js";
import { footer, header, inputs, navigation, selectors } from "./layout.js";
import { allHeads, baseState, createStore, emptyState, format, headOf, normalise, parse, stackOf } from "./state.js";
import { applyTheme, onSystemTheme } from "./theme.js";
import { hideTip } from "./tooltip.js";
import { FIRST, VIEWS } from "./views/index.js";

/** @typedef {import("./types.js").State} State */
/** @typedef {import("./types.js").Model} Model */
/** @typedef {import("./types.js").View} View */

/** What the Python side has written into the page. */
function readBootstrap() {
  const script = document.getElementById("bootstrap");
  return script?.textContent ? JSON.parse(script.textContent) : {};
}

const bootstrap = readBootstrap();
/** @type {{name: string}[]} */
const models = (bootstrap.models ?? []).map((/** @type {any} */ model) => (typeof model === "string" ? { name: model } : model));
/** @type {import("./types.js").Page} */
const page = { mode: bootstrap.mode === "file" ? "file" : "server", runs: Boolean(bootstrap.runs?.length), models: models.length };
const asked = fromAddress();
const lang = asked.lang ?? preferred(navigator.languages ?? []);

/** The state that the Python side asks for: `glassformer view --text …`, or an exported choice. @returns {Partial<State>} */
function givenState() {
  return { ...(bootstrap.state ?? {}) };
}

/** What the address asks for. A file holds the answers of the whole model: in it no head can be switched off. @returns {Partial<State>} */
function fromAddress() {
  const wanted = { ...givenState(), ...parse(location.hash) };
  if (page.mode === "file") delete wanted.ablate;
  return wanted;
}

const held = { queries: bootstrap.queries ?? {}, answers: bootstrap.answers ?? {} };
const client = createClient(page.mode === "file" ? embeddedTransport(held) : serverTransport());
const pageCalls = client.scope();
const store = createStore({ ...emptyState(), lang });

const app = /** @type {HTMLElement} */ (document.getElementById("app"));
const live = h("div", { class: "visually-hidden", "aria-live": "polite", role: "status" });
const errorText = h("span", { class: "error-text" });
const errorLine = h("div", { class: "error", role: "alert", hidden: true }, errorText);
const notice = h("div", { class: "notice no-print", "aria-hidden": "true", hidden: true }); // what announce speaks, for the eye
const NOTICE_MS = 8000;
/** @type {ReturnType<typeof setTimeout> | undefined} */
let noticeTimer;
const busyLine = h("div", { class: "busy", "aria-hidden": "true" });

/** @type {Model | null} */
let model = null;
/** @type {{view: View, handle: import("./types.js").Handle, calls: ReturnType<typeof client.scope>} | null} */
let mounted = null;
/** @type {{inputs: ReturnType<typeof inputs>, navigation: ReturnType<typeof navigation>, selectors: ReturnType<typeof selectors> | null, bar: HTMLElement, main: HTMLElement} | null} */
let parts = null;
let pending = 0;
const REFUSED = ["long", "beyond", "empty"]; // codes of errors about the text itself
let refused = false;

/** @param {string} text */
function announce(text) {
  live.textContent = "";
  requestAnimationFrame(() => (live.textContent = text));
}

/** Say it to everyone: a line at the foot of the window, and the same to screen readers. @param {string} text */
function notify(text) {
  announce(text);
  notice.textContent = text;
  notice.hidden = false;
  clearTimeout(noticeTimer);
  noticeTimer = setTimeout(() => (notice.hidden = true), NOTICE_MS);
}

/** @param {string | null} text @param {boolean} [hint] what to do next, rather than what went wrong */
function fail(text, hint = false) {
  errorLine.hidden = !text;
  errorLine.classList.toggle("hint", hint);
  errorText.textContent = text ?? "";
}

const failures = createFailures((error) => fail(error && explained(error, sayFor(null)), error instanceof ApiError && error.code === "empty"));

/** Dim what a view still shows of an earlier text while the present one is refused. */
function showRefusal() {
  const stale = refused && Boolean(mounted?.view.uses.includes("text"));
  parts?.main.classList.toggle("refused", stale);
  const section = /** @type {HTMLElement | null | undefined} */ (parts?.main.querySelector("section.view"));
  if (section) section.inert = stale;
}

/** @param {number} by */
function busy(by) {
  pending += by;
  document.body.dataset.busy = String(pending);
}

/**
 * Ask in the name of the page or of a view.
 * @param {ReturnType<typeof client.scope>} calls
 * @param {string} name
 * @param {Record<string, any>} params
 * @param {import("./types.js").CallOptions} options
 */
async function ask(calls, name, params = {}, options = {}) {
  const state = store.get();
  const { model: other, input, ...rest } = params;
  const { text, text_b, target, ablate } = state;
  const body = { model: other ?? state.model, input: { text, text_b, target, ablate, ...input }, ...rest };
  const slot = options.slot ?? name;
  const call = `${calls === pageCalls ? "page" : "view"} ${slot}`;
  busy(1);
  try {
    const answer = await calls.ask(name, body, slot);
    failures.remove(call);
    return answer;
  } catch (error) {
    if (error instanceof ApiError && !options.quiet) failures.add(call, error);
    throw error;
  } finally {
    busy(-1);
  }
}

/** @param {View | null} view */
const sayFor = (view) => (view ? translator(store.get().lang, view.words, PAGE) : translator(store.get().lang, PAGE));

/** @param {Partial<State>} patch */
function select(patch) {
  const before = store.get();
  const next = { ...before, ...patch };
  const texts = /** @type {const} */ (["text", "text_b", "target", "model"]);
  if (!patch.pins && texts.some((key) => (next[key] ?? "") !== (before[key] ?? ""))) next.pins = [];
  if (next.kind !== before.kind) {
    if (!patch.pins) next.pins = [];
    const full = before.heads.length === (stackOf(model, before.kind)?.heads ?? 0);
    if (!patch.heads && full) next.heads = allHeads(model, next.kind);
  }
  if (next.model !== before.model) {
    void open(next.model, { lang: next.lang, theme: next.theme, view: next.view, text: next.text });
    return;
  }
  store.set(normalise(next, model));
}

/** @param {State} state @param {boolean} push */
function writeAddress(state, push) {
  const base = { ...baseState(model, ""), lang: preferred(navigator.languages ?? []), ...givenState() };
  const hash = format(state, base);
  if (hash === location.hash) return;
  try {
    history[push ? "pushState" : "replaceState"](null, "", hash);
  } catch {
    // A page inside a frame may have no address of its own; the state then lives as long as the page.
  }
}

/** @param {View} view */
function contextOf(view, /** @type {ReturnType<typeof client.scope>} */ calls) {
  const t = sayFor(view);
  return {
    model: /** @type {Model} */ (model),
    models,
    page,
    t,
    lang: store.get().lang,
    api: (/** @type {string} */ name, /** @type {any} */ params, /** @type {any} */ options) => ask(calls, name, params, options),
    state: () => store.get(),
    select,
    setting: (/** @type {string} */ key, /** @type {string} */ fallback) => store.get().x[`${view.id}.${key}`] ?? fallback,
    set(/** @type {Record<string, string | number | boolean | null>} */ patch) {
      const x = { ...store.get().x };
      for (const [key, value] of Object.entries(patch)) {
        if (value === null) delete x[`${view.id}.${key}`];
        else x[`${view.id}.${key}`] = String(value);
      }
      select({ x });
    },
    colours,
    announce,
    fail,
  };
}

function unmount() {
  hideTip();
  mounted?.calls.close();
  mounted?.handle.destroy();
  mounted = null;
}

/** Mount the view that the state names. */
function mount() {
  if (!parts) return;
  unmount();
  failures.clear();
  fail(null);
  const state = store.get();
  const views = shownViews();
  const view = views.find(({ id }) => id === state.view);
  if (!view) {
    fill(parts.main, h("p", { class: "empty" }, sayFor(null)("nothing")));
    return;
  }
  const t = sayFor(view);
  const calls = client.scope();
  const root = h("section", { class: `view view-${view.id}`, "aria-label": t("title") });
  parts.inputs.element.hidden = !view.uses.includes("text");
  parts.selectors = selectors(frame(), view);
  fill(parts.bar, parts.selectors.element);
  fill(parts.main, h("div", { class: "view-head" }, h("h1", {}, t("title")), h("p", { class: "about" }, t("about"))), root);
  parts.selectors.update();
  const handle = view.mount(root, contextOf(view, calls));
  mounted = { view, handle, calls };
  document.title = `${t("title")} – ${model?.name ?? t("app")}`;
  handle.update(state, new Set(Object.keys(state)));
  showRefusal();
}

function shownViews() {
  return VIEWS.filter((view) => (bootstrap.views?.includes(view.id) ?? true) && view.supports(model, page));
}

/** @param {string | undefined} wanted */
function viewFor(wanted) {
  const views = shownViews();
  const find = (/** @type {string | undefined} */ id) => views.find((view) => view.id === id);
  return (find(wanted) ?? find(FIRST) ?? views[0])?.id ?? "";
}

/** @param {"svg" | "png"} type */
async function save(type) {
  if (!mounted || !parts) return;
  const { view, handle } = mounted;
  const picture = handle.picture?.() ?? /** @type {Element} */ (parts.main.querySelector("section.view"));
  const name = `glassformer-${view.id}`;
  try {
    await savePicture(picture, type, name);
    notify(sayFor(view)("saved", { name: `${name}.${type}` }));
  } catch (error) {
    fail(error instanceof Error ? error.message : String(error));
  }
}

async function copyLink() {
  try {
    await navigator.clipboard.writeText(location.href);
    notify(sayFor(null)(page.mode === "file" ? "link.done.file" : "link.done", { model: model?.name ?? "MODEL" }));
  } catch {
    fail(location.href); // where the clipboard is closed to us, the reader can copy it from here
  }
}

/** @returns {import("./layout.js").Frame} */
function frame() {
  return {
    approximate: bootstrap.note?.approximate ? { full: bootstrap.note.heads?.length ?? 0, top: bootstrap.note.top ?? 16 } : null,
    t: sayFor(null), model, models, page, views: shownViews(), titleOf: (view) => sayFor(view)("title"), aboutOf: (view) => sayFor(view)("about"),
    state: () => store.get(), select, save: (type) => void save(type), copyLink: () => void copyLink(), notify,
  };
}

/** Draw everything around the view. */
function drawFrame() {
  const around = frame();
  document.documentElement.lang = store.get().lang === "zh" ? "zh-CN" : "en";
  const bar = h("div", { class: "bar-slot" });
  const main = h("main", { id: "view", tabindex: -1 });
  parts = { inputs: inputs(around), navigation: navigation(around), selectors: null, bar, main };
  const close = h("button", { type: "button", class: "quiet small", "aria-label": around.t("error.close"), onclick: () => { failures.clear(); fail(null); } }, "×");
  fill(errorLine, errorText, close);
  fill(app,
    h("a", { class: "skip", href: "#view", onclick: (/** @type {Event} */ event) => { event.preventDefault(); main.focus(); } }, around.t("skip")),
    header(around), parts.inputs.element, parts.navigation.element, busyLine, errorLine, bar, main, footer(around), live, notice);
  parts.inputs.update(store.get());
  parts.navigation.update();
}

async function countTokens() {
  if (!model) return;
  try {
    const tokens = await ask(pageCalls, "tokens", {}, { slot: "count" });
    refused = false;
    parts?.inputs.showTokens(tokens);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    refused = REFUSED.includes(error.code ?? "");
    if (refused) parts?.inputs.showTokens(null); // the count of another text
  }
  showRefusal();
}

/** @param {State} state @param {Set<string>} changed */
function onChange(state, changed) {
  if (!model && models.length) return;
  if (["text", "text_b", "target", "ablate"].some((key) => changed.has(key))) failures.clear();
  writeAddress(state, changed.has("view"));
  if (changed.has("theme")) applyTheme(state.theme);
  if (changed.has("lang") || changed.has("model")) {
    drawFrame();
    mount();
    void countTokens();
    return;
  }
  parts?.inputs.update(state);
  parts?.navigation.update();
  if (["text", "text_b", "target"].some((key) => changed.has(key))) void countTokens();
  if (changed.has("view") || changed.has("theme")) mount();
  else {
    parts?.selectors?.update();
    mounted?.handle.update(state, changed);
  }
}

/**
 * Show a model.
 * @param {number} index
 * @param {Partial<State>} wanted
 */
async function open(index, wanted) {
  if (models.length) model = await ask(pageCalls, "model", { model: index, input: {} });
  const view = viewFor(wanted.view);
  const state = { ...baseState(model, view), lang, ...wanted, model: index, view };
  applyTheme(state.theme);
  const before = store.get();
  store.set(normalise(state, model));
  if (store.get() === before || before.model === index) {
    drawFrame();
    mount();
    void countTokens();
  }
}

/**
 * Show the first model, or why there is none: the frame needs one.
 * @param {number} index
 * @param {Partial<State>} wanted
 */
function start(index, wanted) {
  open(index, wanted).catch((error) => {
    const reason = explained(error, translator(lang, PAGE));
    fill(app, h("p", { class: "error", role: "alert" }, translator(lang, PAGE)("error.start", { reason })));
  });
}

/** @param {KeyboardEvent} event */
function onKey(event) {
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) return;
  const state = store.get();
  const stack = stackOf(model, state.kind);
  if (!stack) return;
  const turn = (/** @type {number} */ at, /** @type {number} */ by, /** @type {number} */ count) => (at + by + count) % count;
  const t = sayFor(null);
  if (event.key === "[" || event.key === "]") {
    const layer = turn(state.layer, event.key === "]" ? 1 : -1, stack.layers);
    select({ layer });
    announce(`${t("layer")} ${layer}`);
  } else if (event.key === "{" || event.key === "}") {
    const first = state.heads.length === stack.heads && stack.heads > 1 ? (event.key === "}" ? -1 : 0) : headOf(state);
    const head = turn(first, event.key === "}" ? 1 : -1, stack.heads);
    select({ heads: [head] });
    announce(`${t("head")} ${head}`);
  }
}

addEventListener("unhandledrejection", (event) => {
  // Already shown in the error line, or of no interest to anyone.
  if (event.reason instanceof ApiError || event.reason instanceof Stale) event.preventDefault();
  else fail(event.reason instanceof Error ? event.reason.message : String(event.reason));
});
addEventListener("error", (event) => {
  // Not an error: sizes that changed while they were observed are reported in the next frame.
  if (event.message === "ResizeObserver loop completed with undelivered notifications.") event.preventDefault();
  else fail(event.message);
});
addEventListener("keydown", onKey);
addEventListener("hashchange", () => {
  const wanted = { lang: preferred(navigator.languages ?? []), ...fromAddress() };
  const index = wanted.model ?? 0;
  failures.remove("page model"); // that of the address before
  if (models.length && !model) start(index, wanted);
  else if (index !== store.get().model) void open(index, wanted); // its own heads, layers and text
  else store.set(normalise({ ...baseState(model, viewFor(undefined)), ...wanted, model: index }, model));
});
onSystemTheme(() => mount());
store.subscribe(onChange);
busy(0);
start(asked.model ?? 0, asked);
