// @ts-check
// Tour: a walk through the model stop by stop, each with a small live drawing of this model's own numbers.

import { whileCurrent } from "../api.js";
import { fill, h } from "../dom.js";
import words from "../i18n/tour.js";
import { headOf } from "../state.js";
import { defaultToken } from "../tokens.js";
import { tokenChips } from "./figures_draw.js";
import { drawMap } from "./tour_map.js";
import { stackOfStop, STOPS, stopsOf } from "./tour_stops.js";

/** @type {import("../types.js").View} */
export default {
  id: "tour",
  words,
  uses: ["text", "layer", "head"],
  supports: (model) => Boolean(model?.facts && (model.stacks.encoder || model.stacks.decoder)),
  mount(root, ctx) {
    const { t } = ctx;
    const stops = stopsOf(ctx.model);
    let turn = 0;
    let moved = false;
    const list = h("ol", { class: "tour-stops" });
    const map = h("div", { class: "tour-side no-picture" });
    const title = h("h2", { tabindex: -1 });
    const count = h("p", { class: "label" });
    const story = h("div", { class: "tour-story" });
    const tokens = h("div", { class: "no-picture" });
    const stage = h("div", { class: "tour-stage" });
    const back = h("button", { type: "button", class: "quiet", "data-go": "back", onclick: () => step(-1) }, `← ${t("back")}`);
    const next = h("button", { type: "button", class: "primary", "data-go": "next", onclick: () => step(1) }, `${t("next")} →`);
    const card = h("article", { class: "panel tour-card" }, h("div", { class: "tour-walk no-picture" }, back, list, next), count, title, story, tokens, stage);
    fill(root, h("div", { class: "tour" }, map, card));

    const now = () => {
      const asked = ctx.setting("stop", stops[0]);
      return stops.includes(asked) ? asked : stops[0];
    };

    /** @param {string} stop */
    function go(stop) {
      moved = true;
      ctx.set({ stop });
      if (title.getBoundingClientRect().top < 100) card.scrollIntoView(); // read on from the top; the buttons stay where they are
    }

    /** @param {number} by */
    function step(by) {
      const to = stops[stops.indexOf(now()) + by];
      if (to) go(to);
    }

    function drawWalk() {
      const at = stops.indexOf(now());
      fill(list, stops.map((stop, i) => h("li", {}, h("button", {
        type: "button", class: "tour-dot", "aria-label": `${i + 1}. ${t(`${stop}.title`)}`, title: t(`${stop}.title`), "aria-current": i === at ? "step" : null, "data-stop": stop, onclick: () => go(stop),
      }))));
      back.disabled = at === 0;
      next.disabled = at === stops.length - 1;
      count.textContent = t("count", { step: at + 1, count: stops.length });
      title.textContent = t(`${now()}.title`);
      fill(map, drawMap(ctx, stops, now(), go));
    }

    async function draw() {
      const mine = ++turn;
      drawWalk();
      const stop = now();
      const stack = stackOfStop(ctx.model, stop);
      const state = ctx.state();
      const asking = whileCurrent(ctx, () => mine === turn);
      const all = await asking.api("tokens");
      const own = all[stack];
      const asked = Number(ctx.setting(stack === "encoder" ? "source" : "token", "-1"));
      const token = asked >= 0 && asked < own.length ? asked : defaultToken(own, stack, all.expected, ctx.model.abilities.includes("tag"));
      const facts = ctx.model.stacks[stack];
      const focus = {
        tokens: all, stack, own, token, layer: Math.min(state.layer, (facts?.layers ?? 1) - 1), head: Math.min(headOf(state), (facts?.heads ?? 1) - 1),
      };
      const scene = await STOPS[stop](asking, focus);
      if (mine !== turn) return;
      fill(story, scene.say.map(([key, values]) => h("p", {}, t(key, values ?? {}))));
      const choosing = !["target", "labels", "again"].includes(stop);
      const held = tokens.contains(document.activeElement);
      fill(tokens, choosing ? [h("p", { class: "label" }, t("follow")), tokenChips(own, token, (index) => ctx.set({ [stack === "encoder" ? "source" : "token"]: index }), t("follow"))] : null);
      if (held) /** @type {HTMLElement | null} */ (tokens.querySelector("[aria-checked=true]"))?.focus();
      fill(stage, scene.show);
      if (moved) {
        moved = false;
        ctx.announce(`${t("count", { step: stops.indexOf(stop) + 1, count: stops.length })}: ${t(`${stop}.title`)}. ${story.textContent}`);
      }
    }

    /** @param {KeyboardEvent} event */
    function onKey(event) {
      const target = /** @type {HTMLElement} */ (event.target);
      if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) || target.getAttribute("role") === "radio") return;
      if (!target.contains(root) && !root.contains(target)) return;
      if (event.key === "ArrowRight") step(1);
      else if (event.key === "ArrowLeft") step(-1);
      else return;
      event.preventDefault();
    }
    document.addEventListener("keydown", onKey);

    return {
      update() {
        draw().catch((error) => { if (error?.name !== "Stale" && error?.name !== "ApiError") throw error; });
      },
      destroy() {
        turn += 1;
        document.removeEventListener("keydown", onKey);
      },
      picture: () => card,
    };
  },
};
