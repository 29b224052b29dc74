// @ts-check
// Figure: attention as a directed graph. An arrow leads from a token to each token that it reads from.

import { whileCurrent } from "../api.js";
import { number } from "../arrays.js";
import { FONT } from "../canvas.js";
import { fill, h, s, slider } from "../dom.js";
import { headOf, stackOf } from "../state.js";
import { headWeights } from "./compare_weights.js";
import { tokenLabel } from "./figures_draw.js";

const MOST = 28; // tokens in a circle

/** @type {import("./figures_types.js").Figure} */
export const graph = {
  id: "graph",
  supports: (model) => Boolean(model?.stacks.encoder || model?.stacks.decoder),
  mount(root, ctx) {
    const { t } = ctx;
    let turn = 0;
    /** @type {number | null} */
    let shown = null;
    /** @type {{from: number, to: number, weight: number}[]} */
    let edges = [];
    /** @type {any[]} */
    let queries = [];
    /** @type {any[]} */
    let keys = [];
    let cross = false;
    const svg = s("svg", { class: "graph", role: "img" });
    const list = h("div", { class: "scroll" });
    const note = h("p", { class: "note" });
    const least = slider({ label: t("graph.least"), min: 0.02, max: 0.6, step: 0.02, value: Number(ctx.setting("least", "0.1")), format: (value) => number(value, 2), onInput: (value) => ctx.set({ least: value }) });
    fill(root, h("p", {}, t("graph.text")), h("div", { class: "controls" }, least), h("div", { class: "graph-frame" }, svg, list), note);

    const marker = (/** @type {string} */ id, /** @type {string} */ colour) =>
      s("marker", { id, viewBox: "0 0 10 10", refX: 9, refY: 5, markerUnits: "userSpaceOnUse", markerWidth: 12, markerHeight: 12, orient: "auto-start-reverse" }, s("path", { d: "M0 1L10 5L0 9Z", fill: colour }));

    function draw() {
      const colours = ctx.colours();
      const pinned = ctx.state().pins[0] ?? null;
      const chosen = shown ?? pinned;
      const wide = 560;
      const high = cross ? Math.max(queries.length, keys.length) * 30 + 40 : 560;
      svg.setAttribute("viewBox", `0 0 ${wide} ${high}`);
      svg.setAttribute("aria-label", t("graph.label", { count: edges.length }));
      const place = (/** @type {number} */ i, /** @type {boolean} */ isKey) => {
        if (cross) return { x: isKey ? 400 : 160, y: 30 + i * 30 };
        const angle = (2 * Math.PI * i) / queries.length - Math.PI / 2;
        return { x: wide / 2 + 205 * Math.cos(angle), y: high / 2 + 205 * Math.sin(angle) };
      };
      const lines = edges.map(({ from, to, weight }) => {
        const start = place(from, false);
        const end = place(to, true);
        const on = chosen === null || from === chosen;
        let d;
        if (!cross && from === to) {
          const out = { x: (start.x - wide / 2) / 205, y: (start.y - high / 2) / 205 };
          const side = { x: -out.y, y: out.x };
          const point = (/** @type {number} */ o, /** @type {number} */ p) => `${start.x - out.x * o + side.x * p} ${start.y - out.y * o + side.y * p}`;
          d = `M${point(6, 5)}C${point(46, 26)} ${point(46, -26)} ${point(8, -5)}`;
        } else if (cross) {
          d = `M${start.x + 6} ${start.y}C${start.x + 110} ${start.y} ${end.x - 110} ${end.y} ${end.x - 8} ${end.y}`;
        } else {
          const shrink = (/** @type {{x: number, y: number}} */ p, /** @type {number} */ by) => ({ x: wide / 2 + (p.x - wide / 2) * by, y: high / 2 + (p.y - high / 2) * by });
          const a = shrink(start, 0.97);
          const b = shrink(end, 0.95);
          const middle = shrink({ x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 }, 0.55);
          d = `M${a.x} ${a.y}Q${middle.x} ${middle.y} ${b.x} ${b.y}`;
        }
        return s("path", { d, fill: "none", stroke: on ? colours.accent : colours.line, "stroke-width": 0.8 + 5 * weight, "stroke-opacity": on ? 0.35 + 0.65 * weight : 0.6, "marker-end": on ? "url(#graph-arrow)" : "url(#graph-arrow-off)", "data-edge": `${from}-${to}` });
      });
      const node = (/** @type {any} */ token, /** @type {number} */ i, /** @type {boolean} */ isKey) => {
        const p = place(i, isKey);
        const left = cross ? !isKey : p.x < wide / 2 - 20;
        const right = cross ? isKey : p.x > wide / 2 + 20;
        const active = !isKey && i === chosen;
        const label = s("text", {
          x: p.x + (left ? -9 : right ? 9 : 0), y: p.y + (left || right ? 4 : p.y < high / 2 ? -11 : 20), "text-anchor": left ? "end" : right ? "start" : "middle",
          "font-family": FONT, "font-size": 13, fill: active ? colours.accent : colours.ink, "font-weight": active ? 700 : 400, "font-style": token.special ? "italic" : "normal",
        }, tokenLabel(token).slice(0, 14));
        const circle = s("circle", { cx: p.x, cy: p.y, r: active ? 6 : 4.5, fill: active ? colours.accent : colours.muted });
        if (isKey && cross) return [circle, label];
        const press = () => ctx.select({ pins: pinned === i ? [] : [i] });
        const group = s("g", { tabindex: 0, role: "button", "aria-pressed": String(active), "aria-label": t("graph.node", { token: tokenLabel(token) }), class: "node" }, circle, label);
        group.addEventListener("pointerenter", () => { shown = i; draw(); });
        group.addEventListener("click", press);
        group.addEventListener("keydown", (event) => {
          if (event.key !== "Enter" && event.key !== " ") return;
          event.preventDefault();
          press();
        });
        return [group];
      };
      const focus = document.activeElement?.closest(".node") ? [...svg.querySelectorAll(".node")].indexOf(/** @type {Element} */ (document.activeElement)) : -1;
      fill(svg, s("defs", {}, marker("graph-arrow", colours.accent), marker("graph-arrow-off", colours.line)), lines,
        queries.flatMap((token, i) => node(token, i, false)), cross ? keys.flatMap((token, i) => node(token, i, true)) : null);
      if (focus >= 0) /** @type {SVGElement} */ (svg.querySelectorAll(".node")[focus])?.focus();
      const strongest = edges.filter(({ from }) => chosen === null || from === chosen).sort((a, b) => b.weight - a.weight).slice(0, 10);
      fill(list, h("table", { class: "plain" }, h("caption", {}, t("graph.strongest")), h("tbody", {}, strongest.map(({ from, to, weight }) =>
        h("tr", {}, h("td", {}, tokenLabel(queries[from])), h("td", {}, "→"), h("td", {}, tokenLabel(keys[to])), h("td", { class: "number" }, number(weight, 3)))))));
    }
    svg.addEventListener("pointerleave", () => {
      shown = null;
      draw();
    });

    return {
      async update(state) {
        const mine = ++turn;
        const head = headOf(state);
        const asking = whileCurrent(ctx, () => mine === turn);
        const tokens = await asking.api("tokens");
        const size = { queries: tokens[state.kind === "encoder" ? "encoder" : "decoder"].length, keys: tokens[state.kind === "decoder" ? "decoder" : "encoder"].length, heads: stackOf(ctx.model, state.kind)?.heads ?? 1, saved: ctx.page.mode === "file" };
        const weights = await headWeights((name, params) => asking.api(name, params), { kind: state.kind, layer: state.layer, head }, size);
        if (mine !== turn) return;
        cross = state.kind === "cross";
        queries = tokens[state.kind === "encoder" ? "encoder" : "decoder"].slice(0, MOST);
        keys = tokens[state.kind === "decoder" ? "decoder" : "encoder"].slice(0, MOST);
        const low = Number(ctx.setting("least", "0.1"));
        edges = [];
        queries.forEach((_, from) => keys.forEach((__, to) => {
          const weight = weights.data[from * weights.shape[1] + to];
          if (weight >= low) edges.push({ from, to, weight });
        }));
        const self = cross ? null : queries.filter((_, i) => {
          let best = 0;
          for (let key = 1; key < weights.shape[1]; key++) if (weights.data[i * weights.shape[1] + key] > weights.data[i * weights.shape[1] + best]) best = key;
          return best === i;
        }).length;
        note.textContent = `${self === null ? "" : t("graph.self", { count: self, total: queries.length })}${weights.shape[0] > MOST || weights.shape[1] > MOST ? ` ${t("first", { count: MOST })}` : ""}`;
        draw();
      },
      destroy() {
        turn += 1;
      },
      picture: () => svg,
    };
  },
};
