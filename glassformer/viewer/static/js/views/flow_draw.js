// @ts-check
// The pieces that Flow's pictures are made of: vectors as strips of colour, boxes that open, tables of costs.

import { number } from "../arrays.js";
import { fit, pixels, sharp, FONT } from "../canvas.js";
import { css, parseHex } from "../colour.js";
import { eachFrame, h, s } from "../dom.js";
import { hideTip, showTip } from "../tooltip.js";
import { full, short } from "./flow_parts.js";

/** @typedef {import("../types.js").Ctx} Ctx */
/** @typedef {import("./flow_parts.js").Cost} Cost */

/**
 * A coordinate that several vectors show together.
 * @param {number} index
 */
export function createCursor(index = 0) {
  /** @type {Set<(index: number) => void>} */
  const listeners = new Set();
  return {
    get index() {
      return index;
    },
    /** @param {number} next */
    set(next) {
      if (next === index) return;
      index = next;
      for (const listener of listeners) listener(index);
    },
    /** @param {(index: number) => void} listener */
    listen(listener) {
      listeners.add(listener);
      listener(index);
    },
  };
}

/** @typedef {ReturnType<typeof createCursor>} Cursor */

/**
 * A vector as a strip of colours: blue above zero, orange below. Arrow keys or the pointer choose a coordinate.
 * @param {Ctx} ctx
 * @param {object} options
 * @param {string} options.name
 * @param {ArrayLike<number>} options.values
 * @param {number} options.reach the value with the strongest colour
 * @param {Cursor} [options.cursor]
 * @param {number} [options.height]
 * @param {{from: number, to: number, colour: string}[]} [options.parts] coordinates with a coloured line below them
 * @param {string} [options.key] for tests
 */
export function vector(ctx, { name, values, reach, cursor = createCursor(), height = 20, parts = [], key }) {
  const count = values.length;
  const canvas = h("canvas", { tabindex: 0, role: "slider", "aria-label": name, "aria-valuemin": 0, "aria-valuemax": count - 1 });
  if (key) canvas.dataset.vector = key;
  const low = parts.length ? 4 : 0;
  const frame = h("div", { class: "flow-canvas", style: { height: `${height + low}px` } }, canvas);
  const element = h("div", { class: "flow-vector" }, h("span", { class: "name" }, name), frame, h("span", { class: "size" }, full(count)));
  let width = 0;
  /** @type {HTMLCanvasElement | null} */
  let image = null;

  const say = (/** @type {number} */ index) => `${name}[${index}] = ${number(values[index], 4)}`;

  function draw() {
    width = frame.clientWidth;
    if (!width) return;
    const colours = ctx.colours();
    image ??= pixels(1, count, (_, i) => colours.diverging(values[i] / reach));
    const context = sharp(canvas, width, height + low);
    context.imageSmoothingEnabled = false;
    context.drawImage(image, 0, 0, width, height);
    const cell = width / count;
    if (cell >= 7) {
      context.strokeStyle = colours.panel;
      context.beginPath();
      for (let i = 1; i < count; i++) {
        context.moveTo(i * cell, 0);
        context.lineTo(i * cell, height);
      }
      context.stroke();
    }
    for (const part of parts) {
      context.fillStyle = part.colour;
      context.fillRect(part.from * cell + 1, height + 1, (part.to - part.from) * cell - 2, 3);
    }
    const at = cursor.index;
    if (at < count) {
      context.strokeStyle = colours.ink;
      context.lineWidth = 1.5;
      context.strokeRect(Math.min(width - 3, at * cell), 0.75, Math.max(cell, 3), height - 1.5);
    }
  }

  /** @param {PointerEvent} event */
  const indexAt = (event) => {
    const box = canvas.getBoundingClientRect();
    return Math.max(0, Math.min(count - 1, Math.floor(((event.clientX - box.left) / box.width) * count)));
  };
  canvas.addEventListener("pointermove", (event) => {
    const index = indexAt(event);
    cursor.set(index);
    showTip(event.clientX, event.clientY, say(index));
  });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("blur", hideTip);
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowUp: 1, ArrowDown: -1, PageUp: 10, PageDown: -10 }[event.key];
    let next = cursor.index + (step ?? 0);
    if (event.key === "Home") next = 0;
    else if (event.key === "End") next = count - 1;
    else if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    cursor.set(Math.max(0, Math.min(count - 1, next)));
    const box = canvas.getBoundingClientRect();
    showTip(box.left + (cursor.index / count) * box.width, box.bottom, say(cursor.index));
  });
  const redraw = eachFrame(draw);
  cursor.listen((index) => {
    if (index < count) {
      canvas.setAttribute("aria-valuenow", String(index));
      canvas.setAttribute("aria-valuetext", say(index));
    }
    redraw();
  });
  new ResizeObserver(() => redraw()).observe(frame);
  return element;
}

/**
 * A vector as an image inside an SVG.
 * @param {Ctx} ctx
 * @param {ArrayLike<number>} values
 * @param {number} reach
 * @param {{x: number, y: number, width: number, height: number}} box
 * @param {string} name
 */
export function svgVector(ctx, values, reach, box, name) {
  const { diverging, line } = ctx.colours();
  const image = pixels(1, values.length, (_, i) => diverging(values[i] / reach));
  const frame = s("rect", { ...box, rx: 3, fill: "none", stroke: line });
  const href = image.toDataURL();
  const picture = s("image", { ...box, href, preserveAspectRatio: "none", "image-rendering": "pixelated" });
  const group = s("g", { class: "flow-strip", role: "img", "aria-label": `${name}, ${values.length}` }, picture, frame);
  group.addEventListener("pointermove", (event) => {
    const at = picture.getBoundingClientRect();
    const index = Math.max(0, Math.min(values.length - 1, Math.floor(((event.clientX - at.left) / at.width) * values.length)));
    showTip(event.clientX, event.clientY, `${name}[${index}] = ${number(values[index], 4)}`);
  });
  group.addEventListener("pointerleave", hideTip);
  return group;
}

/** @type {CanvasRenderingContext2D | null} */
let measuring = null;

/** @param {number} size @param {number} weight */
function ruler(size, weight) {
  measuring ??= /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d"));
  measuring.font = `${weight} ${size}px ${FONT}`;
  return measuring;
}

/**
 * A text short enough for a width, in the page's font.
 * @param {string} text
 * @param {number} width
 * @param {number} [size]
 * @param {number} [weight]
 */
export function fitted(text, width, size = 12, weight = 400) {
  return fit(ruler(size, weight), text, width);
}

/**
 * A text in lines that fit a width, broken between words; what a last line that may not be followed cannot hold is cut.
 * @param {string} text
 * @param {number} width
 * @param {number} [size]
 * @param {number} [most] lines
 */
export function wrapped(text, width, size = 12, most = Infinity) {
  /** @type {string[]} */
  const lines = [];
  for (const word of text.split(" ")) {
    const longer = `${lines.at(-1)} ${word}`;
    if (lines.length && (lines.length === most || textWidth(longer, size) <= width)) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines.map((line) => fitted(line, width, size));
}

/**
 * @param {string} text
 * @param {number} [size]
 * @param {number} [weight]
 */
export function textWidth(text, size = 12, weight = 400) {
  return ruler(size, weight).measureText(text).width;
}

/**
 * A colour with transparency.
 * @param {string} hex "#rrggbb"
 * @param {number} alpha
 */
export function tint(hex, alpha) {
  return css(parseHex(hex), alpha);
}

/**
 * The colours of the parts of a model.
 * @param {Ctx} ctx
 */
export function partColours(ctx) {
  const { heads } = ctx.colours();
  return { attention: heads[0], cross: heads[2], ffn: heads[1], convolution: heads[4], embed: heads[5], head: heads[3], norm: heads[11] };
}

/**
 * A box that opens by click, Enter or space.
 * @param {object} options
 * @param {number} options.x
 * @param {number} options.y
 * @param {number} options.width
 * @param {number} options.height
 * @param {string} options.colour "#rrggbb"
 * @param {string} options.label what it is, for screen readers
 * @param {string} [options.key] which box it is
 * @param {(() => void) | null} [options.onOpen] null: it does not open
 * @param {string | null} [options.tip]
 * @param {string} [options.title]
 * @param {string[]} [options.lines]
 * @param {number} [options.rx]
 * @param {...(Element | Element[] | null)} children
 */
export function box({ x, y, width, height, colour, label, key, onOpen, tip, title, lines = [], rx = 10 }, ...children) {
  const group = s("g", { class: onOpen ? "flow-box" : "flow-still", "data-box": key });
  if (onOpen) {
    const go = onOpen;
    group.setAttribute("role", "button");
    group.setAttribute("tabindex", "0");
    group.setAttribute("aria-label", label);
    group.addEventListener("click", () => {
      hideTip();
      go();
    });
    group.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      event.stopPropagation();
      go();
    });
  }
  if (tip) {
    group.addEventListener("pointermove", (event) => showTip(event.clientX, event.clientY, tip));
    group.addEventListener("pointerleave", hideTip);
  }
  const fill = tint(colour, 0.1);
  group.append(s("rect", { class: "frame", x, y, width, height, rx, fill, stroke: colour, "stroke-width": 1.5 }));
  let line = y + 20;
  if (title) {
    group.append(
      s("text", { x: x + 12, y: line, "font-size": 13.5, "font-weight": 600 }, fitted(title, width - 20, 13.5, 600)),
    );
    line += 17;
  }
  for (const text of lines) {
    group.append(s("text", { x: x + 12, y: line, "font-size": 11.5, class: "quiet" }, fitted(text, width - 20, 11.5)));
    line += 15;
  }
  for (const child of children.flat()) if (child) group.append(child);
  return group;
}

/**
 * An arrow along points.
 * @param {string} path
 * @param {string} colour
 * @param {number} [width]
 */
export function arrow(path, colour, width = 2) {
  const line = s("path", { d: path, fill: "none", stroke: colour, "stroke-width": width, "stroke-linecap": "round" });
  const numbers = (path.match(/-?[\d.]+/g) ?? []).map(Number);
  const [x1, y1, x2, y2] = numbers.slice(-4);
  const angle = Math.atan2(y2 - y1, x2 - x1);
  const point = (/** @type {number} */ turn, /** @type {number} */ size) =>
    `${x2 + Math.cos(angle + turn) * size},${y2 + Math.sin(angle + turn) * size}`;
  const size = 5 + width;
  const head = s("polygon", { points: `${point(0, 1)} ${point(2.6, size)} ${point(-2.6, size)}`, fill: colour });
  return s("g", { "aria-hidden": "true" }, line, head);
}

/**
 * The circle where a branch is added to the residual stream.
 * @param {number} x
 * @param {number} y
 * @param {string} colour
 * @param {string} paper
 */
export function plus(x, y, colour, paper) {
  return s(
    "g",
    { "aria-hidden": "true", stroke: colour, "stroke-width": 2 },
    s("circle", { cx: x, cy: y, r: 10, fill: paper }),
    s("line", { x1: x - 5, x2: x + 5, y1: y, y2: y }),
    s("line", { x1: x, x2: x, y1: y - 5, y2: y + 5 }),
  );
}

/**
 * The heads of attention as squares: queries above, the key heads that they share below.
 * @param {Ctx} ctx
 * @param {any} stack
 * @param {{x: number, y: number, width: number, size: number}} place
 * @param {number | null} chosen
 */
export function headSquares(ctx, stack, { x, y, width, size }, chosen) {
  const colours = ctx.colours();
  const side = Math.max(4, Math.min(size, Math.floor(width / stack.heads) - 3));
  const shown = Math.min(stack.heads, Math.max(1, Math.floor(width / (side + 3))));
  const group = s("g", { "aria-hidden": "true" });
  for (let head = 0; head < shown; head++) {
    const colour = colours.heads[head % 12];
    const mine = head === chosen;
    group.append(
      s("rect", {
        x: x + head * (side + 3), y, width: side, height: side, rx: 2,
        fill: mine ? colour : tint(colour, 0.45), stroke: mine ? colours.ink : colour, "stroke-width": mine ? 2 : 1,
      }),
    );
  }
  if (shown < stack.heads) {
    group.append(s("text", { x: x + shown * (side + 3) + 1, y: y + side - 1, "font-size": 11, class: "quiet" }, "…"));
  }
  if (stack.kv_heads === stack.heads) return group;
  const each = stack.heads / stack.kv_heads;
  for (let key = 0; key * each < shown; key++) {
    const from = x + key * each * (side + 3);
    const to = x + Math.min(shown, (key + 1) * each) * (side + 3) - 3;
    const middle = (from + to) / 2;
    const fill = tint(colours.heads[(key * each) % 12], 0.45);
    group.append(
      s("path", { d: `M${from},${y + side + 2} v3 H${to} v-3 M${middle},${y + side + 5} v3`, fill: "none", stroke: colours.muted }),
      s("rect", { x: middle - side / 2, y: y + side + 8, width: side, height: side * 0.7, rx: 2, fill, stroke: colours.muted }),
    );
  }
  return group;
}

/**
 * A feed-forward network as it widens and narrows; a gated one has two ways in.
 * @param {any} stack
 * @param {{x: number, y: number, width: number, height: number}} place
 * @param {string} colour
 */
export function funnel(stack, { x, y, width, height }, colour) {
  const group = s("g", { "aria-hidden": "true" });
  const ratio = Math.min(1, Math.max(0.25, stack.width / stack.ffn.hidden));
  const small = Math.max(10, width * ratio);
  const middle = height * 0.5;
  /** @param {number} left @param {number} wide @param {number} narrow @param {number} top @param {number} bottom @param {boolean} down */
  const shape = (left, wide, narrow, top, bottom, down) => {
    const inset = (wide - narrow) / 2;
    const points = down
      ? `${left},${top} ${left + wide},${top} ${left + wide - inset},${bottom} ${left + inset},${bottom}`
      : `${left + inset},${top} ${left + wide - inset},${top} ${left + wide},${bottom} ${left},${bottom}`;
    return s("polygon", { points, fill: tint(colour, 0.4), stroke: colour });
  };
  if (stack.ffn.gated) {
    const half = (width - 14) / 2;
    const inside = Math.max(8, half * ratio);
    group.append(
      shape(x, half, inside, y, y + middle - 4, false),
      shape(x + half + 14, half, inside, y, y + middle - 4, false),
      s("text", { x: x + width / 2, y: y + middle - 4, "text-anchor": "middle", "font-size": 13 }, "×"),
    );
  } else {
    group.append(shape(x, width, small, y, y + middle - 4, false));
  }
  group.append(shape(x, width, small, y + middle + 4, y + height, true));
  return group;
}

/**
 * "1.05 M parameters · 4.19 MB · 33.6 MFLOP"
 * @param {Ctx} ctx
 * @param {Cost | null} cost
 */
export function costText(ctx, cost) {
  if (!cost) return "";
  const parts = [];
  if (cost.parameters) parts.push(ctx.t("parameters", { n: short(cost.parameters) }), short(cost.bytes, "B"));
  if (cost.flops) parts.push(short(cost.flops, "FLOP"));
  return parts.join(" · ");
}

/**
 * The exact numbers of a cost.
 * @param {Ctx} ctx
 * @param {Cost | null} cost
 */
export function costTip(ctx, cost) {
  if (!cost) return null;
  return ctx.t("costTip", { parameters: full(cost.parameters), bytes: full(cost.bytes), flops: full(cost.flops) });
}

/**
 * A table of what the inner parts cost, with their share of the FLOPs as a bar.
 * @param {Ctx} ctx
 * @param {string} caption
 * @param {{name: string, cost: Cost | null, key?: string}[]} rows
 * @param {Cost | null} total
 */
export function costTable(ctx, caption, rows, total) {
  const known = rows.filter((row) => row.cost);
  const whole = total?.flops || known.reduce((sum, row) => sum + (row.cost?.flops ?? 0), 0) || 1;
  const line = (/** @type {string} */ name, /** @type {Cost} */ cost, /** @type {string | undefined} */ key) =>
    h(
      "tr",
      { "data-cost": key ?? name, title: costTip(ctx, cost) },
      h("th", { scope: "row" }, name, h("span", { class: "share", style: { width: `${Math.max(0, (100 * cost.flops) / whole)}%` } })),
      h("td", {}, cost.parameters ? short(cost.parameters) : "–"),
      h("td", {}, cost.bytes ? short(cost.bytes, "B") : "–"),
      h("td", {}, cost.flops ? short(cost.flops) : "–"),
    );
  return h(
    "table",
    { class: "flow-costs" },
    h("caption", {}, caption),
    h("thead", {}, h("tr", {}, ["part", "parametersShort", "memory", "flops"].map((word) => h("th", { scope: "col" }, ctx.t(word))))),
    h("tbody", {}, known.map((row) => line(row.name, /** @type {Cost} */ (row.cost), row.key))),
    total && known.length > 1 ? h("tfoot", {}, line(ctx.t("total"), total, "total")) : null,
  );
}
