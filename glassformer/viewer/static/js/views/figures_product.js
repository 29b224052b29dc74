// @ts-check
// Figure: one matrix product with its shapes, X · W = Y; the row and the column of any number of the result.

import { at, decode, number } from "../arrays.js";
import { heatMap } from "../canvas.js";
import { field, fill, h, segmented } from "../dom.js";
import { normOf } from "../mechanisms.js";
import { headOf, stackOf } from "../state.js";
import { reach, shape, sumText, tokenLabel } from "./figures_draw.js";

/** @type {import("./figures_types.js").Figure} */
export const product = {
  id: "product",
  supports: (model) => Boolean(model?.facts),
  mount(root, ctx) {
    const { t } = ctx;
    let turn = 0;
    /** @type {ReturnType<typeof heatMap>[]} */
    let maps = [];
    const names = segmented([["q", t("product.q")], ["k", t("product.k")], ["v", t("product.v")]], ctx.setting("matrix", "q"), (value) => ctx.set({ matrix: value }), t("product.which"));
    const body = h("div", {});
    const sum = h("p", { class: "arithmetic mono", role: "status" });
    fill(root, h("p", {}, t("product.text")), h("div", { class: "controls" }, field(t("product.which"), names)), body, sum);

    return {
      async update(state) {
        const mine = ++turn;
        const name = ctx.setting("matrix", "q");
        names.mark(name);
        const stack = /** @type {import("../types.js").Stack} */ (stackOf(ctx.model, state.kind));
        const head = headOf(state);
        const [tokens, answer] = await Promise.all([ctx.api("tokens"), ctx.api("product", { kind: state.kind, layer: state.layer, head, name })]);
        if (mine !== turn) return;
        const [x, w, y] = [decode(answer.x), decode(answer.w), decode(answer.y)];
        const bias = answer.bias ? decode(answer.bias).data : null;
        const rows = tokens[answer.keys === "encoder" ? "encoder" : "decoder"].slice(0, x.shape[0]).map(tokenLabel);
        const colours = ctx.colours();
        const [count, width] = x.shape;
        const size = w.shape[1];
        const signed = (/** @type {ArrayLike<number>} */ data) => {
          const most = reach(data);
          return (/** @type {number} */ value) => colours.diverging(value / most);
        };
        const show = (/** @type {number} */ row, /** @type {number} */ column) => {
          mapX.update({ marked: { row } });
          mapW.update({ marked: { column } });
          const weights = Float32Array.from({ length: width }, (_, i) => w.data[i * size + column]);
          const plus = bias ? ` ${t("product.bias", { value: number(bias[column], 3) })}` : "";
          const target = y.data[row * size + column];
          sum.textContent = `${name.toUpperCase()}[${rows[row]}, ${column}] = ${sumText(at(x, row).data, weights, target - (bias ? bias[column] : 0))}${plus ? `${plus} = ${number(target, 3)}` : ""}`;
        };
        const common = { colours, announce: ctx.announce };
        for (const map of maps) map.destroy();
        const mapX = heatMap({ ...common, rows: count, columns: width, value: (r, c) => x.data[r * width + c], colour: signed(x.data), label: t("product.x"), rowLabels: rows, minCell: 1.25, maxCell: 6, cellHeight: 14, maxHeight: 340 });
        const mapW = heatMap({ ...common, rows: width, columns: size, value: (r, c) => w.data[r * size + c], colour: signed(w.data), label: t("product.w"), minCell: 3, maxCell: 6, cellHeight: Math.max(1, Math.min(4, 340 / width)), maxHeight: 340 });
        const mapY = heatMap({
          ...common, rows: count, columns: size, value: (r, c) => y.data[r * size + c], colour: signed(y.data), label: t("product.y"), rowLabels: rows, minCell: 3, maxCell: 8, cellHeight: 14, maxHeight: 340,
          onHover: (cell) => cell && show(cell.row, cell.column),
          describe: ({ row, column, value }) => `${name.toUpperCase()}[${rows[row]}, ${column}] = ${number(value ?? 0, 4)}`,
        });
        maps = [mapX, mapW, mapY];
        const sub = h("sub", {}, name);
        fill(body,
          h("div", { class: bias ? "product with-bias" : "product" },
            h("figure", { class: "part" }, h("figcaption", {}, "X"), mapX.element, shape(count, width)),
            h("span", { class: "op" }, "·"),
            h("figure", { class: "part" }, h("figcaption", {}, h("span", {}, "W", sub)), mapW.element, shape(width, size)),
            bias ? [h("span", { class: "op" }, "+"), h("figure", { class: "part" }, h("figcaption", {}, "b"), h("div", { class: "blank-vector" }), shape(size))] : null,
            h("span", { class: "op" }, "="),
            h("figure", { class: "part" }, h("figcaption", {}, name.toUpperCase()), mapY.element, shape(count, size))),
          h("p", { class: "note" }, t("product.rule", { x: `${count} × ${width}`, w: `${width} × ${size}`, y: `${count} × ${size}`, inner: width })),
          stack.qk_norm && name !== "v" ? h("p", { class: "note" }, t("product.norm", { norm: normOf({ kind: stack.qk_norm }).name })) : null,
          answer.groups > 1 ? h("p", { class: "note" }, t("product.grouped", { groups: answer.groups })) : null,
          h("p", { class: "note" }, t("product.flops", { flops: (2 * count * width * size).toLocaleString("en"), m: count, n: width, p: size, heads: stack.heads })));
        for (const map of maps) map.update({});
        show(Math.min(1, count - 1), 0);
      },
      destroy() {
        turn += 1;
        for (const map of maps) map.destroy();
      },
      picture: () => body,
    };
  },
};
