// @ts-check
// Saves what a view shows as an SVG or PNG file, with no help from a server.

import { h, s } from "./dom.js";

/** Properties that an SVG needs to look alike outside the page, where no style sheet applies. */
const SVG_STYLE = [
  "fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linecap", "opacity",
  "font-family", "font-size", "font-weight", "font-style", "text-anchor", "dominant-baseline", "display", "visibility",
  "image-rendering", "letter-spacing", "paint-order", "stroke-linejoin",
];

/**
 * A copy of an SVG whose style is in attributes.
 * @param {SVGElement} source attached to the page
 * @returns {SVGElement}
 */
export function standalone(source) {
  const copy = /** @type {SVGElement} */ (source.cloneNode(true));
  const from = [source, ...source.querySelectorAll("*")];
  const to = [copy, ...copy.querySelectorAll("*")];
  from.forEach((element, i) => {
    const style = getComputedStyle(element);
    const target = to[i];
    target.removeAttribute("class");
    target.removeAttribute("style");
    target.removeAttribute("tabindex");
    for (const name of SVG_STYLE) {
      const value = style.getPropertyValue(name);
      if (value && value !== "normal" && value !== "auto") target.setAttribute(name, value);
    }
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  return copy;
}

/** @param {string} colour */
const visible = (colour) => colour !== "transparent" && !/rgba\(.*, 0\)/.test(colour);

/**
 * Any part of the page as an SVG: boxes with background or border become rectangles, texts stay texts, canvases become
 * images, SVGs are nested.
 * @param {Element} root
 * @returns {SVGSVGElement}
 */
export function drawElement(root) {
  const frame = root.getBoundingClientRect();
  const wide = Math.ceil(Math.max(frame.width, root.scrollWidth));
  const high = Math.ceil(Math.max(frame.height, root.scrollHeight));
  const svg = s("svg", { xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 ${wide} ${high}`, width: wide, height: high });
  drawInto(svg, root, frame.left, frame.top);
  return svg;
}

/**
 * @param {SVGElement} svg
 * @param {Element} element
 * @param {number} x0
 * @param {number} y0
 */
function drawInto(svg, element, x0, y0) {
  const style = getComputedStyle(element);
  if (style.display === "none" || style.visibility === "hidden" || Number(style.opacity) === 0) return;
  if (element.classList.contains("visually-hidden") || element.classList.contains("no-picture")) return;
  const box = element.getBoundingClientRect();
  const x = box.left - x0;
  const y = box.top - y0;
  if (element instanceof SVGSVGElement) {
    const copy = standalone(element);
    for (const [name, value] of Object.entries({ x, y, width: box.width, height: box.height })) {
      copy.setAttribute(name, String(value));
    }
    if (!element.getAttribute("viewBox")) copy.setAttribute("viewBox", `0 0 ${box.width} ${box.height}`);
    svg.appendChild(copy);
    return;
  }
  drawBox(svg, style, x, y, box);
  if (element instanceof HTMLCanvasElement) {
    if (element.width && element.height && box.width) {
      const href = element.toDataURL();
      svg.appendChild(s("image", { x, y, width: box.width, height: box.height, href, preserveAspectRatio: "none" }));
    }
    return;
  }
  if (element instanceof HTMLInputElement || element instanceof HTMLTextAreaElement || element instanceof HTMLSelectElement) {
    const value = element instanceof HTMLSelectElement ? element.selectedOptions[0]?.text : element.value;
    const typed = element instanceof HTMLInputElement && ["range", "checkbox", "radio", "color"].includes(element.type);
    if (value && !typed) {
      const inner = { left: box.left + parseFloat(style.paddingLeft), top: box.top, height: box.height };
      drawText(svg, value, style, inner.left - x0, inner.top - y0 + inner.height / 2);
    }
    return;
  }
  for (const child of element.childNodes) {
    if (child instanceof Element) drawInto(svg, child, x0, y0);
    else if (child instanceof Text && child.data.trim()) drawLines(svg, child, style, x0, y0);
  }
}

/**
 * @param {SVGElement} svg
 * @param {CSSStyleDeclaration} style
 * @param {number} x
 * @param {number} y
 * @param {DOMRect} box
 */
function drawBox(svg, style, x, y, box) {
  const border = parseFloat(style.borderTopWidth) || 0;
  const around = border > 0 && style.borderTopStyle !== "none" && parseFloat(style.borderLeftWidth) > 0;
  const under = parseFloat(style.borderBottomWidth) || 0;
  if (visible(style.backgroundColor) || (around && visible(style.borderTopColor))) {
    svg.appendChild(
      s("rect", {
        x: x + border / 2, y: y + border / 2,
        width: Math.max(0, box.width - border), height: Math.max(0, box.height - border),
        rx: parseFloat(style.borderTopLeftRadius) || 0,
        fill: visible(style.backgroundColor) ? style.backgroundColor : "none",
        stroke: around ? style.borderTopColor : "none", "stroke-width": border, opacity: style.opacity,
      }),
    );
  }
  if (!around && under > 0 && visible(style.borderBottomColor)) {
    const level = y + box.height - under / 2;
    svg.appendChild(
      s("line", { x1: x, x2: x + box.width, y1: level, y2: level, stroke: style.borderBottomColor, "stroke-width": under }),
    );
  }
}

/**
 * Each line of a text, where the browser has put it.
 * @param {SVGElement} svg
 * @param {Text} node
 * @param {CSSStyleDeclaration} style
 * @param {number} x0
 * @param {number} y0
 */
function drawLines(svg, node, style, x0, y0) {
  const range = document.createRange();
  /** @type {{text: string, left: number, middle: number}[]} */
  const lines = [];
  const characters = Array.from(node.data);
  let offset = 0;
  for (const character of characters) {
    range.setStart(node, offset);
    offset += character.length;
    range.setEnd(node, offset);
    const box = range.getClientRects()[0];
    if (!box || !box.width) continue;
    const middle = (box.top + box.bottom) / 2;
    const line = lines.at(-1);
    if (line && Math.abs(line.middle - middle) < 3) line.text += character;
    else lines.push({ text: character, left: box.left, middle });
  }
  for (const { text, left, middle } of lines) drawText(svg, text, style, left - x0, middle - y0);
}

/**
 * @param {SVGElement} svg
 * @param {string} text
 * @param {CSSStyleDeclaration} style
 * @param {number} x
 * @param {number} y
 */
function drawText(svg, text, style, x, y) {
  const shown = style.textTransform === "uppercase" ? text.toUpperCase() : text;
  svg.appendChild(
    s("text", {
      x, y, "dominant-baseline": "central", fill: style.color, "font-family": style.fontFamily,
      "font-size": style.fontSize, "font-weight": style.fontWeight, "font-style": style.fontStyle, "xml:space": "preserve",
    }, shown),
  );
}

/**
 * A picture with a background, ready to be written to a file.
 * @param {Element} picture
 * @returns {SVGElement}
 */
export function finished(picture) {
  const paper = getComputedStyle(document.documentElement).getPropertyValue("--paper").trim() || "#ffffff";
  /** @type {SVGElement} */
  let svg;
  if (picture instanceof SVGSVGElement) {
    const holder = h("div", { class: "off-screen" });
    const loose = !picture.isConnected;
    if (loose) {
      holder.appendChild(picture);
      document.body.appendChild(holder);
    }
    const box = picture.getBoundingClientRect();
    svg = standalone(picture);
    if (!svg.getAttribute("viewBox")) svg.setAttribute("viewBox", `0 0 ${box.width} ${box.height}`);
    if (!svg.getAttribute("width")) svg.setAttribute("width", String(box.width));
    if (!svg.getAttribute("height")) svg.setAttribute("height", String(box.height));
    if (loose) holder.remove();
  } else if (picture instanceof HTMLCanvasElement) {
    const width = parseFloat(picture.style.width) || picture.width;
    const height = parseFloat(picture.style.height) || picture.height;
    svg = s("svg", { xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 ${width} ${height}`, width, height });
    svg.appendChild(s("image", { x: 0, y: 0, width, height, href: picture.toDataURL() }));
  } else {
    svg = drawElement(picture);
  }
  svg.insertBefore(s("rect", { x: 0, y: 0, width: "100%", height: "100%", fill: paper }), svg.firstChild);
  return svg;
}

/**
 * Characters that XML cannot hold would make the file unreadable.
 * @param {string} text
 */
export function cleanXml(text) {
  // eslint-disable-next-line no-control-regex
  return text.toWellFormed().replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd");
}

/** @param {SVGElement} svg */
export function svgText(svg) {
  return cleanXml(new XMLSerializer().serializeToString(svg));
}

/**
 * @param {SVGElement} svg
 * @returns {Promise<Blob>}
 */
export async function pngBlob(svg, scale = 2) {
  const width = parseFloat(svg.getAttribute("width") ?? "640");
  const height = parseFloat(svg.getAttribute("height") ?? "480");
  const image = new Image();
  await new Promise((resolve, reject) => {
    image.onload = resolve;
    image.onerror = () => reject(new Error("the picture cannot be drawn"));
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svgText(svg))}`; // notebooks may allow no blob: images
  });
  const factor = Math.min(scale, 8000 / Math.max(width, height, 1));
  const canvas = h("canvas", {});
  canvas.width = Math.max(1, Math.round(width * factor));
  canvas.height = Math.max(1, Math.round(height * factor));
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve, reject) => {
    canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("the picture is too large"))), "image/png");
  });
}

/**
 * @param {Blob} blob
 * @param {string} name
 */
export function download(blob, name) {
  const url = URL.createObjectURL(blob);
  const link = h("a", { href: url, download: name });
  document.body.appendChild(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

/**
 * @param {Element} picture
 * @param {"svg" | "png"} type
 * @param {string} name without ending
 */
export async function savePicture(picture, type, name) {
  const svg = finished(picture);
  if (type === "svg") download(new Blob([svgText(svg)], { type: "image/svg+xml" }), `${name}.svg`);
  else download(await pngBlob(svg), `${name}.png`);
}
