// @ts-check
// Figures: the pictures of the textbooks, drawn live with this model's own numbers.

import { fill, h } from "../dom.js";
import words from "../i18n/figures.js";
import { curves } from "./figures_curves.js";
import { decode } from "./figures_decode.js";
import { dictionary } from "./figures_dictionary.js";
import { flies } from "./figures_flies.js";
import { graph } from "./figures_graph.js";
import { heads } from "./figures_heads.js";
import { product } from "./figures_product.js";
import { toy } from "./figures_toy.js";
import { tree } from "./figures_tree.js";
import { word } from "./figures_word.js";

const FIGURES = [dictionary, product, heads, graph, flies, curves, word, decode, toy, tree];

/** @type {import("../types.js").View} */
export default {
  id: "figures",
  words,
  uses: ["text", "kind", "layer", "head"],
  supports: (model, page) => page.mode === "server" || Boolean(model?.facts),
  mount(root, ctx) {
    const { t } = ctx;
    // What a saved page does not hold is said in the figure itself.
    const inside = ctx.page.mode === "server" ? ctx : { ...ctx, api: (/** @type {string} */ name, /** @type {any} */ params, /** @type {any} */ options) => ctx.api(name, params, { ...options, quiet: true }) };
    const shown = FIGURES.filter((figure) => figure.supports(ctx.model));
    const list = h("ul", {});
    const nav = h("nav", { class: "figure-list no-picture", "aria-label": t("list") }, list);
    const panel = h("div", { class: "panel figure" });
    fill(root, h("div", { class: "figures" }, nav, panel));
    /** @type {{figure: import("./figures_types.js").Figure, handle: import("./figures_types.js").FigureHandle, body: HTMLElement} | null} */
    let open = null;

    function choose() {
      const asked = ctx.setting("figure", "");
      const figure = shown.find(({ id }) => id === asked) ?? shown[0];
      if (open?.figure === figure) return false;
      open?.handle.destroy();
      const body = h("div", { class: `figure-body figure-${figure.id}` });
      fill(panel, h("h2", {}, t(`${figure.id}.title`)), body);
      open = { figure, body, handle: figure.mount(body, inside) };
      fill(list, shown.map(({ id }) => h("li", {}, h("button", {
        type: "button", "aria-current": id === figure.id ? "true" : null, "data-figure": id, onclick: () => ctx.set({ figure: id }),
      }, t(`${id}.title`)))));
      const current = list.querySelector("[aria-current]");
      if (current instanceof HTMLElement) nav.scrollLeft = current.offsetLeft - nav.clientWidth / 2 + current.offsetWidth / 2;
      return true;
    }

    return {
      update(state, changed) {
        const fresh = choose();
        const now = open;
        const done = now?.handle.update(state, fresh ? new Set(Object.keys(state)) : changed);
        if (done instanceof Promise) {
          done.catch((error) => {
            if (error?.missing && now === open) fill(/** @type {HTMLElement} */ (now?.body), h("p", { class: "note missing" }, t("error.missing")));
            else if (error?.name !== "Stale" && error?.name !== "ApiError") throw error;
          });
        }
      },
      destroy() {
        open?.handle.destroy();
      },
      picture: () => open?.handle.picture?.() ?? panel,
    };
  },
};
