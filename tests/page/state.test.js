// @ts-check
import assert from "node:assert/strict";
import test from "node:test";
import { baseState, createStore, differences, emptyState, format, kindsOf, normalise, parse, sublayerOf } from "../../glassformer/viewer/static/js/state.js";
import { MODEL, TRANSLATOR } from "./models.js";

test("an address and its state are the same", () => {
  const base = baseState(TRANSLATOR, "heads");
  /** @type {import("../../glassformer/viewer/static/js/types.js").State} */
  const state = {
    ...base, view: "grid", text: "a & b = c # 50% 你好 </script>", target: "x", kind: "encoder", layer: 2, heads: [0, 3], pins: [7, 1],
    ablate: [["decoder.cross", 1, 2], ["encoder.attention", 0, 0]], lang: "zh", theme: "dark", x: { "heads.mode": "sum", "grid.pattern": "previous" },
  };
  const back = { ...base, ...parse(format(state, base)) };
  assert.deepEqual(back, state);
});

test("an address says only what differs", () => {
  const base = baseState(MODEL, "heads");
  assert.equal(format(base, base), "#view=heads");
  assert.equal(format({ ...base, layer: 1 }, base), "#view=heads&layer=1");
});

test("an empty text is kept apart from the model's own example", () => {
  const base = baseState(MODEL, "heads");
  assert.equal(parse(format({ ...base, text: "" }, base)).text, "");
});

test("nonsense in an address is left out", () => {
  const hostile = "#layer=-1&heads=1.x.2&pins=..&kind=sideways&lang=xx&theme=pink&model=1e9&x.a.b.c=1&__proto__=1&ablate=decoder.cross-1~x-1-2&layer=99999";
  assert.deepEqual(parse(hostile), { heads: [1, 2], pins: [], ablate: [] });
  assert.equal(/** @type {any} */ ({}).polluted, undefined);
});

test("a state is brought to what the model has", () => {
  const state = { ...emptyState(), kind: /** @type {const} */ ("cross"), layer: 99, heads: [5, 1, 1, 77], pins: [2, 2], text_b: "" };
  const shown = normalise(state, MODEL);
  assert.deepEqual([shown.kind, shown.layer, shown.heads, shown.pins, shown.text_b], ["decoder", 3, [1], [2], null]);
  assert.deepEqual(normalise({ ...state, heads: [] }, MODEL).heads, [0, 1, 2, 3]);
});

test("kinds of attention", () => {
  assert.deepEqual(kindsOf(MODEL), ["decoder"]);
  assert.deepEqual(kindsOf(TRANSLATOR), ["encoder", "decoder", "cross"]);
  assert.deepEqual(kindsOf(null), []);
  assert.equal(baseState(TRANSLATOR, "").kind, "cross");
  assert.equal(sublayerOf("cross"), "decoder.cross");
});

test("listeners hear what changed, once", () => {
  const store = createStore(emptyState());
  /** @type {string[][]} */
  const heard = [];
  store.subscribe((_, changed) => heard.push([...changed]));
  store.set({ ...store.get(), layer: 2, pins: [1] });
  store.set({ ...store.get() });
  assert.deepEqual(heard, [["layer", "pins"]]);
  assert.deepEqual(differences(emptyState(), emptyState()), new Set());
});
