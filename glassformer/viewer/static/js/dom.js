// @ts-check
// Elements from plain values. Text always enters the page as text nodes, so a token such as "<img>" stays text.

const SVG = "http://www.w3.org/2000/svg";

/** @typedef {Node | string | number | null | undefined | false} Child */
/** @typedef {Record<string, any>} Attributes */

/**
 * @param {Element} element
 * @param {Attributes} attributes
 */
export function setAttributes(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) {
      if (value) element.addEventListener(name.slice(2).toLowerCase(), value);
    } else if (name === "style") {
      // Through the object model: a strict content policy refuses the attribute.
      const style = /** @type {HTMLElement} */ (element).style;
      for (const [key, part] of Object.entries(value)) style.setProperty(key, String(part));
    } else if (name === "value" || name === "checked" || name === "selected" || name === "disabled") {
      /** @type {any} */ (element)[name] = value;
    } else if (value === false || value === null || value === undefined) {
      element.removeAttribute(name);
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
}

/**
 * @param {Node} parent
 * @param {(Child | Child[])[]} children
 */
export function append(parent, ...children) {
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    parent.appendChild(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/**
 * An HTML element: `h("button", {class: "quiet", onclick: run}, "Run")`.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Attributes} [attributes]
 * @param {...(Child | Child[])} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  const { value, ...others } = attributes;
  setAttributes(element, others);
  append(element, ...children);
  if (value !== undefined) /** @type {any} */ (element).value = value; // after the options of a select
  return element;
}

/**
 * An SVG element: `s("line", {x1: 0, y1: 0, x2: 10, y2: 5, stroke: "currentColor"})`.
 * @template {keyof SVGElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Attributes} [attributes]
 * @param {...(Child | Child[])} children
 * @returns {SVGElementTagNameMap[Tag]}
 */
export function s(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  setAttributes(element, attributes);
  append(element, ...children);
  return element;
}

/**
 * Replace everything inside an element.
 * @param {Element} element
 * @param {...(Child | Child[])} children
 */
export function fill(element, ...children) {
  element.replaceChildren();
  append(element, ...children);
}

let counter = 0;
/** An id that no other element has. */
export function uniqueId(prefix = "id") {
  counter += 1;
  return `${prefix}-${counter}`;
}

/**
 * A labelled control: the label is a real <label>.
 * @param {string} text
 * @param {HTMLElement} control
 * @param {string} [kind] an extra class
 */
export function field(text, control, kind = "") {
  control.id ||= uniqueId("field");
  return h("div", { class: `field ${kind}`.trim() }, h("label", { for: control.id }, text), control);
}

/**
 * @param {[string, string][]} options value and text
 * @param {string} chosen
 * @param {(value: string) => void} onChange
 * @param {Attributes} [attributes]
 */
export function choice(options, chosen, onChange, attributes = {}) {
  const select = h(
    "select",
    attributes,
    options.map(([value, text]) => h("option", { value, selected: value === chosen }, text)),
  );
  select.addEventListener("change", () => onChange(select.value));
  return select;
}

/**
 * A row of buttons of which one is pressed; arrow keys move between them.
 * @param {[string, string][]} options value and text
 * @param {string} chosen
 * @param {(value: string) => void} onChange
 * @param {string} label
 */
export function segmented(options, chosen, onChange, label) {
  const group = h("div", { class: "segmented", role: "radiogroup", "aria-label": label });
  const buttons = options.map(([value, text]) =>
    h(
      "button",
      {
        type: "button",
        role: "radio",
        "data-value": value,
        "aria-checked": String(value === chosen),
        tabindex: value === chosen ? 0 : -1,
        onclick: () => press(value, false),
      },
      text,
    ),
  );
  /** @param {string} value @param {boolean} focus */
  function press(value, focus) {
    mark(value, focus);
    onChange(value);
  }
  /** @param {string} value @param {boolean} [focus] */
  function mark(value, focus = false) {
    for (const button of buttons) {
      const on = button.dataset.value === value;
      button.setAttribute("aria-checked", String(on));
      button.tabIndex = on ? 0 : -1;
      if (on && focus) button.focus();
    }
  }
  group.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const at = buttons.findIndex((button) => button.getAttribute("aria-checked") === "true");
    const next = options[(at + step + options.length) % options.length];
    if (next) press(next[0], true);
  });
  append(group, buttons);
  return Object.assign(group, { mark });
}

/**
 * A slider with its value beside it.
 * @param {object} options
 * @param {string} options.label
 * @param {number} options.min
 * @param {number} options.max
 * @param {number} options.step
 * @param {number} options.value
 * @param {(value: number) => string} [options.format]
 * @param {(value: number) => void} options.onInput
 */
export function slider({ label, min, max, step, value, format = String, onInput }) {
  const output = h("output", { class: "number" }, format(value));
  const input = h("input", { type: "range", min, max, step, "aria-valuetext": format(value) });
  input.value = String(value);
  input.addEventListener("input", () => {
    show(Number(input.value));
    onInput(Number(input.value));
  });
  /** @param {number} shown */
  function show(shown) {
    output.textContent = format(shown);
    input.setAttribute("aria-valuetext", format(shown));
  }
  /** @param {number} next */
  function set(next) {
    input.value = String(next);
    show(next);
  }
  const element = field(label, input, "slider");
  element.appendChild(output);
  return Object.assign(element, { set, input });
}

/**
 * Whether moving things should be avoided.
 */
export function reducedMotion() {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}

/**
 * Call a function once the calls stop coming for a while; `cancel` forgets the call that waits.
 * @template {any[]} Args
 * @param {(...args: Args) => void} call
 * @param {number} milliseconds
 */
export function debounce(call, milliseconds) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const later = (/** @type {Args} */ ...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...args), milliseconds);
  };
  return Object.assign(later, { cancel: () => clearTimeout(timer) });
}

/**
 * Call a function at most once per frame, with the last arguments.
 * @template {any[]} Args
 * @param {(...args: Args) => void} call
 */
export function eachFrame(call) {
  /** @type {Args | null} */
  let waiting = null;
  return (/** @type {Args} */ ...args) => {
    if (!waiting) {
      requestAnimationFrame(() => {
        const last = /** @type {Args} */ (waiting);
        waiting = null;
        call(...last);
      });
    }
    waiting = args;
  };
}
