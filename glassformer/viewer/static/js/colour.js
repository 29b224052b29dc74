// @ts-check
// Colours. The style sheet holds those of the page; maps from numbers to colours are here. All are chosen to be told
// apart with the common kinds of colour blindness, and no meaning hangs on colour alone.

/** @typedef {[number, number, number]} Rgb */

/** Twelve colours for heads, ordered so that neighbours differ in lightness too. */
export const HEADS_LIGHT = [
  "#0072b2", "#d55e00", "#009e73", "#aa3377", "#b8860b", "#332288",
  "#cc3311", "#117733", "#5b9bd5", "#882255", "#7a7a00", "#555555",
];
export const HEADS_DARK = [
  "#56b4e9", "#ff9e4a", "#2fd6a4", "#f07ac0", "#f0d04f", "#a79bff",
  "#ff7d66", "#7ed957", "#9fc9ff", "#d79cc5", "#c9c95a", "#bdbdbd",
];

/** From the paper to dark blue: zero fades into the page. */
const SEQUENTIAL_LIGHT = ["#fbfaf7", "#dcecdd", "#a5d3c6", "#5fb0bd", "#2c84ab", "#1d5590", "#14276a"];
/** From the panel to bright yellow, along viridis. */
const SEQUENTIAL_DARK = ["#171b22", "#2c2f5c", "#36508b", "#2a788e", "#2ba884", "#86d549", "#fde725"];
/** Negative orange, positive blue. */
const DIVERGING_LIGHT = ["#9a3c00", "#e08a4a", "#f6d7b8", "#fbfaf7", "#bcd8ee", "#4f9bd0", "#004b87"];
const DIVERGING_DARK = ["#ffb070", "#c96a24", "#5c3317", "#171b22", "#17405f", "#3b8ecb", "#9ad4ff"];

/**
 * @param {string} hex "#rrggbb"
 * @returns {Rgb}
 */
export function parseHex(hex) {
  const n = parseInt(hex.slice(1), 16);
  return [(n >> 16) & 255, (n >> 8) & 255, n & 255];
}

/** @param {Rgb} rgb */
export function css([r, g, b], alpha = 1) {
  return alpha === 1 ? `rgb(${r}, ${g}, ${b})` : `rgba(${r}, ${g}, ${b}, ${alpha})`;
}

/**
 * A map from 0…1 to a colour, through 256 prepared steps.
 * @param {string[]} stops
 * @returns {(share: number) => Rgb}
 */
export function ramp(stops) {
  const points = stops.map(parseHex);
  /** @type {Rgb[]} */
  const table = [];
  for (let i = 0; i < 256; i++) {
    const x = (i / 255) * (points.length - 1);
    const low = Math.min(Math.floor(x), points.length - 2);
    const part = x - low;
    const mix = (/** @type {number} */ c) => Math.round(points[low][c] * (1 - part) + points[low + 1][c] * part);
    table.push([mix(0), mix(1), mix(2)]);
  }
  return (share) => table[share > 0 ? Math.min(255, Math.round(share * 255)) : 0]; // NaN is the first
}

const MAPS = {
  light: { sequential: ramp(SEQUENTIAL_LIGHT), signed: ramp(DIVERGING_LIGHT) },
  dark: { sequential: ramp(SEQUENTIAL_DARK), signed: ramp(DIVERGING_DARK) },
};

/**
 * The colours of the theme that is shown now.
 * @returns {import("./types.js").Colours}
 */
export function colours() {
  const style = getComputedStyle(document.documentElement);
  const variable = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
  const dark = variable("--scheme") === "dark";
  const maps = dark ? MAPS.dark : MAPS.light;
  return {
    dark,
    paper: variable("--paper"),
    panel: variable("--panel"),
    ink: variable("--ink"),
    muted: variable("--muted"),
    line: variable("--line"),
    accent: variable("--accent"),
    accentSoft: variable("--accent-soft"),
    positive: variable("--positive"),
    negative: variable("--negative"),
    masked: variable("--masked"),
    heads: dark ? HEADS_DARK : HEADS_LIGHT,
    sequential: maps.sequential,
    diverging: (share) => maps.signed((share + 1) / 2),
  };
}

/**
 * The lightness (0 to 1) that the eye sees, for choosing black or white text on a colour.
 * @param {Rgb} rgb
 */
export function luminance([r, g, b]) {
  const linear = (/** @type {number} */ c) => (c <= 10.31475 ? c / 3294.6 : ((c / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
}

/** @param {Rgb} background */
export function inkOn(background) {
  return luminance(background) > 0.25 ? "#111418" : "#ffffff";
}
