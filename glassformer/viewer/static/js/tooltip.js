// @ts-check
// One floating label for exact values.

import { append, h } from "./dom.js";

/** @type {HTMLElement | null} */
let tip = null;

/**
 * Show a label beside a point of the window.
 * @param {number} x
 * @param {number} y
 * @param {...(import("./dom.js").Child | import("./dom.js").Child[])} content
 */
export function showTip(x, y, ...content) {
  if (!tip || !tip.isConnected) {
    tip = h("div", { class: "tip", role: "presentation" });
    document.body.appendChild(tip);
  }
  tip.replaceChildren();
  append(tip, ...content);
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = x + 14 + width > innerWidth ? x - 14 - width : x + 14;
  const top = y + 18 + height > innerHeight ? y - 12 - height : y + 18;
  tip.style.setProperty("left", `${Math.max(4, left)}px`);
  tip.style.setProperty("top", `${Math.max(4, top)}px`);
}

export function hideTip() {
  if (tip) tip.hidden = true;
}
