/**
 * Draws spans. Those too narrow for a rectangle go to rows of pixels: a pixel's opacity is the share of
 * its time that is covered, its colour that of the span covering most of it.
 * @module
 */

import { FADED, MARKED } from "../base/palette.js";
import { SHARE_OF } from "../tiles/tile.js";

/** Opacity of anything covered at all, so that a single nanosecond can be seen. */
const MIN_ALPHA = 0.3;
/** Least share of a pixel, so that the shortest span still counts. */
const MIN_PART = 1e-6;

/** Rows put onto the canvas at once; more cost a copy of all of them each time. */
const ROWS = 64;

/** Returns the index of the first number that is at least `least`. */
function firstAt(numbers, n, least) {
  let low = 0;
  let high = n;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] < least) low = middle + 1;
    else high = middle;
  }
  return low;
}

export class Raster {
  constructor() {
    this.canvas = document.createElement("canvas");
    this.context = this.canvas.getContext("2d");
    this.width = 0;
    this.rows = 0;
    /** @type {{y: number, h: number}[]} */
    this.placed = [];
    this.used = false;
  }

  /** Starts an empty raster. @param {number} width px @param {number} rows it must hold */
  begin(width, rows) {
    if (width !== this.width || rows > this.rows) {
      this.width = width;
      this.rows = Math.max(rows, this.rows, ROWS);
      this.canvas.width = width;
      this.canvas.height = this.rows;
      this.image = this.context.createImageData(width, this.rows);
      this.pixels = new Uint32Array(this.image.data.buffer);
      this.covered = new Float32Array(width);
      this.best = new Float32Array(width);
      this.colour = new Uint16Array(width);
    }
    this.placed.length = 0;
    this.cells = 0;
  }

  /** True if this many more rows fit. @param {number} rows */
  holds(rows) {
    return this.placed.length + rows <= this.rows;
  }

  /**
   * Adds a span from x0 to x1 (px) that covers `share` of that range.
   * @param {number} x0
   * @param {number} x1
   * @param {number} share 0..1
   * @param {number} colour index into the palette
   */
  add(x0, x1, share, colour) {
    this.used = true;
    const first = Math.max(0, Math.floor(x0));
    const last = Math.min(this.width - 1, Math.ceil(x1) - 1);
    for (let x = first; x <= Math.max(first, last) && x < this.width; x += 1) {
      const part = Math.max((Math.min(x1, x + 1) - Math.max(x0, x)) * share, MIN_PART);
      this.covered[x] += part;
      if (part > this.best[x]) {
        this.best[x] = part;
        this.colour[x] = colour;
      }
    }
  }

  /**
   * Adds the buckets of a tile within [left, right) in one loop: a crowded row has a thousand.
   * @param {import("../tiles/tile.js").Dense} dense
   * @param {import("../base/palette.js").RowColors} colors
   * @param {number} origin where bucket 0 begins, px
   * @param {number} wide a bucket, px
   * @param {number} left px, at least 0
   * @param {number} right px, at most the width
   * @param {(x: number) => void} mark called with the middle of each instant
   */
  addBuckets({ n, bucket, covered, paint }, colors, origin, wide, left, right, mark) {
    const { covered: sum, best, colour: colours } = this;
    const { colour, share } = colors;
    for (let i = firstAt(bucket, n, Math.floor((left - origin) / wide)); i < n; i += 1) {
      const from = origin + bucket[i] * wide;
      if (from >= right) break;
      const what = paint[i];
      if (colour[what] === MARKED) {
        mark(from + wide / 2);
        continue;
      }
      const density = SHARE_OF[covered[i]] * share[what];
      const x0 = from > left ? from : left;
      const x1 = from + wide < right ? from + wide : right;
      const last = Math.ceil(x1);
      for (let x = Math.floor(x0); x < last; x += 1) {
        const part = Math.max(((x1 < x + 1 ? x1 : x + 1) - (x0 > x ? x0 : x)) * density, MIN_PART);
        sum[x] += part;
        if (part > best[x]) {
          best[x] = part;
          colours[x] = colour[what];
        }
      }
      this.used = true;
    }
  }

  /** Ends a row: its pixels are drawn at y with height h. @param {Uint32Array} palette */
  end(y, h, palette) {
    if (!this.used) return;
    const offset = this.placed.length * this.width;
    const { covered, best, colour, pixels, width } = this;
    let cells = 0;
    for (let x = 0; x < width; x += 1) {
      const share = covered[x];
      if (share > 0) {
        const alpha = MIN_ALPHA + (1 - MIN_ALPHA) * (share < 1 ? share : 1);
        pixels[offset + x] = ((alpha * 255) << 24) | palette[colour[x]];
        cells += 1;
        covered[x] = 0;
        best[x] = 0;
      } else pixels[offset + x] = 0;
    }
    this.cells += cells;
    this.placed.push({ y, h });
    this.used = false;
  }

  /** Puts all rows onto the canvas. @param {CanvasRenderingContext2D} context */
  flush(context) {
    if (!this.placed.length) return;
    this.context.putImageData(this.image, 0, 0, 0, 0, this.width, this.placed.length);
    context.imageSmoothingEnabled = false;
    this.placed.forEach(({ y, h }, i) => {
      context.drawImage(this.canvas, 0, i, this.width, 1, 0, y, this.width, h);
    });
  }
}

/**
 * Gathers rectangles by colour: changing a canvas's colour costs far more than another rectangle.
 */
export class RectBatch {
  constructor() {
    /** @type {number[][]} x, y, w, h of each rectangle, by colour, and whether they fade */
    this.by = [];
    /** @type {number[]} */
    this.used = [];
  }

  /** @param {number} colour index into the palette @param {boolean} faded */
  add(colour, faded, x, y, w, h) {
    const at = colour * 2 + (faded ? 1 : 0);
    let list = this.by[at];
    if (!list) {
      list = [];
      this.by[at] = list;
    }
    if (!list.length) this.used.push(at);
    list.push(x, y, w, h);
  }

  /**
   * Draws the gathered rectangles and forgets them.
   * @param {CanvasRenderingContext2D} c
   * @param {string[]} css by colour, and whether they fade
   */
  draw(c, css) {
    for (const at of this.used) {
      const list = this.by[at];
      c.fillStyle = css[at >> 1];
      c.globalAlpha = at & 1 ? FADED : 1;
      for (let i = 0; i < list.length; i += 4) c.fillRect(list[i], list[i + 1], list[i + 2], list[i + 3]);
      list.length = 0;
    }
    c.globalAlpha = 1;
    this.used.length = 0;
  }
}
