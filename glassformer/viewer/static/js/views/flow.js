// @ts-check
// Flow: the model as a box that opens, from the whole down to the arithmetic of one token in one head.

import { Stale, explained, whileCurrent } from "../api.js";
import { debounce, fill, h, reducedMotion } from "../dom.js";
import words from "../i18n/flow.js";
import { headOf } from "../state.js";
import { visibleText } from "../tokens.js";
import { hideTip } from "../tooltip.js";
import { attentionScene } from "./flow_attention.js";
import { embedScene, headScene } from "./flow_ends.js";
import { ffnScene } from "./flow_ffn.js";
import { layerScene } from "./flow_layer.js";
import { modelScene } from "./flow_model.js";
import { LINED, OUTER, pathTo, placeOf, stackName, tokenOf } from "./flow_parts.js";
import { stackScene } from "./flow_stack.js";

/** @typedef {import("./flow_parts.js").Place} Place */
/** @typedef {import("./flow_parts.js").StackName} StackName */
/** @typedef {import("../types.js").State} State */

/**
 * What a scene is drawn from.
 * @typedef {object} Env
 * @property {import("../types.js").Ctx} ctx
 * @property {State} state
 * @property {Place} place
 * @property {any} tokens the answer to `tokens`
 * @property {any} costs the answer to `costs`, or null
 * @property {StackName} name of the stack
 * @property {any} stack
 * @property {number} token the chosen token
 * @property {string} word its text, without spaces around it
 * @property {number} head the chosen head
 * @property {number} stageWidth
 * @property {number} pictureWidth what a table beside it leaves
 * @property {boolean} narrow
 * @property {string | null} missing why some values are not there
 * @property {(name: string, params?: any, slot?: string) => Promise<any>} ask null where the answer is not to be had
 * @property {(place: Place, stack?: StackName, patch?: Partial<State>) => void} open
 * @property {(token: number, stack: StackName) => void} choose
 */

/** @type {Record<Place, (env: Env) => Promise<HTMLElement>>} */
const SCENES = {
  model: modelScene, embed: embedScene, stack: stackScene, layer: layerScene, attention: attentionScene, ffn: ffnScene, head: headScene,
};

const NARROW = 700;

/**
 * @param {HTMLElement} root
 * @param {import("../types.js").Ctx} ctx
 */
function mount(root, ctx) {
  const path = h("ol", { class: "flow-path" });
  const about = h("p", { class: "flow-about" });
  const tokens = h("div", { class: "flow-tokens", role: "radiogroup", "aria-label": ctx.t("tokenChoice") });
  const stage = h("div", { class: "flow-stage" });
  const view = h("div", { class: "flow" }, h("nav", { "aria-label": ctx.t("pathLabel") }, path), about, tokens, stage);
  root.append(view);
  /** @type {HTMLElement | null} */
  let scene = null;
  /** @type {Place | null} */
  let shown = null;
  /** @type {{key: string, costs: any}} */
  let counted = { key: "", costs: null };
  let width = 0;
  let run = 0;

  /** @param {Place} place @param {StackName} [stack] @param {Partial<State>} [patch] */
  function open(place, stack, patch = {}) {
    const state = ctx.state();
    hideTip();
    const kind = patch.kind ?? (stack && stackName(state.kind) !== stack ? stack : state.kind);
    const x = { ...state.x };
    if (place === "model") delete x["flow.at"];
    else x["flow.at"] = place;
    const same = stackName(kind) === stackName(state.kind);
    ctx.select({ ...patch, kind, x, ...(same ? { pins: state.pins } : {}) });
  }

  /** @param {number} token @param {StackName} stack */
  function choose(token, stack) {
    const state = ctx.state();
    const kind = stackName(state.kind) === stack ? state.kind : stack;
    ctx.select({ kind, pins: [token] });
  }

  /** @param {State} state */
  async function render(state) {
    const mine = ++run;
    const asking = whileCurrent(ctx, () => mine === run);
    stage.setAttribute("aria-busy", "true");
    const place = placeOf(ctx.setting("at", "model"));
    const name = stackName(state.kind);
    const stack = /** @type {any} */ (ctx.model.stacks)[name];
    /** @type {Env} */
    const env = {
      ctx: asking, state, place, tokens: {}, costs: null, name, stack, token: 0, word: "", head: headOf(state), stageWidth: stage.clientWidth || 900,
      pictureWidth: 0, narrow: (stage.clientWidth || 900) < NARROW, missing: null, open, choose,
      async ask(query, params = {}, slot = query) {
        try {
          return await asking.api(query, params, { slot, quiet: true });
        } catch (error) {
          if (error instanceof Stale || mine !== run) throw new Stale();
          env.missing = explained(error, ctx.t);
          return null;
        }
      },
    };
    env.pictureWidth = env.narrow ? env.stageWidth : env.stageWidth - 19 * 16 - 16;
    env.tokens = readable(await asking.api("tokens", {}));
    if (mine !== run) return;
    env.token = tokenOf(state, env.tokens, name, ctx.model.abilities.includes("tag"));
    env.word = env.tokens[name]?.[env.token]?.word ?? "";
    const { text, text_b: textB, target } = state;
    const account = JSON.stringify([state.model, text, textB, target]);
    env.costs = counted.key === account ? counted.costs : null;
    const next = await SCENES[place](env);
    if (mine !== run) return;
    drawPath(env);
    drawTokens(env);
    const lengths = (state.kind === "cross" ? [env.tokens.encoder, env.tokens.decoder] : [env.tokens[name]]).map((each) => each?.length ?? 0);
    const kind = place !== "model" ? "" : env.narrow ? ".narrow" : Math.max(...lengths) > LINED ? ".long" : state.kind === "cross" ? ".cross" : "";
    about.textContent = ctx.t(`about.${place}${kind}`, { token: env.word, head: env.head, layer: state.layer, most: LINED });
    change(next, place);
    stage.setAttribute("aria-busy", "false");
    stage.dataset.place = place;
    stage.dataset.token = String(env.token);
    if (counted.key === account) return;
    const costs = await env.ask("costs"); // slower than everything else, so the picture does not wait for it
    if (mine !== run) return;
    counted = { key: account, costs };
    if (costs) await render(state);
  }

  /** @param {Env} env */
  function drawPath(env) {
    const items = pathTo(env.place).map((place) => {
      const here = place === env.place;
      const text = titleOf(env, place);
      const button = h("button", { type: "button", "aria-current": here ? "location" : null, "data-place": place, onclick: () => here || open(place) }, text);
      return h("li", {}, place === "model" ? null : h("span", { class: "turn", "aria-hidden": "true" }, "›"), button);
    });
    fill(path, items);
  }

  /** @param {Env} env @param {Place} place */
  function titleOf(env, place) {
    const { state } = env;
    if (place === "model") return ctx.model.name;
    if (place === "stack") return ctx.t(env.name);
    if (place === "layer") return ctx.t("layerN", { n: state.layer });
    if (place === "attention") return ctx.t(state.kind === "cross" ? "cross" : "attention");
    if (place === "head") return ctx.t("outputHead");
    return ctx.t(place === "embed" ? "embedding" : place);
  }

  /** @param {Env} env */
  function drawTokens(env) {
    const list = env.tokens[env.name] ?? [];
    const had = tokens.contains(document.activeElement);
    const buttons = list.map((/** @type {any} */ token, /** @type {number} */ index) =>
      h(
        "button",
        {
          type: "button", role: "radio", class: `flow-token${token.special ? " special" : ""}`, "aria-checked": String(index === env.token),
          tabindex: index === env.token ? 0 : -1, "data-index": index, onclick: () => choose(index, env.name),
        },
        token.text,
      ),
    );
    fill(tokens, buttons);
    tokens.hidden = env.place === "model" && !env.narrow; // the picture has them
    if (had) buttons[env.token]?.focus();
    if (tokens.scrollHeight > tokens.clientHeight) buttons[env.token]?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  tokens.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const count = tokens.children.length;
    const at = Number(/** @type {HTMLElement} */ (tokens.querySelector('[aria-checked="true"]'))?.dataset.index ?? 0);
    choose((at + step + count) % count, stackName(ctx.state().kind));
  });

  /**
   * Put a scene in place of the one before, as if a box opened or closed.
   * @param {HTMLElement} next
   * @param {Place} place
   */
  function change(next, place) {
    const before = scene;
    const from = shown;
    stage.classList.toggle("narrow", stage.clientWidth < NARROW);
    view.classList.toggle("flow-narrow", stage.clientWidth < NARROW);
    const focused = before?.contains(document.activeElement) ? document.activeElement : null;
    const focusKey = focused instanceof Element ? focusName(focused) : null;
    scene = next;
    shown = place;
    if (!before || from === place || from === null) {
      fill(stage, next);
      if (focusKey) /** @type {HTMLElement | null} */ (next.querySelector(focusKey))?.focus({ preventScroll: true });
      return;
    }
    const inward = pathTo(place).length > pathTo(from).length;
    const key = boxKey(inward ? place : from);
    const opened = inward ? boxRect(before, key) : null;
    fill(stage, next);
    const rect = opened ?? boxRect(next, key);
    if (rect && !reducedMotion()) zoom(next, before, rect, inward);
    ctx.announce(ctx.t(`about.${place}`, { token: "", head: headOf(ctx.state()), layer: ctx.state().layer }));
    if (focused) {
      const target = inward ? null : next.querySelector(`[data-box="${key}"]`);
      if (target instanceof SVGElement) target.focus({ preventScroll: true });
      else /** @type {HTMLElement | null} */ (path.querySelector("[aria-current]"))?.focus({ preventScroll: true });
    }
  }

  /** Which box a place opens from. @param {Place} place */
  function boxKey(place) {
    const state = ctx.state();
    if (place === "stack") return `stack-${stackName(state.kind)}`;
    if (place === "layer") return `layer-${state.layer}`;
    if (place === "attention") return state.kind === "cross" ? "cross" : "attention";
    return place;
  }

  /**
   * Where a box is, seen from the stage.
   * @param {HTMLElement} inside
   * @param {string} key
   */
  function boxRect(inside, key) {
    const element = inside.querySelector(`[data-box="${key}"]`);
    if (!element) return null;
    const outer = stage.getBoundingClientRect();
    const inner = element.getBoundingClientRect();
    if (!inner.width) return null;
    return { left: inner.left - outer.left, top: inner.top - outer.top, width: inner.width, height: inner.height };
  }

  /**
   * @param {HTMLElement} next
   * @param {HTMLElement} before
   * @param {{left: number, top: number, width: number, height: number}} rect
   * @param {boolean} inward
   */
  function zoom(next, before, rect, inward) {
    const scale = Math.max(0.05, rect.width / Math.max(1, stage.clientWidth));
    const small = `translate(${rect.left}px, ${rect.top}px) scale(${scale})`;
    const large = `translate(${-rect.left / scale}px, ${-rect.top / scale}px) scale(${1 / scale})`;
    const options = { duration: 420, easing: "cubic-bezier(0.25, 0.8, 0.3, 1)" };
    before.classList.add("flow-leaving");
    stage.append(before);
    const leave = before.animate([{ transform: "none", opacity: 1 }, { transform: inward ? large : small, opacity: 0 }], options);
    next.animate([{ transform: inward ? small : large, opacity: 0 }, { transform: "none", opacity: 1 }], options);
    const remove = () => before.remove();
    leave.addEventListener("finish", remove);
    leave.addEventListener("cancel", remove);
  }

  view.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" && event.key !== "Backspace") return;
    const place = placeOf(ctx.setting("at", "model"));
    const outer = OUTER[place];
    if (!outer) return;
    event.preventDefault();
    open(outer);
  });

  const resized = debounce(() => {
    if (Math.abs(stage.clientWidth - width) < 12) return;
    width = stage.clientWidth;
    void render(ctx.state());
  }, 120);
  const observer = new ResizeObserver(resized);
  observer.observe(stage);

  return {
    /** @param {State} state */
    update(state) {
      width = stage.clientWidth;
      void render(state);
    },
    destroy() {
      run += 1;
      observer.disconnect();
    },
    picture: () => {
      const svg = scene?.querySelector(":scope > .flow-picture > svg");
      if (svg instanceof SVGSVGElement) return svg;
      view.classList.add("flow-whole"); // tables in full while the picture is taken
      requestAnimationFrame(() => view.classList.remove("flow-whole"));
      return scene ?? stage;
    },
  };
}

/**
 * Tokens with what cannot be seen in them made visible.
 * @param {any} tokens
 */
function readable(tokens) {
  /** @type {any} */
  const shown = {};
  for (const name of ["encoder", "decoder"]) {
    if (tokens[name]) shown[name] = tokens[name].map((/** @type {any} */ token) => ({ ...token, text: visibleText(token.text), word: visibleText(token.text.trim() || token.text) }));
  }
  return { ...shown, expected: tokens.expected };
}

/**
 * A selector that finds the same element after drawing again.
 * @param {Element} element
 */
function focusName(element) {
  for (const name of ["data-box", "data-token", "data-key", "data-vector", "data-neuron"]) {
    const value = element.getAttribute(name);
    if (value !== null) return `[${name}="${CSS.escape(value)}"]`;
  }
  return null;
}

/** @type {import("../types.js").View} */
export default {
  id: "flow",
  words,
  uses: ["text", "kind", "layer", "head"],
  supports: (model) => Boolean(model?.stacks.encoder || model?.stacks.decoder),
  mount,
};
