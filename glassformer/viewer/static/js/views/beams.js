// @ts-check
// Beams: the search tree with scores, deaths and winners.

import { number } from "../arrays.js";
import { debounce, fill, h, s, slider } from "../dom.js";
import words from "../i18n/beams.js";
import { visibleText } from "../tokens.js";
import { hideTip, showTip } from "../tooltip.js";
import { neighbour, pathOf, placeNodes } from "./beams_tree.js";
import { fitted, textWidth, tint } from "./flow_draw.js";

/** @typedef {import("./beams_tree.js").Placed} Placed */

const COLUMNS = { least: 84, most: 104 }; // the width of a step: as narrow as legible, if the tree then fits
const ROW = 27;
const LEFT = 64;

/** @param {number} logprob */
const percent = (logprob) => `${(100 * Math.exp(logprob)).toFixed(1)} %`;

/**
 * @param {HTMLElement} root
 * @param {import("../types.js").Ctx} ctx
 */
function mount(root, ctx) {
  const setting = (/** @type {string} */ key, /** @type {number} */ fallback) => Number(ctx.setting(key, String(fallback)));
  const change = debounce((/** @type {Record<string, number | boolean>} */ patch) => ctx.set(patch), 150);
  const size = slider({ label: ctx.t("size"), min: 2, max: 8, step: 1, value: setting("size", 4), onInput: (value) => change({ size: value }) });
  const penalty = slider({
    label: ctx.t("penalty"), min: 0, max: 2, step: 0.1, value: setting("penalty", 1), format: (value) => value.toFixed(1), onInput: (value) => change({ penalty: value }),
  });
  const steps = slider({ label: ctx.t("steps"), min: 4, max: 40, step: 1, value: setting("steps", 16), onInput: (value) => change({ steps: value }) });
  const box = h("input", { type: "checkbox", id: "beams-dropped" });
  box.checked = ctx.setting("dropped", "1") === "1";
  box.addEventListener("change", () => ctx.set({ dropped: box.checked ? 1 : 0 }));
  const tree = h("div", { class: "scroll beams-tree" });
  const wide = h("p", { class: "note", "data-part": "wide", hidden: true }, ctx.t("wide"));
  const detail = h("div", { class: "panel beams-detail", "aria-live": "polite" });
  const results = h("div", { class: "panel" });
  root.append(
    h("div", { class: "controls" }, size, penalty, steps, h("div", { class: "field" }, box, h("label", { for: "beams-dropped" }, ctx.t("dropped")))),
    h("div", { class: "panel" }, h("p", { class: "note" }, ctx.t("treeAbout")), tree, wide),
    h("div", { class: "columns beams-below" }, results, detail),
  );
  /** @type {any} */
  let answer = null;
  /** @type {number | null} */
  let chosen = null;
  let column = COLUMNS.most;
  let room = 0;
  const observer = new ResizeObserver(() => {
    if (tree.clientWidth !== room) draw();
  });
  observer.observe(tree);

  async function load() {
    const params = { beam_size: setting("size", 4), max_new_tokens: setting("steps", 16), length_penalty: setting("penalty", 1) };
    answer = await ctx.api("beams", params);
    const best = answer.texts[0]?.node ?? null;
    chosen = best;
    draw();
    drawResults();
    drawDetail();
    bringIntoSight();
  }

  /** Scroll the tree until the chosen node can be seen. */
  function bringIntoSight() {
    const element = tree.querySelector(`[data-node="${chosen}"]`);
    if (!element) return;
    const box = element.getBoundingClientRect();
    const frame = tree.getBoundingClientRect();
    if (box.right + 34 > frame.right) tree.scrollLeft += box.right + 34 - frame.right; // with its flag and rank
    else if (box.left < frame.left) tree.scrollLeft -= frame.left - box.left + 12;
  }

  function draw() {
    if (!answer) return;
    const focused = tree.contains(document.activeElement);
    const left = tree.scrollLeft;
    room = tree.clientWidth;
    fill(tree, treePicture());
    tree.scrollLeft = left;
    wide.hidden = tree.scrollWidth <= tree.clientWidth;
    if (focused && chosen !== null) /** @type {SVGElement | null} */ (tree.querySelector(`[data-node="${chosen}"]`))?.focus({ preventScroll: true });
  }

  function treePicture() {
    const colours = ctx.colours();
    const { placed, steps: count, rows } = placeNodes(answer.nodes, box.checked);
    column = Math.min(COLUMNS.most, Math.max(COLUMNS.least, Math.floor((room - LEFT - 16) / Math.max(1, count))));
    const width = LEFT + count * column + 16;
    const height = Math.max(90, rows * ROW + 34);
    const xOf = (/** @type {Placed} */ node) => LEFT + node.step * column + 20;
    const yOf = (/** @type {Placed} */ node) => 22 + (node.row + 0.5) * ROW;
    const start = { x: 26, y: 22 + (rows * ROW) / 2 };
    const path = new Set(chosen === null ? [] : pathOf(placed, chosen).map((node) => node.id));
    const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": ctx.t("tree") });
    for (let step = 0; step < count; step++) {
      svg.append(s("text", { x: LEFT + step * column + 20, y: 12, "font-size": 11, class: "beams-quiet" }, String(step + 1)));
    }
    /** @type {SVGElement[]} */
    const lines = [];
    /** @type {SVGElement[]} */
    const marks = [];
    for (const node of placed.values()) {
      const parent = node.parent === null ? null : placed.get(node.parent);
      const from = parent ? { x: xOf(parent) + nodeWidth(parent), y: yOf(parent) } : { x: start.x + 18, y: start.y };
      const to = { x: xOf(node), y: yOf(node) };
      const middle = (from.x + to.x) / 2;
      const colour = node.winner ? colours.accent : node.status === "dropped" ? colours.line : colours.muted;
      lines.push(
        s("path", {
          d: `M${from.x},${from.y} C${middle},${from.y} ${middle},${to.y} ${to.x},${to.y}`, fill: "none", stroke: colour,
          "stroke-width": node.winner ? 4 : path.has(node.id) ? 2.5 : 1.2, "stroke-opacity": node.status === "dropped" ? 0.8 : 1, "aria-hidden": "true",
        }),
      );
      marks.push(nodePicture(node, to, path.has(node.id), placed));
    }
    svg.append(
      ...lines,
      s("circle", { cx: start.x, cy: start.y, r: 7, fill: colours.accent }),
      s("text", { x: start.x, y: start.y + 22, "font-size": 11, "text-anchor": "middle", class: "beams-quiet" }, ctx.t("prompt")),
      ...marks,
    );
    return svg;
  }

  /** @param {Placed} node */
  function nodeWidth(node) {
    const text = fitted(visibleText(node.text), column - 42, node.status === "dropped" ? 11 : 12.5);
    return textWidth(text, node.status === "dropped" ? 11 : 12.5) + 12;
  }

  /** @param {Placed} node */
  function describe(node) {
    const status = node.winner ? ctx.t("winner") : node.status === "dropped" ? ctx.t("statusDropped") : ctx.t(node.status);
    const first = ctx.t("node", { text: visibleText(node.text), status, prob: percent(node.logprob), score: number(node.score) });
    if (node.final === null) return first;
    const values = { score: number(node.score), length: node.step + 1, penalty: setting("penalty", 1), final: number(node.final, 4) };
    return `${first} ${ctx.t("nodeFinal", values)}`;
  }

  /**
   * @param {Placed} node
   * @param {{x: number, y: number}} at
   * @param {boolean} marked
   * @param {Map<number, Placed>} placed
   */
  function nodePicture(node, at, marked, placed) {
    const colours = ctx.colours();
    const dropped = node.status === "dropped";
    const font = dropped ? 11 : 12.5;
    const text = fitted(visibleText(node.text), column - 42, font);
    const width = nodeWidth(node);
    const fill_ = node.winner ? colours.accent : dropped ? "none" : colours.panel;
    const stroke = marked ? colours.ink : node.winner ? colours.accent : dropped ? "none" : colours.muted;
    const group = s(
      "g",
      { class: "beams-node", role: "button", tabindex: node.id === chosen ? 0 : -1, "data-node": node.id, "data-status": node.status, "aria-label": describe(node), "aria-pressed": String(node.id === chosen) },
      s("rect", { class: "frame", x: at.x, y: at.y - 10, width, height: 20, rx: 5, fill: fill_, stroke, "stroke-width": marked ? 2 : 1 }),
      s("text", { x: at.x + width / 2, y: at.y + 4, "text-anchor": "middle", "font-size": font, style: { fill: node.winner ? colours.paper : dropped ? colours.muted : colours.ink } }, text),
    );
    if (node.status === "ended") {
      const x = at.x + width + 4;
      group.append(
        s("path", { d: `M${x},${at.y + 8} V${at.y - 9} L${x + 10},${at.y - 5} L${x},${at.y - 1}`, fill: tint(colours.heads[1], 0.9), stroke: colours.heads[1], "stroke-width": 1.5 }),
      );
      if (node.rank) group.append(s("text", { x: x + 12, y: at.y + 8, "font-size": 10.5, class: "beams-quiet" }, `${node.rank}.`));
    }
    group.addEventListener("pointermove", (event) => showTip(event.clientX, event.clientY, describe(node)));
    group.addEventListener("pointerleave", hideTip);
    group.addEventListener("click", () => choose(node.id));
    group.addEventListener("keydown", (event) => {
      const next = neighbour(placed, node.id, event.key);
      if (event.key === "Enter" || event.key === " ") choose(node.id);
      else if (next !== null) choose(next, true);
      else if (!event.key.startsWith("Arrow")) return;
      event.preventDefault();
      event.stopPropagation();
    });
    return group;
  }

  /** @param {number} id @param {boolean} [move] */
  function choose(id, move = false) {
    chosen = id;
    draw();
    drawDetail();
    bringIntoSight();
    const element = /** @type {SVGElement | null} */ (tree.querySelector(`[data-node="${id}"]`));
    if (move) element?.focus({ preventScroll: true });
  }

  function drawDetail() {
    const nodes = new Map(answer.nodes.map((/** @type {any} */ node) => [node.id, node]));
    if (chosen === null) {
      fill(detail, h("p", { class: "note" }, ctx.t("none")));
      return;
    }
    const path = pathOf(nodes, chosen);
    const node = path[path.length - 1];
    const uncounted = (/** @type {string} */ text, /** @type {boolean} */ forced) => (forced ? `(${text})` : text);
    const rows = path.map((each) =>
      h(
        "tr",
        { class: each.forced ? "beams-forced" : "" },
        h("td", { class: "number" }, String(each.step + 1)),
        h("td", { class: `token${each.special ? " special" : ""}` }, visibleText(each.text)),
        h("td", { class: "number" }, uncounted(percent(each.logprob), each.forced)),
        h("td", { class: "number" }, uncounted(number(each.logprob), each.forced)),
        h("td", { class: "number" }, number(each.score)),
      ),
    );
    fill(
      detail,
      h("h2", {}, ctx.t("chosen")),
      h("p", { "data-part": "node" }, describe(/** @type {Placed} */ (node))),
      h("div", { class: "scroll beams-path" },
        h("table", { class: "plain" },
          h("thead", {}, h("tr", {}, ["", ctx.t("text"), "p", "log p", "Σ log p"].map((word) => h("th", { scope: "col" }, word)))),
          h("tbody", {}, rows))),
    );
  }

  /** What forced tokens do to sum and length, where there are any. */
  function forcedNote() {
    const names = [...new Set(answer.nodes.filter((/** @type {any} */ node) => node.forced).map((/** @type {any} */ node) => visibleText(node.text)))];
    return names.length ? h("p", { class: "note", "data-part": "forced" }, ctx.t("forced", { tokens: names.join(" ") })) : null;
  }

  function drawResults() {
    const rows = answer.texts.map((/** @type {any} */ text, /** @type {number} */ index) => {
      const button = h("button", { type: "button", class: "quiet small", onclick: () => choose(text.node) }, String(index + 1));
      return h(
        "tr",
        { "data-rank": index + 1 },
        h("td", {}, button),
        h("td", { class: "beams-text" }, index ? text.text : h("strong", {}, text.text)),
        h("td", { class: "number" }, number(text.sum)),
        h("td", { class: "number" }, String(text.length)),
        h("td", { class: "number", "data-part": "final" }, number(text.score, 4)),
      );
    });
    const best = answer.texts[0];
    const greedy = answer.greedy;
    const values = { beam: number(best?.sum ?? 0), greedy: number(greedy?.sum ?? 0) };
    fill(
      results,
      h("h2", {}, ctx.t("results")),
      h("p", { class: "note" }, ctx.t("formula", { penalty: setting("penalty", 1) })),
      forcedNote(),
      h("div", { class: "scroll" },
        h("table", { class: "plain" },
          h("thead", {}, h("tr", {}, ["rank", "text", "sum", "length", "final"].map((word) => h("th", { scope: "col" }, ctx.t(word))))),
          h("tbody", {}, rows))),
      greedy ? h("p", {}, ctx.t("greedyAbout"), " ", h("em", {}, greedy.text)) : null,
      greedy && best ? h("p", { class: "note" }, greedy.text === best.text ? ctx.t("same") : ctx.t("better", values)) : null,
      answer.ended_early ? h("p", { class: "note" }, ctx.t("early")) : null,
    );
  }

  return {
    /** @param {import("../types.js").State} _state @param {Set<string>} changed */
    update(_state, changed) {
      size.set(setting("size", 4));
      penalty.set(setting("penalty", 1));
      steps.set(setting("steps", 16));
      box.checked = ctx.setting("dropped", "1") === "1";
      const asks = ["text", "text_b", "target", "model", "ablate", "x"].some((key) => changed.has(key));
      if (asks) void load();
    },
    destroy() {
      observer.disconnect();
    },
    picture: () => /** @type {SVGElement | null} */ (tree.querySelector("svg")) ?? tree,
  };
}

/** @type {import("../types.js").View} */
export default {
  id: "beams",
  words,
  uses: ["text"],
  supports: (model) => Boolean(model?.stacks.decoder && model.abilities.includes("generate")),
  mount,
};
