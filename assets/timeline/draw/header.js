/**
 * Draws the head above the lanes: strip of the whole run with the window, ruler, steps.
 * @module
 */

import { fitCanvas } from "../base/dom.js";
import { duration as formatDuration } from "../base/format.js";
import { STYLE_TOKENS, UNFINISHED } from "../base/palette.js";
import { drawBits } from "../model/search_marks.js";
import { SHARE_OF } from "../tiles/tile.js";

export const STRIP = 44;
export const RULER = 24;
export const STEPS = 20;
export const HEAD = STRIP + RULER + STEPS;
const TOP = 6;
/** Grip on either edge of the window, px. */
export const GRIP = 6;
/** A narrower window is drawn this wide, so that it can be seen and gripped, px. */
const MIN_WINDOW = 8;
const MAX_WIDTHS = 4096;
/** Room that the number of a step needs, px. */
const MIN_STEP = 14;

/**
 * Computes the time per pixel of the strip in each style, over the outermost rows of all thread lanes.
 * @param {{lane: number, tile: import("../tiles/tile.js").Tile}[]} lanes
 * @param {number} width px
 * @param {number} duration ns
 * @returns {Float32Array[]} per style, share of the lanes 0..1 per pixel
 */
export function activity(lanes, width, duration) {
  const out = STYLE_TOKENS.map(() => new Float32Array(width));
  const scale = width / Math.max(duration, 1);
  const add = (style, x0, x1, weight) => {
    const into = out[style] ?? out[0];
    const last = Math.min(width - 1, Math.ceil(x1) - 1);
    for (let x = Math.max(0, Math.floor(x0)); x <= last; x += 1) {
      into[x] += ((Math.min(x1, x + 1) - Math.max(x0, x)) * weight) / lanes.length;
    }
  };
  for (const { lane, tile } of lanes) {
    const block = tile.block(lane, 0);
    const styles = tile.paints.style;
    if (block?.spans) {
      const s = block.spans;
      for (let i = 0; i < s.n; i += 1) {
        add(styles[s.paint[i]] & ~UNFINISHED, (tile.start + s.start[i]) * scale, (tile.start + s.end[i]) * scale, 1);
      }
    }
    if (block?.dense) {
      const d = block.dense;
      for (let i = 0; i < d.n; i += 1) {
        const t = tile.start + d.bucket[i] * tile.bucket;
        add(styles[d.paint[i]] & ~UNFINISHED, t * scale, (t + tile.bucket) * scale, SHARE_OF[d.covered[i]]);
      }
    }
  }
  return out;
}

/** Draws the head. */
export class Header {
  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { alpha: false });
    /** @type {Map<string, number>} px by text: measuring a text takes as long as drawing it */
    this.widths = new Map();
    this.strip = document.createElement("canvas");
    this.stripKey = "";
  }

  resize(width, ratio) {
    fitCanvas(this, width, HEAD, ratio);
    this.font = `11px ${getComputedStyle(document.documentElement).getPropertyValue("--sans") || "sans-serif"}`;
    this.widths.clear();
    this.stripKey = "";
  }

  /** @param {string} text */
  widthOf(text) {
    let width = this.widths.get(text);
    if (width === undefined) {
      if (this.widths.size > MAX_WIDTHS) this.widths.clear(); // labels of the ruler never repeat
      width = this.context.measureText(text).width;
      this.widths.set(text, width);
    }
    return width;
  }

  /** Returns the place of the window on the strip, px. @returns {[number, number]} */
  windowAt({ t0, t1 }, duration) {
    const scale = this.width / Math.max(duration, 1);
    const [a, b] = [t0 * scale, t1 * scale];
    if (b - a >= MIN_WINDOW) return [a, b];
    const middle = Math.min(Math.max((a + b) / 2, MIN_WINDOW / 2), this.width - MIN_WINDOW / 2);
    return [middle - MIN_WINDOW / 2, middle + MIN_WINDOW / 2];
  }

  /**
   * @param {object} frame
   * @param {{t0: number, t1: number}} frame.view
   * @param {number} frame.duration
   * @param {import("../base/palette.js").Palette} frame.palette
   * @param {{base: number, ticks: {t: number, label: string}[]}} frame.ruler
   * @param {[number, number, number][]} frame.steps step, start, end
   * @param {{t0: number, t1: number}|null} frame.range
   * @param {number|null} frame.hover instant under the pointer
   * @param {string} frame.activityKey changes when the activity does
   * @param {() => Float32Array[]} frame.activity
   * @param {[number, number][]} frame.shaded overlap regions
   * @param {import("../panels/notes.js").Note[]} frame.notes
   * @param {import("../model/search_marks.js").SearchMarks} frame.hits of the search
   */
  draw(frame) {
    const { context: c, width } = this;
    const { palette, view, duration } = frame;
    c.font = this.font;
    c.textBaseline = "middle";
    c.fillStyle = palette.token("ground");
    c.fillRect(0, 0, width, HEAD);
    this.drawStrip(frame);
    this.drawWindow(view, duration, palette);
    this.drawSteps(frame);
    this.drawRuler(frame);
    this.drawRegions(frame);
    this.drawHits(frame);
    const { notes } = frame;
    drawNotes(c, notes, view, width, STRIP + RULER, { flag: palette.token("warn"), span: palette.token("warn", 0.16) });
    drawNotes(c, notes, { t0: 0, t1: duration }, width, STRIP, {
      flag: palette.token("warn"),
      span: palette.token("warn", 0.16),
    });
  }

  /** Draws search hits at the bottom of the strip (whole run) and of the ruler (window). */
  drawHits({ palette, view, duration, hits: { whole, window } }) {
    const { context: c, width } = this;
    c.fillStyle = palette.token("accent");
    if (whole)
      drawBits(whole.bits, whole.many, whole, { t0: 0, t1: duration }, width, (x, w) => c.fillRect(x, STRIP - 4, w, 4));
    if (window)
      drawBits(window.bits, window.many, window, view, width, (x, w) => c.fillRect(x, STRIP + RULER - 2, w, 3));
  }

  drawStrip({ palette, activity: compute, activityKey }) {
    const key = `${activityKey}/${this.width}/${this.ratio}`;
    if (key !== this.stripKey || this.stripPalette !== palette) {
      this.stripKey = key;
      this.stripPalette = palette;
      this.paintStrip(compute(), palette);
    }
    this.context.drawImage(this.strip, 0, 0, this.width, STRIP);
  }

  /** Paints the strip to an image that each frame copies, as it rarely changes. */
  paintStrip(shares, palette) {
    const { strip, width, ratio } = this;
    strip.width = Math.round(width * ratio);
    strip.height = Math.round(STRIP * ratio);
    const c = strip.getContext("2d");
    c.scale(ratio, ratio);
    // Scaled to the busiest moment: many threads are idle most of the time.
    const busiest = Math.max(...shares[0].map((_, x) => shares.reduce((sum, share) => sum + share[x], 0)), 1e-9);
    const room = (STRIP - TOP - 4) / busiest;
    const bottom = STRIP - 4;
    for (let x = 0; x < width; x += 1) {
      let y = bottom;
      for (let style = 0; style < shares.length; style += 1) {
        const h = Math.min(shares[style][x] * room, y - TOP);
        if (h <= 0) continue;
        c.fillStyle = palette.token(STYLE_TOKENS[style]);
        c.fillRect(x, y - h, 1, h);
        y -= h;
      }
    }
  }

  drawWindow(view, duration, palette) {
    const { context: c, width } = this;
    const [a, b] = this.windowAt(view, duration);
    c.fillStyle = palette.token("ground", 0.66);
    c.fillRect(0, 0, a, STRIP);
    c.fillRect(b, 0, width - b, STRIP);
    c.strokeStyle = palette.token("accent");
    c.lineWidth = 1.5;
    c.strokeRect(Math.max(a, 1), 3, Math.min(b, width - 1) - Math.max(a, 1), STRIP - 5);
  }

  drawRuler({ palette, view, ruler, range, hover, notes }) {
    const { context: c, width } = this;
    const scale = width / (view.t1 - view.t0);
    const middle = STRIP + RULER / 2 + 1;
    if (range) {
      const [x0, x1] = [(range.t0 - view.t0) * scale, (range.t1 - view.t0) * scale];
      c.fillStyle = palette.token("accent", 0.16);
      c.fillRect(x0, STRIP, x1 - x0, HEAD - STRIP);
    }
    for (const { t, label } of ruler.ticks) {
      const x = Math.round((t - view.t0) * scale * this.ratio) / this.ratio;
      c.fillStyle = palette.token("line");
      c.fillRect(x, STRIP + 4, 1 / this.ratio, RULER - 4); // not across the names of the steps
      if (x + 5 + this.widthOf(label) > width) continue;
      c.fillStyle = palette.token(range || notes.length ? "ink" : "muted"); // muted cannot be read on their colours
      c.fillText(label, x + 5, middle);
    }
    if (range)
      this.pillText(
        formatDuration(range.t1 - range.t0),
        ((range.t0 + range.t1) / 2 - view.t0) * scale,
        middle,
        palette,
      );
    else if (hover !== null) {
      c.fillStyle = palette.token("ink", 0.5);
      c.fillRect((hover - view.t0) * scale, STRIP, 1 / this.ratio, HEAD - STRIP);
    }
  }

  /** Draws a length on the ruler, on a background that hides tick labels. */
  pillText(text, x, y, palette) {
    const { context: c } = this;
    const w = this.widthOf(text) + 12;
    const left = Math.min(Math.max(x - w / 2, 2), this.width - w - 2);
    c.fillStyle = palette.token("accent");
    c.fillRect(left, y - 9, w, 17);
    c.fillStyle = palette.token("panel");
    c.fillText(text, left + 6, y);
  }

  /** Draws the steps of the first rank, every other one tinted. Narrow ones are merged. */
  drawSteps({ palette, view, steps }) {
    const { context: c, width } = this;
    const scale = width / (view.t1 - view.t0);
    const y = STRIP + RULER;
    let i = firstEnding(steps, view.t0);
    let previous = -Infinity;
    for (; i < steps.length && steps[i][1] < view.t1; i += 1) {
      const [step, start, end] = steps[i];
      const x0 = (start - view.t0) * scale;
      const x1 = (end - view.t0) * scale;
      if (x1 - previous < 1.5) continue;
      previous = x1;
      const a = Math.max(x0, 0);
      const b = Math.min(x1, width);
      c.fillStyle = palette.token("line", step % 2 ? 0.75 : 0.4);
      c.fillRect(a, y + 2, Math.max(b - a - 1, 0.5), STEPS - 4);
      if (b - a < MIN_STEP) continue;
      const text = this.widthOf(`step ${step}`) + 10 <= b - a ? `step ${step}` : `${step}`;
      if (this.widthOf(text) + 8 > b - a) continue;
      c.fillStyle = palette.token("ink");
      c.fillText(text, a + 6, y + STEPS / 2 + 0.5);
    }
  }

  /** Draws overlap regions as a line under the steps. */
  drawRegions({ palette, view, shaded }) {
    const { context: c, width } = this;
    const scale = width / (view.t1 - view.t0);
    c.fillStyle = palette.token("bad");
    for (const [from, to] of shaded) {
      const x0 = (from - view.t0) * scale;
      const x1 = (to - view.t0) * scale;
      if (x1 >= 0 && x0 <= width) c.fillRect(x0, HEAD - 3, Math.max(x1 - x0, 1), 3);
    }
  }
}

/** Returns the index of the first step that ends after `t`. @param {[number, number, number][]} steps */
export function firstEnding(steps, t) {
  let low = 0;
  let high = steps.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle][2] <= t) low = middle + 1;
    else high = middle;
  }
  return low;
}

/**
 * Draws notes as flags on the ruler.
 * @param {CanvasRenderingContext2D} c
 * @param {import("../panels/notes.js").Note[]} notes
 * @param {{t0: number, t1: number}} view
 * @param {number} width px
 * @param {number} y bottom of the ruler
 * @param {{flag: string, span: string}} colours
 */
function drawNotes(c, notes, view, width, y, { flag, span }) {
  const scale = width / (view.t1 - view.t0);
  for (const { t0, t1 } of notes) {
    const [a, b] = [(t0 - view.t0) * scale, (t1 - view.t0) * scale];
    if (b < 0 || a > width) continue;
    c.fillStyle = span;
    c.fillRect(a, y - 20, Math.max(b - a, 1), 20);
    c.fillStyle = flag;
    c.fillRect(a, y - 20, 1.5, 20);
    c.beginPath();
    c.moveTo(a, y - 20);
    c.lineTo(a + 9, y - 16);
    c.lineTo(a, y - 12);
    c.fill();
  }
}
