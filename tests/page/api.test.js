// @ts-check
import assert from "node:assert/strict";
import { deflateSync } from "node:zlib";
import test from "node:test";
import { ApiError, Stale, canonical, createClient, embeddedTransport, whileCurrent } from "../../glassformer/viewer/static/js/api.js";

test("the same question has the same text", () => {
  assert.equal(canonical({ b: 1, a: [true, null, { d: "你", c: 0.5 }] }), '{"a":[true,null,{"c":0.5,"d":"你"}],"b":1}');
  assert.equal(canonical({ a: undefined, b: 2 }), '{"b":2}');
});

/** A transport that answers when told to. */
function manual() {
  /** @type {{name: string, body: any, signal: AbortSignal, answer: (value: any) => void, refuse: (error: Error) => void}[]} */
  const calls = [];
  /** @type {import("../../glassformer/viewer/static/js/api.js").Transport} */
  const transport = (name, body, signal) =>
    new Promise((answer, refuse) => {
      calls.push({ name, body, signal, answer, refuse });
    });
  return { calls, transport };
}

test("equal questions share one call, also later", async () => {
  const { calls, transport } = manual();
  const client = createClient(transport);
  const [a, b] = [client.scope().ask("q", { x: 1 }, "q"), client.scope().ask("q", { x: 1 }, "q")];
  calls[0].answer(7);
  assert.deepEqual([await a, await b, await client.scope().ask("q", { x: 1 }, "q"), calls.length], [7, 7, 7, 1]);
});

test("a later call of the same slot replaces the earlier one", async () => {
  const { calls, transport } = manual();
  const view = createClient(transport).scope();
  const first = view.ask("q", { x: 1 }, "q");
  const second = view.ask("q", { x: 2 }, "q");
  const beside = view.ask("q", { x: 3 }, "other");
  await assert.rejects(first, Stale);
  assert.equal(calls[0].signal.aborted, true);
  calls[1].answer("two");
  calls[2].answer("three");
  assert.deepEqual([await second, await beside], ["two", "three"]);
});

test("a drawing that a later one has replaced takes no slot", async () => {
  const { calls, transport } = manual();
  const view = createClient(transport).scope();
  const ctx = { api: (/** @type {string} */ name, /** @type {any} */ params = {}) => view.ask(name, params, name) };
  let turn = 0;
  const draw = async (/** @type {number} */ layer) => {
    const mine = ++turn;
    const { api } = whileCurrent(ctx, () => mine === turn);
    await api("tokens", { layer: mine === 1 ? 0 : 1 });
    return api("weights", { layer });
  };
  const first = draw(1);
  calls[0].answer("tokens");
  const second = draw(2); // before the first has gone on to its second question
  calls[1].answer("tokens");
  await assert.rejects(first, Stale);
  await new Promise(setImmediate);
  assert.deepEqual(calls.map(({ name }) => name), ["tokens", "tokens", "weights"]);
  calls[2].answer("weights of 2");
  assert.equal(await second, "weights of 2");
});

test("a call that another view waits for goes on", async () => {
  const { calls, transport } = manual();
  const client = createClient(transport);
  const [one, two] = [client.scope(), client.scope()];
  const left = one.ask("q", {}, "q");
  const kept = two.ask("q", {}, "q");
  one.close();
  await assert.rejects(left, Stale);
  assert.equal(calls[0].signal.aborted, false);
  calls[0].answer(1);
  assert.equal(await kept, 1);
});

test("errors are not kept", async () => {
  const { calls, transport } = manual();
  const view = createClient(transport).scope();
  const failed = view.ask("q", {}, "q");
  calls[0].refuse(new ApiError("no", 400));
  await assert.rejects(failed, ApiError);
  const again = view.ask("q", {}, "q");
  calls[1].answer(5);
  assert.equal(await again, 5);
});

test("old answers make room for new ones", async () => {
  let count = 0;
  const client = createClient(async () => ++count, 3);
  const view = client.scope();
  for (const x of [1, 2, 3, 4, 5]) await view.ask("q", { x }, "q");
  await view.ask("q", { x: 5 }, "q");
  assert.equal(count, 5);
  await view.ask("q", { x: 1 }, "q");
  assert.equal(count, 6);
});

test("an exported page finds its answers and says what it lacks", async () => {
  const queries = { attention: { input: true, model: true, defaults: { heads: null, rows: null } }, activations: { input: false, model: false, defaults: {} } };
  const key = 'attention {"heads":null,"input":{"text":"a"},"kind":"decoder","layer":0,"model":0,"rows":null}';
  const packed = deflateSync(JSON.stringify({ deep: [1, "你"] })).toString("base64");
  const ask = embeddedTransport({ queries, answers: { [key]: packed, "activations {}": { curves: 3 } } });
  const signal = new AbortController().signal;
  assert.deepEqual(await ask("attention", { model: 0, input: { text: "a" }, kind: "decoder", layer: 0 }, signal), { deep: [1, "你"] });
  assert.deepEqual(await ask("activations", { model: 3, input: { text: "b" } }, signal), { curves: 3 });
  await assert.rejects(ask("attention", { model: 0, input: { text: "a" }, kind: "decoder", layer: 1 }, signal),
    (error) => error instanceof ApiError && error.missing);
});
