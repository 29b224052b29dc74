// @ts-check
// The frame around the views: header, inputs, navigation, shared selectors, footer.

import { choice, debounce, field, fill, h, segmented, uniqueId } from "./dom.js";
import { allHeads, headOf, kindsOf, stackOf } from "./state.js";
import { colours } from "./colour.js";

/** @typedef {import("./types.js").State} State */
/** @typedef {import("./types.js").Model} Model */
/** @typedef {import("./types.js").View} View */
/** @typedef {(key: string, values?: Record<string, string | number>) => string} Say */

/**
 * @typedef {object} Frame
 * @property {Say} t
 * @property {Model | null} model
 * @property {{name: string}[]} models
 * @property {import("./types.js").Page} page
 * @property {View[]} views
 * @property {(view: View) => string} titleOf
 * @property {(view: View) => string} aboutOf
 * @property {() => State} state
 * @property {(patch: Partial<State>) => void} select
 * @property {(type: "svg" | "png") => void} save
 * @property {() => void} copyLink
 * @property {(text: string) => void} notify show a sentence for a while, and speak it
 * @property {{full: number, top: number} | null} approximate how an exported page has shortened its weights
 */

/** Two panes of glass. */
function mark() {
  return h("span", { class: "mark", "aria-hidden": "true" }, h("span"), h("span"));
}

/** @param {Frame} frame */
function badge({ t, model, notify }) {
  if (!model?.lineage) return null;
  const { parity } = model;
  const explained = (/** @type {string} */ title) => ({ type: "button", title, onclick: () => notify(title) });
  if (!parity) return h("button", { class: "badge unmeasured", ...explained(t("parity.none.title")) }, t("parity.none"));
  const size = (/** @type {number} */ value) => (value === 0 ? "0" : value.toExponential(1));
  const title = t("parity.title", { cases: parity.cases, bound: size(parity.bound) });
  const tick = h("span", { class: "tick", "aria-hidden": "true" }, "✓");
  return h("button", { class: "badge", ...explained(title), "aria-label": `${t("parity.good", { error: size(parity.error) })}. ${title}` },
    tick, t("parity.good", { error: size(parity.error) }));
}

/** @param {Frame} frame */
function modelFacts({ t, model }) {
  if (!model) return "";
  const { encoder, decoder } = model.stacks;
  const one = decoder ?? encoder;
  if (!one) return "";
  const layers = encoder && decoder ? `${encoder.layers} + ${decoder.layers}` : one.layers;
  const sizes = t("facts", { layers, heads: one.heads });
  return one.width ? `${sizes} · ${t("facts.width", { width: one.width })}` : sizes; // plain weights have no width
}

/** @param {Frame} frame */
export function header(frame) {
  const { t, model, models, state, select } = frame;
  const family = model ? t(`family.${model.family.replace("-", "_")}`) : "";
  const kind = model ? [model.lineage, family].filter(Boolean).join(" · ") : "";
  const name =
    models.length > 1
      ? choice(models.map((one, i) => [String(i), one.name]), String(state().model),
          (value) => select({ model: Number(value) }), { "aria-label": t("model"), class: "model-choice" })
      : h("span", { class: "model-name" }, model?.name ?? models[0]?.name ?? "");
  return h("header", { class: "top" },
    h("div", { class: "brand" }, mark(), h("span", { class: "brand-name" }, t("app"))),
    h("div", { class: "model-line" }, name,
      h("span", { class: "model-kind" }, kind), h("span", { class: "model-facts number" }, modelFacts(frame)), badge(frame)),
    h("div", { class: "preferences" },
      segmented([["en", "EN"], ["zh", "中文"]], state().lang,
        (value) => select({ lang: value === "zh" ? "zh" : "en" }), t("language")),
      segmented([["auto", t("theme.auto")], ["light", t("theme.light")], ["dark", t("theme.dark")]], state().theme,
        (value) => select({ theme: /** @type {State["theme"]} */ (value) }), t("theme"))));
}

/**
 * The texts that the reader types.
 * @param {Frame} frame
 */
export function inputs(frame) {
  const { t, model, page, state, select } = frame;
  const form = h("form", { class: "inputs", onsubmit: (/** @type {Event} */ event) => event.preventDefault() });
  if (!model) return { element: form, update() {}, showTokens() {} };
  const pair = model.pairs;
  const both = Boolean(model.stacks.encoder && model.stacks.decoder);
  const fixed = page.mode === "file";
  /** @type {{key: "text" | "text_b" | "target", area: HTMLTextAreaElement}[]} */
  const areas = [];

  /**
   * @param {"text" | "text_b" | "target"} key
   * @param {string} label
   * @param {string} hint
   */
  function area(key, label, hint) {
    const element = h("textarea", { rows: 1, spellcheck: "false", placeholder: hint, name: key, readonly: fixed, dir: "auto" });
    element.value = state()[key] ?? "";
    const send = () => select({ [key]: element.value });
    const later = debounce(send, 450);
    element.addEventListener("input", () => {
      grow(element);
      later();
    });
    element.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      later.cancel(); // the field may be drawn anew before then, with another text
      send();
    });
    areas.push({ key, area: element });
    return field(label, element, "text");
  }

  const count = h("span", { class: "token-count number" });
  form.appendChild(area("text", both ? t("text.source") : pair ? t("text.first") : t("text"), ""));
  if (pair && !(fixed && !state().text_b)) form.appendChild(area("text_b", t("text.second"), t("text.second.hint")));
  if (both) form.appendChild(area("target", t("target"), t("target.hint")));
  if (model.examples.length && !fixed) {
    /** @type {[string, string][]} */
    const options = [["", t("examples.pick")], ...model.examples.map((text, i) => /** @type {[string, string]} */ ([String(i), text]))];
    const picker = choice(options, "", (value) => {
      if (value) select({ text: model.examples[Number(value)], text_b: null, target: null });
      picker.value = "";
    });
    form.appendChild(field(t("examples"), picker, "examples"));
  }
  form.appendChild(count);
  if (fixed) {
    const shortened = frame.approximate ? ` ${t("file.approximate", frame.approximate)}` : "";
    form.appendChild(h("p", { class: "note" }, t("file.note"), shortened));
  }

  return {
    element: form,
    /** @param {State} now */
    update(now) {
      for (const { key, area: element } of areas) {
        const value = now[key] ?? "";
        if (document.activeElement !== element && element.value !== value) element.value = value;
        grow(element);
      }
    },
    /** @param {{encoder?: import("./types.js").Token[], decoder?: import("./types.js").Token[], target?: string} | null} tokens null: none are known */
    showTokens(tokens) {
      const { encoder, decoder, target: text } = tokens ?? { decoder: [] };
      const length = (encoder ?? decoder ?? []).length;
      if (!tokens) count.textContent = "";
      else if (encoder && decoder) count.textContent = t("tokens.both", { source: encoder.length, target: decoder.length });
      else count.textContent = t(length === 1 ? "tokens.one" : "tokens.count", { count: length });
      const target = areas.find(({ key }) => key === "target");
      if (target && decoder && !target.area.value) {
        const written = text ?? decoder.filter((token) => !token.special).map((token) => token.text).join("");
        target.area.placeholder = written || t("target.hint");
        const label = form.querySelector(`label[for="${target.area.id}"]`);
        if (label) label.textContent = written ? `${t("target")} · ${t("target.generated")}` : t("target");
      }
    },
  };
}

/** @param {HTMLTextAreaElement} area */
function grow(area) {
  area.style.height = "auto";
  if (area.scrollHeight) area.style.height = `${Math.min(area.scrollHeight + 2, 160)}px`;
}

/** @param {Frame} frame */
export function navigation({ t, views, titleOf, aboutOf, state, select }) {
  const list = h("ul");
  const buttons = views.map((view) => {
    const button = h("button", { type: "button", "data-view": view.id, title: aboutOf(view), onclick: () => select({ view: view.id }) }, titleOf(view));
    list.appendChild(h("li", {}, button));
    return button;
  });
  const element = h("nav", { class: "views", "aria-label": t("views") }, list);
  return {
    element,
    update() {
      const { view } = state();
      for (const button of buttons) {
        if (button.dataset.view === view) {
          button.setAttribute("aria-current", "page");
          if (list.scrollWidth > list.clientWidth) {
            list.scrollLeft = button.offsetLeft - (list.clientWidth - button.offsetWidth) / 2;
          }
        } else button.removeAttribute("aria-current");
      }
    },
  };
}

/**
 * A choice with a button on either side.
 * @param {object} options
 * @param {string} options.label
 * @param {string} options.previous
 * @param {string} options.next
 * @param {number} options.count
 * @param {number} options.value
 * @param {(value: number) => void} options.onChange
 * @param {string} options.name
 */
export function stepper({ label, previous, next, count, value, onChange, name }) {
  const go = (/** @type {number} */ to) => onChange((to + count) % count);
  const select = choice(
    Array.from({ length: count }, (_, i) => [String(i), String(i)]), String(value), (chosen) => onChange(Number(chosen)),
    { name, class: "number" },
  );
  select.id = uniqueId(name);
  return h("div", { class: "stepper" },
    h("label", { for: select.id }, label),
    h("span", { class: "stepper-box" },
      h("button", { type: "button", "aria-label": previous, title: previous, onclick: () => go(value - 1) }, "‹"),
      select,
      h("button", { type: "button", "aria-label": next, title: next, onclick: () => go(value + 1) }, "›")));
}

/**
 * One swatch for each head. Click: on or off; double click: only this one, and again: all.
 * @param {Frame} frame
 */
export function headSwatches({ t, model, state, select }) {
  const { kind, heads } = state();
  const all = allHeads(model, kind);
  const palette = colours().heads;
  let before = heads;
  const group = h("div", { class: "swatches", role: "group", "aria-label": t("heads"), title: t("heads.hint") });
  const only = (/** @type {number} */ head, /** @type {number[]} */ from) =>
    select({ heads: from.length === 1 && from[0] === head ? all : [head] });
  const buttons = all.map((head) =>
    h("button", {
      type: "button", class: "swatch", "data-head": head, "aria-pressed": String(heads.includes(head)),
      "aria-label": `${t("head")} ${head}`, style: { "--head": palette[head % palette.length] },
      onclick: (/** @type {MouseEvent} */ event) => {
        const now = state().heads;
        if (event.detail <= 1) before = now;
        select({ heads: now.includes(head) ? now.filter((one) => one !== head) : [...now, head] });
      },
      ondblclick: () => only(head, before),
      onkeydown: (/** @type {KeyboardEvent} */ event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (step) buttons[(head + step + all.length) % all.length].focus();
        else if (event.key === "o") only(head, state().heads);
        else return;
        event.preventDefault();
        event.stopPropagation();
      },
    }, String(head)));
  fill(group, buttons);
  return {
    element: h("div", { class: "field heads-field" }, h("span", { class: "label" }, t("heads")), group,
      h("button", { type: "button", class: "quiet small", onclick: () => select({ heads: all }) }, t("heads.all"))),
    update() {
      const now = state().heads;
      for (const [head, button] of buttons.entries()) button.setAttribute("aria-pressed", String(now.includes(head)));
    },
  };
}

/**
 * The selectors that a view uses, and the buttons that save it.
 * @param {Frame} frame
 * @param {View} view
 */
export function selectors(frame, view) {
  const { t, model, state, select, save, copyLink } = frame;
  const choices = h("div", { class: "choices" });
  const tools = h("div", { class: "tools no-print" },
    location.protocol !== "about:" && h("button", { type: "button", class: "quiet", onclick: copyLink }, t("link")),
    h("span", { class: "tool-pair", role: "group", "aria-label": t("save") },
      h("button", { type: "button", class: "quiet", "data-save": "svg", "aria-label": t("save.svg.long"), title: t("save.svg.long"), onclick: () => save("svg") }, t("save.svg")),
      h("button", { type: "button", class: "quiet", "data-save": "png", "aria-label": t("save.png.long"), title: t("save.png.long"), onclick: () => save("png") }, t("save.png"))));
  const element = h("div", { class: "bar" }, choices, tools);
  /** @type {ReturnType<typeof headSwatches> | null} */
  let swatches = null;
  let drawn = "";

  function update() {
    const now = state();
    const stack = stackOf(model, now.kind);
    const uses = new Set((model && view.usesNow?.(model, now)) ?? view.uses);
    const single = uses.has("head");
    const wanted = JSON.stringify([[...uses], now.kind, now.layer, single ? headOf(now) : null, now.ablate]);
    if (wanted === drawn) {
      swatches?.update();
      return;
    }
    drawn = wanted;
    const focused = document.activeElement;
    const back = choices.contains(focused) ? focusKey(/** @type {Element} */ (focused)) : null;
    fill(choices);
    const kinds = kindsOf(model);
    if (uses.has("kind") && kinds.length > 1) {
      choices.appendChild(h("div", { class: "field" }, h("span", { class: "label" }, t("kind")),
        segmented(kinds.map((kind) => [kind, t(`kind.${kind}`)]), now.kind, (kind) => select({ kind: /** @type {any} */ (kind) }), t("kind"))));
    }
    if (uses.has("layer") && stack) {
      choices.appendChild(stepper({
        name: "layer", label: t("layer"), previous: t("layer.previous"), next: t("layer.next"),
        count: stack.layers, value: now.layer, onChange: (layer) => select({ layer }),
      }));
    }
    if (single && stack) {
      choices.appendChild(stepper({
        name: "head", label: t("head"), previous: t("head.previous"), next: t("head.next"),
        count: stack.heads, value: headOf(now), onChange: (head) => select({ heads: [head] }),
      }));
    }
    swatches = uses.has("heads") && stack ? headSwatches(frame) : null;
    if (swatches) choices.appendChild(swatches.element);
    if (now.ablate.length) {
      choices.appendChild(h("div", { class: "field ablated" }, h("span", {}, t("ablated", { count: now.ablate.length })),
        h("button", { type: "button", class: "quiet small", onclick: () => select({ ablate: [] }) }, t("ablated.clear"))));
    }
    if (back) /** @type {HTMLElement | null} */ (choices.querySelector(back))?.focus();
  }
  return { element, update };
}

/**
 * How to find the same control again after it was drawn anew.
 * @param {Element} element
 */
function focusKey(element) {
  const label = element.getAttribute("aria-label");
  const name = element.getAttribute("name");
  const value = element.getAttribute("data-value");
  if (name) return `[name="${CSS.escape(name)}"]`;
  if (label) return `[aria-label="${CSS.escape(label)}"]`;
  return value ? `[data-value="${CSS.escape(value)}"]` : null;
}

/** @param {Frame} frame */
export function footer({ t }) {
  return h("footer", { class: "foot" },
    h("p", { class: "honest" }, t("honest")), h("p", {}, `${t("offline")} ${t("keys")}`));
}
