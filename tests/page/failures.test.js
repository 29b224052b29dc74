// @ts-check
import assert from "node:assert/strict";
import test from "node:test";
import { ApiError, embeddedTransport, explained } from "../../glassformer/viewer/static/js/api.js";
import { createFailures } from "../../glassformer/viewer/static/js/failures.js";
import { PAGE, translator } from "../../glassformer/viewer/static/js/i18n.js";

test("a failure stays until the same call succeeds", () => {
  /** @type {(string | null)[]} */
  const shown = [];
  const failures = createFailures((error) => shown.push(error && error.message));
  failures.add("view steps", new Error("steps"));
  failures.remove("page count"); // which has not failed
  assert.deepEqual(shown, ["steps"]);
  failures.add("view lens", new Error("lens"));
  failures.remove("view steps");
  assert.equal(shown.at(-1), "lens");
  failures.remove("view lens");
  assert.equal(shown.at(-1), null);
  failures.add("view steps", new Error("again"));
  failures.clear();
  assert.equal(shown.at(-1), null);
});

test("an error is said in the page's language", async () => {
  const long = new ApiError("the text has 2000 tokens", 400, { code: "long", values: { tokens: 2000, longest: 1024 } });
  assert.match(explained(long, translator("en", PAGE)), /2000 tokens.*1024/);
  assert.match(explained(long, translator("zh", PAGE)), /2000 个词元.*1024/);
  assert.equal(explained(new ApiError("something else", 400), translator("zh", PAGE)), "something else");
  assert.equal(explained(new ApiError("something new", 400, { code: "unheard" }), translator("zh", PAGE)), "something new");
  const missing = await embeddedTransport({ queries: {}, answers: {} })("q", {}, new AbortController().signal).catch((error) => error);
  assert.deepEqual([missing.missing, explained(missing, translator("zh", PAGE))], [true, PAGE.zh["error.missing"]]);
});
