// @ts-check
// Positions: tables, rotations and biases by which a model tells positions apart.

import { whileCurrent } from "../api.js";
import { at, decode, extent, number } from "../arrays.js";
import { heatMap, legend } from "../canvas.js";
import { choice, debounce, field, fill, h, s, segmented, slider } from "../dom.js";
import words from "../i18n/positions.js";
import { schemeOf } from "../mechanisms.js";
import { headOf } from "../state.js";
import { sides, visibleText } from "../tokens.js";
import { hideTip, showTip } from "../tooltip.js";
import { byDistance, rotatedProducts, sinusoidTerm, lengthsOf } from "./positions_math.js";

/** @typedef {import("../types.js").Ctx} Ctx */
/** @typedef {import("../canvas.js").Cell} Cell */

const LESSONS = ["sinusoidal", "rotary", "alibi", "buckets"];
const PRODUCTS = 48; // positions of the picture of rotated products

/**
 * @param {HTMLElement} root
 * @param {Ctx} ctx
 */
function mount(root, ctx) {
  const { most, first } = lengthsOf(ctx.model.longest);
  const change = debounce((/** @type {Record<string, string | number | null>} */ patch) => ctx.set(patch), 120);
  const length = slider({ label: ctx.t("length"), min: 8, max: most, step: 8, value: first, onInput: (value) => change({ length: value }) });
  const pick = h("div", {});
  const stage = h("div", { class: "positions" });
  root.append(h("div", { class: "controls" }, pick, length), stage);
  /** @type {(() => void)[]} */
  let closing = [];
  let run = 0;

  const size = () => Math.min(most, Number(ctx.setting("length", String(first))) || first);

  /** @param {import("../types.js").State} state */
  async function draw(state) {
    const mine = ++run;
    length.set(size());
    const asking = whileCurrent(ctx, () => mine === run);
    const own = await asking.api("positions", { length: size(), kind: null }, { slot: "own" });
    const chosen = ctx.setting("kind", own.schemes.length ? "0" : "");
    const lesson = LESSONS.includes(chosen) ? await asking.api("positions", { length: size(), kind: chosen }, { slot: "lesson" }) : null;
    if (mine !== run) return;
    drawChoice(own.schemes, chosen);
    const scheme = lesson ? lesson.schemes[0] : own.schemes[Number(chosen)] ?? own.schemes[0];
    for (const close of closing) close();
    closing = [];
    if (!scheme) {
      fill(stage, h("p", { class: "panel" }, ctx.t("noScheme")));
      return;
    }
    stage.dataset.kind = scheme.kind;
    const parts = await sections(state, scheme, lesson ? null : asking);
    if (mine !== run) return;
    fill(stage, h("p", { class: "positions-about" }, ctx.t(`about.${scheme.kind}`)), parts);
    for (const map of maps) map.update({});
  }

  /** @param {any[]} schemes @param {string} chosen */
  function drawChoice(schemes, chosen) {
    /** @type {[string, string][]} */
    const options = schemes.map((scheme, index) => {
      const where = scheme.stack ? ` (${ctx.t(`stack.${scheme.stack}`)})` : "";
      return [String(index), ctx.t("own", { kind: `${ctx.t(scheme.kind)}${where}` })];
    });
    for (const kind of LESSONS) if (!schemes.some((scheme) => scheme.kind === kind)) options.push([kind, ctx.t("compare", { kind: ctx.t(kind) })]);
    if (!schemes.length) options.unshift(["", "–"]);
    fill(pick, field(ctx.t("scheme"), choice(options, chosen, (value) => ctx.set({ kind: value === "0" ? null : value }), { name: "scheme" })));
  }

  /** @type {ReturnType<typeof heatMap>[]} */
  let maps = [];

  /**
   * A panel with a heat map.
   * @param {string} title
   * @param {any} options
   * @param {...any} extra
   */
  function mapPanel(title, options, ...extra) {
    const colours = ctx.colours();
    const axis = (/** @type {string} */ name) => ({ name: ctx.t(name) });
    const map = heatMap({ colours, announce: ctx.announce, label: title, minCell: 2, maxHeight: 452, rowAxis: axis("axis.position"), columnAxis: axis("axis.position"), ...options });
    maps.push(map);
    closing.push(() => map.destroy());
    return h("div", { class: "panel", "data-map": options.key }, h("h2", {}, title), map.element, extra);
  }

  /** @param {import("../types.js").State} state @param {any} scheme @param {import("../types.js").Ctx | null} asking null: not the model's own */
  function sections(state, scheme, asking) {
    maps = [];
    const draw = {
      waves: () => sinusoidal(scheme, asking !== null),
      table: () => tableSections(decode(scheme.table), scheme, (i, j, value) => ctx.t("cell", { i, j, value })),
      rotation: () => rotary(state, scheme, asking),
      vectors: () => disentangled(scheme),
      biases: () => biases(state, scheme),
    }[schemeOf(scheme)];
    return draw();
  }

  /**
   * @param {import("../arrays.js").Nd} table
   * @param {any} scheme
   * @param {(i: number, j: number, value: string) => string} describe
   * @param {...any} above
   */
  function tableSections(table, scheme, describe, ...above) {
    const { diverging } = ctx.colours();
    const [rows, width] = table.shape;
    const { min, max } = extent(table.data);
    const reach = Math.max(Math.abs(min), Math.abs(max), 1e-9);
    const label = ctx.t("tableLabel", { length: rows, width });
    const panel = mapPanel(
      ctx.t("table"),
      {
        key: "table", rows, columns: width, label, value: (/** @type {number} */ i, /** @type {number} */ j) => at(table, i).data[j],
        colour: (/** @type {number} */ value) => diverging(value / reach), minCell: 0.5, maxCell: 12, columnAxis: { name: ctx.t("axis.coordinate") }, cellHeight: Math.max(4, Math.min(14, Math.floor(420 / rows))),
        describe: (/** @type {Cell} */ cell) => describe(cell.row, cell.column, number(cell.value ?? 0, 4)),
      },
      scale(reach),
    );
    panel.querySelector("h2")?.after(...above);
    return [panel, similarity(decode(scheme.similarity), ctx.t("similarity"), ctx.t("similarityAbout"), ctx.t("distanceCurve"))];
  }

  /**
   * @param {import("../arrays.js").Nd} table
   * @param {string} title
   * @param {string} about
   * @param {string} curveTitle
   */
  function similarity(table, title, about, curveTitle) {
    const { diverging } = ctx.colours();
    const n = table.shape[0];
    const curve = byDistance(table.data, n);
    const panel = mapPanel(title, {
      key: "similarity", rows: n, columns: n, value: (/** @type {number} */ i, /** @type {number} */ j) => at(table, i).data[j],
      colour: diverging, maxCell: square(n),
      describe: (/** @type {Cell} */ { row, column, value }) => ctx.t("similarityCell", { i: row, j: column, value: number(value ?? 0, 4) }),
    }, scale(1));
    panel.querySelector("h2")?.after(h("p", { class: "note" }, about));
    const chart = lineChart(ctx, curve.distance, curve.mean, (d, value) => ctx.t("distanceCell", { d, value: number(value, 4) }), curveTitle);
    return h("div", { class: "columns" }, panel, h("div", { class: "panel" }, h("h2", {}, curveTitle), chart));
  }

  /** @param {any} scheme @param {boolean} own */
  function sinusoidal(scheme, own) {
    const layouts = Object.keys(scheme.tables);
    const asked = ctx.setting("layout", own ? scheme.layout : layouts[0]);
    const layout = layouts.includes(asked) ? asked : layouts[0];
    const table = decode(scheme.tables[layout]);
    const width = table.shape[1];
    const offset = own ? ctx.model.facts?.embed?.position?.offset ?? 0 : 0;
    const buttons = segmented(layouts.map((name) => [name, ctx.t(name)]), layout, (value) => ctx.set({ layout: value }), ctx.t("layout"));
    const describe = (/** @type {number} */ i, /** @type {number} */ j, /** @type {string} */ value) => {
      const { wave, exponent } = sinusoidTerm(j, width, layout);
      if (wave === "zero") return ctx.t("cell", { i, j, value });
      return ctx.t(offset ? "offsetCell" : "sinCell", { i, j, row: i + offset, wave, exponent: number(exponent, 3), value });
    };
    const model = own ? ` ${ctx.t("modelLayout", { layout: ctx.t(scheme.layout) })}` : "";
    return tableSections(table, scheme, describe, h("div", { class: "row" }, buttons), h("p", { class: "note" }, ctx.t(`about.${layout}`) + model));
  }

  /** @param {import("../types.js").State} state @param {any} scheme @param {import("../types.js").Ctx | null} asking null: not the model's own */
  async function rotary(state, scheme, asking) {
    const { diverging } = ctx.colours();
    const angles = decode(scheme.angles);
    const [rows, pairs] = angles.shape;
    const frequencies = rows > 1 ? at(angles, 1).data : new Float32Array(pairs);
    const panel = mapPanel(
      ctx.t("angles"),
      {
        key: "angles", rows, columns: pairs, label: ctx.t("anglesLabel", { length: rows, pairs }), maxCell: 26, columnAxis: { name: ctx.t("axis.pair") }, cellHeight: Math.max(4, Math.min(14, Math.floor(420 / rows))),
        value: (/** @type {number} */ i, /** @type {number} */ j) => Math.cos(at(angles, i).data[j]), colour: diverging,
        describe: (/** @type {Cell} */ { row, column, value }) => ctx.t("angleCell", { i: row, j: column, angle: number(at(angles, row).data[column], 3), value: number(value ?? 0, 4) }),
      },
      scale(1),
    );
    const top = h("div", { class: "columns" }, panel, clocks(frequencies, rows));
    const rest = similarity(decode(scheme.similarity), ctx.t("rotarySimilarity"), ctx.t("rotarySimilarityAbout"), ctx.t("distanceCurve"));
    return [top, asking ? await products(asking, state, scheme, frequencies) : null, rest];
  }

  /**
   * @param {ArrayLike<number>} frequencies
   * @param {number} rows
   */
  function clocks(frequencies, rows) {
    const colours = ctx.colours();
    const shown = Math.min(16, frequencies.length);
    const title = h("h2", {});
    const across = 4;
    const svg = s("svg", { viewBox: `0 0 ${across * 68} ${Math.ceil(shown / across) * 76}`, class: "positions-clocks", role: "img", "aria-label": ctx.t("clocksAbout") });
    const pick_ = (/** @type {number} */ n) => Math.round((n * (frequencies.length - 1)) / Math.max(1, shown - 1));
    /** @param {number} position */
    const show = (position) => {
      title.textContent = ctx.t("clocks", { position });
      svg.replaceChildren(
        ...Array.from({ length: shown }, (_, n) => {
          const pair = pick_(n);
          const angle = position * frequencies[pair];
          const [x, y] = [(n % across) * 68 + 34, Math.floor(n / across) * 76 + 32];
          const end = `${x + 22 * Math.cos(angle)},${y - 22 * Math.sin(angle)}`;
          return s(
            "g",
            {},
            s("circle", { cx: x, cy: y, r: 26, fill: colours.panel, stroke: colours.line, "stroke-width": 1.5 }),
            s("path", { d: `M${x},${y} L${x + 22},${y}`, stroke: colours.line, "stroke-width": 2 }),
            s("path", { d: `M${x},${y} L${end}`, stroke: colours.accent, "stroke-width": 3, "stroke-linecap": "round" }),
            s("text", { x, y: y + 39, "text-anchor": "middle", "font-size": 10.5, fill: colours.muted }, ctx.t("pair", { n: pair })),
          );
        }),
      );
    };
    const start = Math.min(5, rows - 1);
    const control = slider({ label: ctx.t("position"), min: 0, max: rows - 1, step: 1, value: start, onInput: show });
    show(start);
    return h("div", { class: "panel" }, title, h("p", { class: "note" }, ctx.t("clocksAbout")), control, svg);
  }

  /**
   * The content of one query and one key, moved to every two positions.
   * @param {import("../types.js").Ctx} asking
   * @param {import("../types.js").State} state
   * @param {any} scheme
   * @param {ArrayLike<number>} frequencies
   */
  async function products(asking, state, scheme, frequencies) {
    const kind = scheme.stack;
    const tokens = await asking.api("tokens", {});
    const { queries, keys } = sides(kind, tokens);
    const row = Math.min(state.pins.at(-1) ?? queries.length - 1, queries.length - 1);
    /** @type {any} */
    let neuron;
    try {
      neuron = await asking.api("neuron", { kind, layer: state.layer, head: headOf(state), row }, { quiet: true });
    } catch {
      return null; // an exported page may not hold it
    }
    if (!neuron.q_before) return null;
    const weights = decode(neuron.weights).data;
    let key = 0;
    for (let j = 1; j < weights.length; j++) if (weights[j] > weights[key]) key = j;
    const n = Math.min(PRODUCTS, size());
    const table = rotatedProducts(decode(neuron.q_before).data, at(decode(neuron.k_before), key).data, frequencies, n, scheme.pairing);
    const curve = byDistance(table, n);
    const { min, max } = extent(table);
    const reach = Math.max(Math.abs(min), Math.abs(max), 1e-9);
    const { diverging } = ctx.colours();
    const panel = mapPanel(ctx.t("products"), {
      key: "products", rows: n, columns: n, value: (/** @type {number} */ i, /** @type {number} */ j) => table[i * n + j],
      colour: (/** @type {number} */ value) => diverging(value / reach), maxCell: square(n),
      describe: (/** @type {Cell} */ { row: i, column: j, value }) => ctx.t("productCell", { i, j, d: j - i, value: number(value ?? 0, 4) }),
      rowAxis: { name: ctx.t("axis.query") }, columnAxis: { name: ctx.t("axis.key") },
    }, scale(reach));
    const about = ctx.t("productsAbout", {
      query: visibleText(queries[row].text), key: visibleText(keys[key].text), layer: state.layer, head: headOf(state), spread: curve.spread.toExponential(0),
    });
    panel.querySelector("h2")?.after(h("p", { class: "note", "data-part": "products" }, about));
    const chart = lineChart(ctx, curve.distance, curve.mean, (d, value) => ctx.t("distanceCell", { d, value: number(value, 4) }), ctx.t("productCurve"));
    return h("div", { class: "columns" }, panel, h("div", { class: "panel" }, h("h2", {}, ctx.t("productCurve")), chart));
  }

  /** @param {import("../types.js").State} state @param {any} scheme */
  function biases(state, scheme) {
    const { diverging, sequential } = ctx.colours();
    const distances = decode(scheme.distances).data;
    const bias = scheme.bias ? decode(scheme.bias) : null;
    const n = (distances.length + 1) / 2;
    const parts = [];
    if (scheme.bucket) {
      const bucket = decode(scheme.bucket).data;
      const { max } = extent(bucket);
      parts.push(
        mapPanel(ctx.t("bucketOf"), {
          key: "buckets", rows: n, columns: n, value: (/** @type {number} */ i, /** @type {number} */ j) => bucket[j - i + n - 1],
          colour: (/** @type {number} */ value) => sequential(value / Math.max(1, max)), maxCell: square(n),
          describe: (/** @type {Cell} */ { row, column, value }) => ctx.t("bucketCell", { d: column - row, bucket: value ?? 0 }),
          rowAxis: { name: ctx.t("axis.query") }, columnAxis: { name: ctx.t("axis.key") },
        }, legend((share) => sequential(share), 0, 1, ctx.t("bucket", { n: 0 }), ctx.t("bucket", { n: max }))),
      );
    }
    if (!bias) return [...parts, h("p", { class: "note" }, ctx.t("noBias"))];
    const { min, max } = extent(bias.data);
    const reach = Math.max(Math.abs(min), Math.abs(max), 1e-9);
    const heads = bias.shape[0];
    const head = Math.min(headOf(state), heads - 1);
    const colour = (/** @type {number} */ value) => diverging(value / reach);
    const mine = at(bias, head).data;
    const range = Math.max(...Array.from(mine, Math.abs), 1e-9);
    parts.push(
      mapPanel(
        ctx.t("biasByHead"),
        {
          key: "heads", rows: heads, columns: distances.length, value: (/** @type {number} */ h_, /** @type {number} */ d) => at(bias, h_).data[d], colour, cellHeight: 18,
          maxCell: 10, rowLabels: Array.from({ length: heads }, (_, h_) => String(h_)), marked: { row: head },
          rowAxis: { name: ctx.t("axis.head") }, columnAxis: { name: ctx.t("key"), text: (/** @type {number} */ d) => String(distances[d]).replace("-", "−") },
          describe: (/** @type {Cell} */ { row, column, value }) => ctx.t("biasCell", { h: row, d: distances[column], value: number(value ?? 0, 4) }),
          onSelect: (/** @type {Cell} */ cell) => ctx.select({ heads: [cell.row] }),
        },
        scale(reach),
      ),
      h(
        "div",
        { class: "columns" },
        mapPanel(ctx.t("biasMap", { head }), {
          key: "bias", rows: n, columns: n, value: (/** @type {number} */ i, /** @type {number} */ j) => mine[j - i + n - 1],
          colour: (/** @type {number} */ value) => diverging(value / range), maxCell: square(n),
          describe: (/** @type {Cell} */ { row, column, value }) => ctx.t("biasMapCell", { i: row, j: column, d: column - row, value: number(value ?? 0, 4) }),
          rowAxis: { name: ctx.t("axis.query") }, columnAxis: { name: ctx.t("axis.key") },
        }, scale(range)),
        h("div", { class: "panel" }, h("h2", {}, ctx.t("biasMap", { head })), lineChart(ctx, Array.from(distances), Array.from(mine), (d, value) => ctx.t("biasCell", { h: head, d, value: number(value, 4) }), ctx.t("biasMap", { head })), slopeList(scheme)),
      ),
    );
    return parts;
  }

  /** @param {any} scheme */
  function slopeList(scheme) {
    if (!scheme.slopes) return null;
    const slopes = Array.from(decode(scheme.slopes).data);
    return [h("h3", {}, ctx.t("slopes")), h("p", { class: "number note", "data-part": "slopes" }, slopes.map((slope) => number(slope, 4)).join(", "))];
  }

  /** @param {any} scheme */
  function disentangled(scheme) {
    const distances = decode(scheme.distances).data;
    const table = decode(scheme.similarity);
    const { diverging } = ctx.colours();
    const n = distances.length;
    const axis = { name: ctx.t("key"), text: (/** @type {number} */ d) => String(distances[d]).replace("-", "−") };
    const panel = mapPanel(ctx.t("relativeSimilarity"), {
      key: "similarity", rows: n, columns: n, value: (/** @type {number} */ i, /** @type {number} */ j) => at(table, i).data[j], colour: diverging,
      maxCell: square(n), maxHeight: 560, rowAxis: axis, columnAxis: axis,
      describe: (/** @type {Cell} */ { row, column, value }) => ctx.t("relativeCell", { i: distances[row], j: distances[column], value: number(value ?? 0, 4) }),
    }, scale(1));
    panel.querySelector("h2")?.after(h("p", { class: "note" }, ctx.t("relativeAbout")));
    return [panel];
  }

  /** The legend of a map with both signs. @param {number} reach the largest value */
  function scale(reach) {
    const { diverging } = ctx.colours();
    return legend((share) => diverging(share), -1, 1, number(-reach, 2), number(reach, 2));
  }

  return {
    /** @param {import("../types.js").State} state */
    update(state) {
      void draw(state);
    },
    destroy() {
      run += 1;
      for (const close of closing) close();
    },
    picture: () => stage,
  };
}

/**
 * The largest cell with which a square map is seen whole.
 * @param {number} n
 */
function square(n) {
  return Math.max(2, Math.min(14, Math.floor(420 / n)));
}

/**
 * A curve over distances, with the value under the pointer or the arrow keys.
 * @param {Ctx} ctx
 * @param {number[]} xs
 * @param {number[]} ys
 * @param {(x: number, y: number) => string} describe
 * @param {string} label
 */
export function lineChart(ctx, xs, ys, describe, label) {
  const colours = ctx.colours();
  const [width, height] = [420, 240];
  const { min, max } = extent(ys);
  const low = Math.min(0, min);
  const high = Math.max(0, max, low + 1e-9);
  const x = (/** @type {number} */ i) => 44 + (i / Math.max(1, xs.length - 1)) * (width - 60);
  const y = (/** @type {number} */ value) => 14 + ((high - value) / (high - low)) * (height - 48);
  const points = ys.map((value, i) => `${x(i).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  const dot = s("circle", { r: 4.5, fill: colours.accent, stroke: colours.panel, "stroke-width": 1.5, visibility: "hidden" });
  const text = { fill: colours.muted, "font-size": 11 };
  const svg = s(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, class: "positions-chart", tabindex: 0, role: "img", "aria-label": label },
    s("path", { d: `M44,${y(0)} H${width - 16} M${x((xs.length - 1) / 2)},14 V${height - 34}`, stroke: colours.line, fill: "none" }),
    s("polyline", { points, fill: "none", stroke: colours.heads[0], "stroke-width": 2 }),
    dot,
    s("text", { ...text, x: 40, y: y(high) + 4, "text-anchor": "end" }, number(high, 2)),
    s("text", { ...text, x: 40, y: y(low) + 4, "text-anchor": "end" }, low === 0 ? "0" : number(low, 2)),
    s("text", { ...text, x: 44, y: height - 16 }, String(xs[0]).replace("-", "−")),
    s("text", { ...text, x: width - 16, y: height - 16, "text-anchor": "end" }, String(xs[xs.length - 1])),
    s("text", { ...text, x: (width + 28) / 2, y: height - 4, "text-anchor": "middle" }, ctx.t("key")),
  );
  let index = Math.floor(xs.length / 2);
  /** @param {number} next @param {number} clientX @param {number} clientY */
  const show = (next, clientX, clientY) => {
    index = Math.max(0, Math.min(xs.length - 1, next));
    dot.setAttribute("cx", String(x(index)));
    dot.setAttribute("cy", String(y(ys[index])));
    dot.setAttribute("visibility", "visible");
    showTip(clientX, clientY, describe(xs[index], ys[index]));
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const along = ((event.clientX - box.left) / box.width) * width;
    show(Math.round(((along - 44) / (width - 60)) * (xs.length - 1)), event.clientX, event.clientY);
  });
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const box = svg.getBoundingClientRect();
    show(index + step, box.left + (x(index + step) / width) * box.width, box.top + box.height / 2);
    ctx.announce(describe(xs[index], ys[index]));
  });
  const leave = () => {
    dot.setAttribute("visibility", "hidden");
    hideTip();
  };
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  return svg;
}

/** @type {import("../types.js").View} */
export default {
  id: "positions",
  words,
  uses: ["text", "layer", "head"],
  supports: (model) => Boolean(model?.stacks.encoder || model?.stacks.decoder),
  mount,
};
