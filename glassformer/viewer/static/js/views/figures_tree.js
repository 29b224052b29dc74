// @ts-check
// Figure: the family tree of lineages, with what each changed; years run down, the three families stand side by side.

import { FONT } from "../canvas.js";
import { fill, h, s } from "../dom.js";

const FAMILIES = ["encoder", "encoder-decoder", "decoder"];
const ROW = 34;
const BOX = { width: 98, height: 24 };

/**
 * Where each lineage stands: a row of its own, in the order of the years, and a column in its family.
 * @param {any[]} lineages
 */
export function layout(lineages) {
  /** @type {Record<string, {x: number, y: number}>} */
  const places = {};
  const columns = { "encoder": [0, 1, 2], "encoder-decoder": [3, 4], "decoder": [5, 6, 7] };
  const years = [...new Set(lineages.map(({ year }) => year))].sort((a, b) => a - b);
  /** @type {{year: number, top: number}[]} */
  const bands = [];
  let row = 0;
  for (const year of years) {
    bands.push({ year, top: row });
    const here = lineages.filter((one) => one.year === year);
    const rows = Math.max(...FAMILIES.map((family) => Math.ceil(here.filter((one) => one.family === family).length / columns[/** @type {"encoder"} */ (family)].length)), 1);
    for (const family of FAMILIES) {
      const slots = columns[/** @type {"encoder"} */ (family)];
      const members = here.filter((one) => one.family === family);
      members.forEach((one, i) => {
        const many = members.length - Math.floor(i / slots.length) * slots.length;
        const inRow = Math.min(slots.length, many);
        const first = (slots.length - inRow) / 2;
        places[one.name] = { x: slots[0] + first + (i % slots.length), y: row + Math.floor(i / slots.length) };
      });
    }
    row += rows;
  }
  return { places, bands, rows: row, columns: 8 };
}

/** @type {import("./figures_types.js").Figure} */
export const tree = {
  id: "tree",
  supports: () => true,
  mount(root, ctx) {
    const { t, lang } = ctx;
    /** @type {any[]} */
    let lineages = [];
    const picture = h("div", { class: "scroll tree-picture" });
    const detail = h("div", { class: "tree-detail", role: "status" });
    fill(root, h("p", {}, t("tree.text")), h("div", { class: "tree" }, picture, detail));

    const chosen = () => {
      const asked = ctx.setting("lineage", ctx.model?.lineage ?? "transformer2017");
      return lineages.find(({ name }) => name === asked) ?? lineages[0];
    };

    function drawTree() {
      const colours = ctx.colours();
      const { places, bands, rows, columns } = layout(lineages);
      const left = 44;
      const step = BOX.width + 7;
      const wide = left + columns * step + 8;
      const high = rows * ROW + 46;
      const x = (/** @type {string} */ name) => left + places[name].x * step + BOX.width / 2;
      const y = (/** @type {string} */ name) => 40 + places[name].y * ROW + BOX.height / 2;
      const familyColour = (/** @type {string} */ family) => colours.heads[FAMILIES.indexOf(family)];
      const svg = s("svg", { viewBox: `0 0 ${wide} ${high}`, width: wide, height: high, role: "group", "aria-label": t("tree.label") });
      const titles = { "encoder": left + 1.5 * step, "encoder-decoder": left + 4 * step, "decoder": left + 6.5 * step };
      for (const family of FAMILIES) {
        svg.appendChild(s("text", { x: titles[/** @type {"encoder"} */ (family)], y: 16, "text-anchor": "middle", "font-family": FONT, "font-size": 13, "font-weight": 650, fill: familyColour(family) }, t(`tree.${family}`)));
      }
      for (const { year, top } of bands) {
        svg.appendChild(s("line", { x1: 0, x2: wide, y1: 34 + top * ROW, y2: 34 + top * ROW, stroke: colours.line }));
        svg.appendChild(s("text", { x: 4, y: 40 + top * ROW + 16, "font-family": FONT, "font-size": 12, fill: colours.muted }, String(year)));
      }
      const line = new Set();
      for (let one = chosen(); one; one = lineages.find(({ name }) => name === one.parent)) line.add(one.name);
      for (const one of lineages) {
        if (!one.parent) continue;
        const on = line.has(one.name);
        const [x1, y1, x2, y2] = [x(one.parent), y(one.parent) + BOX.height / 2, x(one.name), y(one.name) - BOX.height / 2];
        const flat = y2 <= y1;
        const d = flat ? `M${x(one.parent) + (x2 > x1 ? 1 : -1) * BOX.width / 2} ${y(one.parent)}L${x2 + (x2 > x1 ? -1 : 1) * BOX.width / 2} ${y(one.name)}` : `M${x1} ${y1}C${x1} ${(y1 + y2) / 2} ${x2} ${(y1 + y2) / 2} ${x2} ${y2}`;
        svg.appendChild(s("path", { d, fill: "none", stroke: on ? colours.accent : colours.muted, "stroke-opacity": on ? 1 : 0.45, "stroke-width": on ? 2.5 : 1.2 }));
      }
      for (const one of lineages) {
        const isChosen = one.name === chosen().name;
        const isOwn = one.name === ctx.model?.lineage;
        const colour = familyColour(one.family);
        const group = s("g", { tabindex: 0, role: "button", "aria-pressed": String(isChosen), "aria-label": `${one.title}, ${one.year}`, class: "node", "data-lineage": one.name },
          s("rect", { x: x(one.name) - BOX.width / 2, y: y(one.name) - BOX.height / 2, width: BOX.width, height: BOX.height, rx: 6, fill: isChosen ? colour : colours.panel, stroke: colour, "stroke-width": isOwn ? 3 : 1.2 }),
          s("text", { x: x(one.name), y: y(one.name) + 4.5, "text-anchor": "middle", "font-family": FONT, "font-size": 11.5, "font-weight": isOwn || isChosen ? 650 : 450, fill: isChosen ? colours.paper : colours.ink }, one.title));
        const press = () => ctx.set({ lineage: one.name });
        group.addEventListener("click", press);
        group.addEventListener("keydown", (event) => {
          const order = lineages.map(({ name }) => name);
          const by = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
          if (event.key === "Enter" || event.key === " ") press();
          else if (by) ctx.set({ lineage: order[(order.indexOf(one.name) + by + order.length) % order.length] });
          else return;
          event.preventDefault();
          event.stopPropagation();
          requestAnimationFrame(() => /** @type {SVGElement | null} */ (picture.querySelector("[aria-pressed=true]"))?.focus());
        });
        svg.appendChild(group);
      }
      fill(picture, svg);
      if (picture.scrollWidth > picture.clientWidth) picture.scrollLeft = x(chosen().name) - picture.clientWidth / 2;
    }

    /** A fact in words. @param {string} fact @param {string} value */
    const say = (fact, value) => value.split("+").map((part) => {
      const key = `tree.fact.${fact}.${part}`;
      const text = t(key);
      if (text === key) throw new Error(`the tree has no words for ${fact} "${part}"; add "${key}" to viewer/static/js/i18n/figures.js.`);
      return text;
    }).join(" + ");

    function drawDetail() {
      const one = chosen();
      const parent = lineages.find(({ name }) => name === one.parent);
      const children = lineages.filter(({ parent: name }) => name === one.name);
      const link = (/** @type {any} */ other) => h("button", { type: "button", class: "chip", onclick: () => ctx.set({ lineage: other.name }) }, other.title);
      fill(detail, h("h3", {}, `${one.title} (${one.year})`), one.name === ctx.model?.lineage ? h("p", { class: "note" }, t("tree.own")) : null,
        h("p", {}, one.changed[lang]), one.reported ? h("p", { class: "note" }, t("tree.reported", { text: one.reported[lang] })) : null,
        h("p", { class: "note" }, `${one.paper.authors} (${one.paper.year}): ${one.paper.title}. `, h("span", { class: "mono" }, one.paper.url)),
        parent && one.differs.length ? h("table", { class: "plain" }, h("caption", {}, t("tree.differs", { parent: parent.title })), h("tbody", {}, one.differs.map((/** @type {string} */ fact) =>
          h("tr", {}, h("th", { scope: "row" }, t(`tree.fact.${fact}`)), h("td", {}, say(fact, parent.facts[fact])), h("td", {}, "→"), h("td", {}, say(fact, one.facts[fact])))))) : parent ? h("p", { class: "note" }, t("tree.same", { parent: parent.title })) : null,
        parent ? h("p", { class: "row" }, h("span", { class: "label" }, t("tree.parent")), link(parent)) : null,
        children.length ? h("p", { class: "row" }, h("span", { class: "label" }, t("tree.children")), children.map(link)) : null);
    }

    return {
      async update() {
        lineages = (await ctx.api("lineages")).lineages;
        drawTree();
        drawDetail();
      },
      destroy() {},
      picture: () => /** @type {Element} */ (picture.firstElementChild ?? picture),
    };
  },
};
