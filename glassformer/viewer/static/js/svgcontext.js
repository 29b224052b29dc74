// @ts-check
// Draws into an SVG what is otherwise drawn on a canvas: the few methods of a canvas context that such drawings use.

import { s } from "./dom.js";

const ANCHORS = { left: "start", start: "start", center: "middle", right: "end", end: "end" };

export class SvgContext {
  /**
   * @param {number} width
   * @param {number} height
   */
  constructor(width, height) {
    this.svg = s("svg", { viewBox: `0 0 ${width} ${height}`, width, height });
    this.fillStyle = "#000";
    this.strokeStyle = "#000";
    this.lineWidth = 1;
    this.globalAlpha = 1;
    this.font = "12px sans-serif";
    this.textAlign = "start";
    this.textBaseline = "alphabetic";
    this.imageSmoothingEnabled = true;
    this.path = "";
    this.ruler = /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d"));
  }

  /** This context for functions that take one of a canvas. */
  asCanvas() {
    return /** @type {CanvasRenderingContext2D} */ (/** @type {unknown} */ (this));
  }

  /**
   * @param {number} x
   * @param {number} y
   * @param {number} width
   * @param {number} height
   */
  fillRect(x, y, width, height) {
    this.svg.appendChild(s("rect", { x, y, width, height, fill: this.fillStyle, opacity: this.globalAlpha }));
  }

  /**
   * @param {number} x
   * @param {number} y
   * @param {number} width
   * @param {number} height
   */
  strokeRect(x, y, width, height) {
    const stroke = { fill: "none", stroke: this.strokeStyle, "stroke-width": this.lineWidth, opacity: this.globalAlpha };
    this.svg.appendChild(s("rect", { x, y, width, height, ...stroke }));
  }

  /**
   * @param {HTMLCanvasElement} image
   * @param {number} x
   * @param {number} y
   * @param {number} width
   * @param {number} height
   */
  drawImage(image, x, y, width, height) {
    const style = { "image-rendering": this.imageSmoothingEnabled ? "auto" : "pixelated" };
    const href = image.toDataURL();
    this.svg.appendChild(s("image", { x, y, width, height, href, preserveAspectRatio: "none", opacity: this.globalAlpha, style }));
  }

  /**
   * @param {string} text
   * @param {number} x
   * @param {number} y
   */
  fillText(text, x, y) {
    const match = /^(?:(\w+) )?([\d.]+)px (.*)$/.exec(this.font);
    this.svg.appendChild(
      s("text", {
        x, y, fill: this.fillStyle, opacity: this.globalAlpha, "font-size": match?.[2] ?? 12, "font-family": match?.[3] ?? "sans-serif",
        "font-weight": match?.[1] ?? "normal", "text-anchor": ANCHORS[/** @type {keyof typeof ANCHORS} */ (this.textAlign)],
        "dominant-baseline": this.textBaseline === "middle" ? "central" : "auto",
      }, text),
    );
  }

  /** @param {string} text */
  measureText(text) {
    this.ruler.font = this.font;
    return this.ruler.measureText(text);
  }

  beginPath() {
    this.path = "";
  }

  /**
   * @param {number} x
   * @param {number} y
   */
  moveTo(x, y) {
    this.path += `M${x} ${y}`;
  }

  /**
   * @param {number} x
   * @param {number} y
   */
  lineTo(x, y) {
    this.path += `L${x} ${y}`;
  }

  stroke() {
    const stroke = { fill: "none", stroke: this.strokeStyle, "stroke-width": this.lineWidth, opacity: this.globalAlpha };
    this.svg.appendChild(s("path", { d: this.path, ...stroke }));
  }
}
