// @ts-check
// The log of a run as the page gathers it: the server sends the lines that are new, this module adds them up.

import { decode } from "../arrays.js";

/** @typedef {{step: number, number: number, text: string}} Sample */
/** @typedef {{step: number, loss?: number, best?: boolean, [metric: string]: any}} Validation */

export const COLUMNS = ["loss", "lr", "grad_norm", "tokens_seen", "tokens_per_second"];

/** The lines of one run. */
export class RunData {
  constructor() {
    /** @type {number | null} */
    this.file = null;
    this.next = 0;
    /** @type {number[]} */
    this.steps = [];
    /** @type {Record<string, number[]>} */
    this.values = Object.fromEntries(COLUMNS.map((name) => [name, []]));
    /** @type {Validation[]} */
    this.validation = [];
    /** @type {Sample[]} */
    this.samples = [];
    /** @type {{step: number, best: boolean}[]} */
    this.checkpoints = [];
  }

  clear() {
    this.steps = [];
    this.values = Object.fromEntries(COLUMNS.map((name) => [name, []]));
    this.validation = [];
    this.samples = [];
    this.checkpoints = [];
  }

  /**
   * Add an answer of `run_log`.
   * @param {any} answer
   * @returns {boolean} whether anything is new
   */
  add(answer) {
    if (answer.again) this.clear();
    this.file = answer.file;
    this.next = answer.next;
    const steps = decode(answer.steps).data;
    for (const step of steps) this.steps.push(step);
    for (const name of COLUMNS) {
      const column = decode(answer.values[name]).data;
      for (const value of column) this.values[name].push(value);
    }
    this.validation.push(...answer.validation);
    this.samples.push(...answer.samples);
    this.checkpoints.push(...answer.checkpoints);
    return answer.again || steps.length > 0 || answer.validation.length > 0 || answer.samples.length > 0;
  }

  /** What the next question must say. */
  get cursor() {
    return { after: this.next, file: this.file };
  }

  /** The best validation: the last that is marked, else the lowest. */
  get best() {
    const finite = this.validation.filter(({ loss }) => typeof loss === "number");
    const marked = finite.filter(({ best }) => best);
    if (marked.length) return marked[marked.length - 1];
    return finite.reduce((/** @type {Validation | null} */ low, one) => (!low || Number(one.loss) < Number(low.loss) ? one : low), null);
  }
}

/**
 * A time as people say it: 95 → "1 min 35 s".
 * @param {number} seconds
 */
export function duration(seconds) {
  if (seconds < 60) return `${seconds < 10 ? Number(seconds.toFixed(1)) : Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/**
 * A count in short: 12345678 → "12.3 M".
 * @param {number} value
 */
export function short(value) {
  for (const [size, unit] of /** @type {[number, string][]} */ ([[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])) {
    if (Math.abs(value) >= size) return `${Number((value / size).toPrecision(3))} ${unit}`;
  }
  return String(Number(value.toPrecision(3)));
}
