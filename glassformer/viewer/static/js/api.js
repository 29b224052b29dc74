// @ts-check
// Questions to the model: over HTTP to the local server, or answered from what an exported page holds.

import { fromBase64 } from "./arrays.js";

/** A call that failed; its message is for the reader. */
export class ApiError extends Error {
  /**
   * @param {string} message in English
   * @param {number} status
   * @param {{code?: string | null, values?: Record<string, string | number>}} [said] the page's own sentence `error.CODE`
   */
  constructor(message, status, { code = null, values = {} } = {}) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.code = code;
    this.values = values;
  }

  /** Whether an exported page does not hold the answer. */
  get missing() {
    return this.code === "missing";
  }
}

/**
 * What to tell the reader about an error: in the page's language where it has words for it.
 * @param {unknown} error
 * @param {(key: string, values?: Record<string, string | number>) => string} t
 */
export function explained(error, t) {
  if (error instanceof ApiError && error.code) {
    const key = `error.${error.code}`;
    const said = t(key, error.values);
    if (said !== key) return said;
  }
  return error instanceof Error ? error.message : String(error);
}

/** A call that a later one has replaced: nobody waits for its answer. */
export class Stale extends Error {
  constructor() {
    super("a later call replaced this one");
    this.name = "Stale";
  }
}

/**
 * The context of one drawing: a drawing that a later one has replaced asks no more, for its question would take the slot of
 * the later one's and leave nothing on the page.
 * @template {{api: (name: string, params?: any, options?: any) => Promise<any>}} C
 * @param {C} ctx
 * @param {() => boolean} current whether no later drawing has begun
 * @returns {C}
 */
export function whileCurrent(ctx, current) {
  return { ...ctx, api: (name, params, options) => (current() ? ctx.api(name, params, options) : Promise.reject(new Stale())) };
}

/**
 * JSON with sorted keys at every depth: the same question has the same text.
 * @param {any} value
 * @returns {string}
 */
export function canonical(value) {
  if (Array.isArray(value)) return `[${value.map((item) => canonical(item ?? null)).join(",")}]`;
  if (value && typeof value === "object") {
    const keys = Object.keys(value).filter((key) => value[key] !== undefined).sort();
    return `{${keys.map((key) => `${JSON.stringify(key)}:${canonical(value[key])}`).join(",")}}`;
  }
  return JSON.stringify(value);
}

/** @typedef {(name: string, body: any, signal: AbortSignal) => Promise<any>} Transport */

/**
 * Asks the server that this page came from. The address of the page holds the token, and this one is relative to it.
 * @returns {Transport}
 */
export function serverTransport() {
  return async (name, body, signal) => {
    const answer = await fetch(`api/${name}`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
      signal,
      credentials: "same-origin",
      cache: "no-store",
    }).catch((error) => {
      if (signal.aborted) throw new Stale();
      throw new ApiError(`no answer from the server (${error.message})`, 0, { code: "server" });
    });
    const result = await answer.json().catch(() => {
      if (signal.aborted) throw new Stale();
      throw new ApiError(`the server answered ${answer.status} without JSON`, answer.status);
    });
    // What the reader typed may be refused in a good answer, so that the browser logs no error.
    if (!answer.ok || typeof result?.error === "string") throw new ApiError(String(result?.error ?? `status ${answer.status}`), answer.status, result ?? {});
    return result;
  };
}

/**
 * What an exported page holds: which parameters each query has, and the answers by question.
 * @typedef {object} Held
 * @property {Record<string, {input: boolean, model: boolean, defaults: Record<string, any>}>} queries
 * @property {Record<string, any>} answers a string is the JSON of an answer, deflated, in base64
 */

/**
 * The name under which an exported page holds an answer: parameters that the query ignores are left out, those that were
 * not given have their defaults.
 * @param {Held["queries"]} queries
 * @param {string} name
 * @param {any} body
 */
export function questionKey(queries, name, body) {
  const { input = true, model = true, defaults = {} } = queries[name] ?? {};
  const full = { ...defaults, ...body };
  if (!input) delete full.input;
  if (!model) delete full.model;
  return `${name} ${canonical(full)}`;
}

/**
 * Looks the answers up in the page itself.
 * @param {Held} held
 * @returns {Transport}
 */
export function embeddedTransport({ queries, answers }) {
  return async (name, body) => {
    const key = questionKey(queries, name, body);
    if (!Object.hasOwn(answers, key)) throw new ApiError("this file does not hold that answer", 404, { code: "missing" });
    const answer = answers[key];
    return typeof answer === "string" ? inflate(answer) : answer;
  };
}

/**
 * @param {string} text deflated JSON in base64
 * @returns {Promise<any>}
 */
export async function inflate(text) {
  const stream = new Blob([fromBase64(text)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).json();
}

/**
 * One client for the page: equal questions share one call, answers are kept for a while, stale calls are cancelled.
 * @param {Transport} transport
 * @param {number} [keep] how many answers to keep
 */
export function createClient(transport, keep = 96) {
  /** @type {Map<string, {promise: Promise<any>, controller: AbortController, waiting: number, done: boolean}>} */
  const calls = new Map();

  /** @param {string} key @param {string} name @param {any} body */
  function begin(key, name, body) {
    const controller = new AbortController();
    const call = { promise: Promise.resolve(), controller, waiting: 0, done: false };
    call.promise = transport(name, body, controller.signal).then(
      (answer) => {
        call.done = true;
        return answer;
      },
      (error) => {
        if (calls.get(key) === call) calls.delete(key);
        throw error;
      },
    );
    call.promise.catch(() => {}); // whoever waits handles it
    calls.set(key, call);
    for (const [old, { done }] of calls) {
      if (calls.size <= keep) break;
      if (done) calls.delete(old);
    }
    return call;
  }

  /**
   * A set of slots: one for the page and one for each mounted view.
   */
  function scope() {
    /** @type {Map<string, {leave: () => void, key: string}>} */
    const slots = new Map();
    return {
      /**
       * @param {string} name
       * @param {any} body
       * @param {string} slot
       * @returns {Promise<any>}
       */
      ask(name, body, slot) {
        const key = `${name} ${canonical(body)}`;
        const before = slots.get(slot);
        const known = calls.get(key);
        const call = known ?? begin(key, name, body);
        if (known) {
          calls.delete(key); // most recently used is last
          calls.set(key, known);
        }
        call.waiting += 1;
        before?.leave();
        return new Promise((resolve, reject) => {
          let here = true;
          const mine = {
            key,
            leave() {
              if (!here) return;
              here = false;
              call.waiting -= 1;
              if (!call.waiting && !call.done) {
                call.controller.abort();
                if (calls.get(key) === call) calls.delete(key);
              }
              reject(new Stale());
            },
          };
          const settle = (/** @type {(value: any) => void} */ how) => (/** @type {any} */ value) => {
            if (!here) return;
            here = false;
            call.waiting -= 1;
            if (slots.get(slot) === mine) slots.delete(slot);
            how(value);
          };
          slots.set(slot, mine);
          call.promise.then(settle(resolve), settle(reject));
        });
      },
      /** Leave every call that is still under way. */
      close() {
        for (const { leave } of [...slots.values()]) leave();
        slots.clear();
      },
      get busy() {
        return slots.size;
      },
    };
  }
  return { scope };
}
