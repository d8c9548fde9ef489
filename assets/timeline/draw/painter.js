/**
 * Draws the lanes: ground, bands, spans, names, counters. Uses neither DOM events nor the network.
 * @module
 */

import { fitCanvas } from "../base/dom.js";
import { FADED, levelOf, MARKED, PaintColors, UNFINISHED } from "../base/palette.js";
import { samplesOf, withNeighbours } from "../model/counter_samples.js";
import { drawCounter } from "./counter.js";
import { drawGroupTimes } from "./group_times.js";
import { drawOverlapShading, overlapShading } from "./overlap_shading.js";
import { Raster, RectBatch } from "./raster.js";
import { Labeller, MIN_TEXT_WIDTH, TEXT_PAD } from "./span_text.js";

/** Narrower spans go into the raster: a rectangle of this width has no visible edges. */
const RASTER_WIDTH = 2;
/** Spans of at least this width leave a gap of one pixel to the next. */
const GAP_WIDTH = 4;

/** If the last frame took at most this share of the budget, the next one is drawn as a whole. */
const EASY_SHARE = 0.6;
/** Lanes are gathered for this long, ms, before they are put onto the canvas and the time is checked. */
const BATCH_MS = 1;
/** The last picture is stretched by less than this. */
const MAX_STRETCH = 4;

/** Returns the ratio of two windows' lengths, at least 1. */
function ratioOf(a, b) {
  const ratio = (a.t1 - a.t0) / (b.t1 - b.t0);
  return Math.max(ratio, 1 / ratio);
}

/** Cuts the parts at each item into strips that cover the view without overlapping. */
function stripsOf(parts) {
  return parts.flatMap((part) => {
    const { items, shift, top, bottom } = part;
    const tops = items.map((item, i) => (i ? Math.max(top, item.y - shift) : top));
    if (!items.length) return [{ part, item: null, top, bottom }];
    return items.map((item, i) => ({
      part,
      item,
      top: tops[i],
      bottom: i + 1 < items.length ? Math.min(bottom, tops[i + 1]) : bottom,
    }));
  });
}

/**
 * @typedef {object} Frame state to draw; `scrollY` in px
 * @property {{t0: number, t1: number}} view
 * @property {import("../model/layout.js").Layout} layout
 * @property {import("../base/palette.js").Palette} palette
 * @property {(lane: number) => import("../tiles/tile_plan.js").Source[]} sources tiles for a lane, left to right
 * @property {(lane: number) => import("../tiles/tile.js").Tile|undefined} whole the tile of the whole run
 * @property {Uint8Array|null} matches by name id, while searching
 * @property {{t: number}[]} ticks
 * @property {import("../model/overlaps.js").Region[]} shaded overlap regions
 * @property {Map<number, number>} shifts by lane how much later it is drawn, ns
 * @property {(group: any) => import("../model/group_times.js").Times|undefined} times of a group's ranks
 *
 * @typedef {{lane: number, row: number, name: number, text: string, x: number, y: number, w: number, h: number}} Label
 */

export class Painter {
  /** @param {HTMLCanvasElement} canvas @param {string[]} names by id */
  constructor(canvas, names) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { alpha: false });
    this.raster = new Raster();
    this.paintColors = new PaintColors();
    this.rects = new RectBatch();
    this.width = 0;
    this.height = 0;
    this.rename(names);
    this.stats = { rectangles: 0, cells: 0, texts: 0, rows: 0 };
    /** @type {Label[][]} by strip */
    this.labelled = [];
    this.pass = { strips: [], next: 0, left: 0, spent: 0 };
    /** Time that the last frame took in all, ms. */
    this.cost = 0;
    /** @type {Frame|null} the frame on the canvas */
    this.shown = null;
  }

  /** @param {string[]} names by id */
  rename(names) {
    this.labeller = new Labeller((text) => this.context.measureText(text).width, names);
  }

  /** @param {number} width css px @param {number} height css px @param {number} ratio device px per css px */
  resize(width, height, ratio) {
    fitCanvas(this, width, height, ratio);
    this.font = `11px ${getComputedStyle(document.documentElement).getPropertyValue("--sans") || "sans-serif"}`;
    this.labeller.forget();
    this.shown = null;
  }

  /**
   * Draws a frame within the budget. If time runs out, the previous picture of the other lanes is moved
   * and stretched to the new window, and `resume` draws them later.
   * @param {Frame} frame
   * @param {number} [budget] ms
   */
  draw(frame, budget = Infinity) {
    const { view, layout, scrollY } = frame;
    const { shown, pass: before, width, height } = this;
    const same = shown && ["layout", "scrollY", "palette", "shifts"].every((key) => shown[key] === frame[key]);
    // Stretched further, the picture would be misleading.
    const near = same && ratioOf(shown.view, view) < MAX_STRETCH && shown.view.t0 < view.t1 && shown.view.t1 > view.t0;
    const strips = stripsOf(layout.parts(scrollY, height));
    this.frame = frame;
    this.shown = frame;
    this.scale = width / (view.t1 - view.t0);
    this.stats = { rectangles: 0, cells: 0, texts: 0, rows: 0 };
    this.shading = overlapShading(frame, this.scale, width);
    this.labelled = strips.map(() => []);
    // Continues where it stopped, or the lower lanes would never be drawn while the view moves.
    const next = near && before.left ? before.next % strips.length : 0;
    const pass = { strips, next, left: strips.length, spent: 0 };
    this.pass = pass;
    const moved = near && (shown.view.t0 !== view.t0 || shown.view.t1 !== view.t1);
    const easy = this.cost <= budget * EASY_SHARE;
    if (moved && !easy) this.stretch(shown.view, view);
    this.resume(near ? budget : Infinity);
    if (moved && easy && pass.left) this.stretchRest(shown.view, view);
  }

  /** True if some lanes still show the stretched picture. */
  get unfinished() {
    return this.pass.left > 0;
  }

  /** Returns the names drawn, from top to bottom. @returns {Label[]} */
  get labels() {
    return this.labelled.flat();
  }

  /** Draws the rest of the frame within the budget. @param {number} budget ms */
  resume(budget) {
    const { pass } = this;
    const begin = performance.now();
    this.context.font = this.font;
    this.context.textBaseline = "middle";
    let now = begin;
    let before = begin;
    do {
      before = now;
      this.some(now + Math.min(BATCH_MS, budget));
      now = performance.now();
    } while (pass.left && 2 * now - before - begin <= budget); // the next strips probably take as long as the last
    pass.spent += now - begin;
    if (!pass.left) this.cost = pass.spent;
  }

  /** Draws the picture of another window, moved and stretched to this one. */
  stretch(from, { t0 }, top = 0, bottom = this.height) {
    const { context: c, canvas, ratio, scale, width } = this;
    const x0 = (from.t0 - t0) * scale;
    const x1 = (from.t1 - t0) * scale;
    const h = bottom - top;
    c.imageSmoothingEnabled = false;
    c.drawImage(canvas, 0, top * ratio, canvas.width, h * ratio, x0, top, x1 - x0, h);
    c.fillStyle = this.frame.palette.token("ground");
    if (x0 > 0) c.fillRect(0, top, x0, h);
    if (x1 < width) c.fillRect(x1, top, width - x1, h);
  }

  /** Stretches the lanes that did not get drawn. Copying the canvas is expensive: adjacent lanes share a copy. */
  stretchRest(from, view) {
    const { strips, next, left } = this.pass;
    const rest = strips.map((strip, i) => ((i - next + strips.length) % strips.length < left ? strip : null));
    const bands = [];
    for (const { top, bottom } of rest.filter(Boolean)) {
      if (bands.at(-1)?.bottom === top) bands.at(-1).bottom = bottom;
      else bands.push({ top, bottom });
    }
    for (const { top, bottom } of bands) this.stretch(from, view, top, bottom);
  }

  /** Draws at least one strip, and more of the same part while there is time. @param {number} until ms */
  some(until) {
    const { context: c, frame, pass, width } = this;
    const { part, item } = pass.strips[pass.next];
    this.pending = [];
    this.marks = [];
    this.hatches = [];
    c.save();
    c.beginPath();
    c.rect(0, part.top, width, part.bottom - part.top);
    c.clip();
    this.raster.begin(width, item?.rows.length ?? 0);
    const goesOn = (strip) =>
      strip.part === part && this.raster.holds(strip.item.rows.length) && performance.now() < until;
    const done = [];
    do {
      this.strip(pass.strips[pass.next], pass.next);
      done.push(pass.strips[pass.next]);
      pass.left -= 1;
      pass.next = (pass.next + 1) % pass.strips.length;
    } while (pass.left && pass.next && goesOn(pass.strips[pass.next]));
    this.rects.draw(c, frame.palette.css);
    this.drawHatches();
    this.raster.flush(c);
    this.stats.cells += this.raster.cells;
    this.drawMarks();
    for (const strip of done)
      drawOverlapShading(c, this.shading, strip, frame.palette, (x) => this.snap(x), 1 / this.ratio);
    this.names();
    c.restore();
    if (part.top === 0 && frame.layout.pinnedHeight) {
      c.fillStyle = frame.palette.token("muted", 0.5);
      c.fillRect(0, part.bottom - 2, width, 1);
    }
  }

  /** Draws the visible part of an item, with its ground. */
  strip({ part, item, top, bottom }, number) {
    const { context: c, frame, width } = this;
    c.fillStyle = frame.palette.token(item?.type === "group" ? "panel" : "ground");
    c.fillRect(0, top, width, bottom - top);
    if (item && item.y + item.h - part.shift < bottom) {
      // the gap below a rank belongs to no lane
      c.fillStyle = frame.palette.token("ground");
      c.fillRect(0, item.y + item.h - part.shift, width, bottom - (item.y + item.h - part.shift));
    }
    this.gridlines(frame.ticks, top, bottom);
    const times = item?.group?.summed && item.type === "group" && frame.times(item.group);
    if (times) drawGroupTimes(c, times, { ...frame, y: item.y - part.shift, h: item.h, width });
    for (const row of item?.rows ?? []) {
      const y = row.y - part.shift;
      if (y + row.h <= part.top || y >= part.bottom) continue;
      this.number = number;
      this.stats.rows += 1;
      if (row.lane.kind === "counter") this.counter(row, y);
      else this.spans(row, y);
    }
  }

  gridlines(ticks, top, bottom) {
    const { context: c, frame } = this;
    c.fillStyle = frame.palette.token("line", 0.7);
    for (const { t } of ticks)
      c.fillRect(this.snap((t - frame.view.t0) * this.scale), top, 1 / this.ratio, bottom - top);
  }

  snap(x) {
    return Math.round(x * this.ratio) / this.ratio;
  }

  /** Draws all spans of one row. @param {import("../model/layout.js").Row} row */
  spans(row, y) {
    const { frame, raster, scale } = this;
    const t0 = frame.view.t0 - (frame.shifts.get(row.lane.id) ?? 0); // on the axis of the lane
    let carried = false; // a span that crosses into the next tile is in both: draw it once
    for (const { tile, from, to } of frame.sources(row.lane.id)) {
      const block = tile.block(row.lane.id, row.row);
      const left = Math.max(0, (from - t0) * scale);
      const right = Math.min(this.width, (to - t0) * scale);
      if (!block || right <= left) {
        carried = false;
        continue;
      }
      const colors = this.paintColors.of(frame.palette, tile.paints, levelOf(row.lane, row.row), frame.matches);
      const origin = (tile.start - t0) * scale;
      if (block.dense)
        raster.addBuckets(block.dense, colors, origin, tile.bucket * scale, left, right, (x) =>
          this.marks.push({ x, y, h: row.h }),
        );
      carried = block.spans ? this.wide(block.spans, colors, tile, row, origin, left, right, y, carried) : false;
    }
    raster.end(y, row.h, frame.palette.pixel);
  }

  /** @returns {boolean} true if the last one drawn continues past `right` */
  wide(s, colors, tile, row, origin, left, right, y, carried) {
    const { raster, scale } = this;
    let reaching = false;
    for (let i = 0; i < s.n; i += 1) {
      const x0 = origin + s.start[i] * scale;
      const x1 = origin + s.end[i] * scale;
      if (x1 <= left) continue;
      if (x0 >= right) break;
      reaching = x1 > right;
      // Spans of a row do not overlap, so this is the one already drawn across the edge.
      if (carried && x0 < left) continue;
      const paint = s.paint[i];
      const colour = colors.colour[paint];
      if (colour === MARKED) this.marks.push({ x: x0, y, h: row.h });
      else if (x1 - x0 < RASTER_WIDTH) raster.add(x0, x1, colors.share[paint], colour);
      else this.rectangle(row, y, x0, x1, colour, colors.share[paint] < 1, tile.paints, paint);
    }
    return reaching;
  }

  rectangle(row, y, x0, x1, colour, faded, paints, paint) {
    const a = this.snap(Math.max(x0, -2));
    const b = this.snap(Math.min(x1, this.width + 2));
    const w = Math.max(b - a - (x1 - x0 >= GAP_WIDTH ? 1 : 0), 1 / this.ratio);
    this.rects.add(colour, faded, a, y, w, row.h);
    this.stats.rectangles += 1;
    const unfinished = (paints.style[paint] & UNFINISHED) !== 0;
    if (unfinished) this.hatches.push({ x: a, y, w, h: row.h, faded });
    if (faded || !row.text || w < MIN_TEXT_WIDTH) return;
    const x = Math.max(a, 0);
    this.pending.push({
      number: this.number,
      colour,
      veiled: unfinished || this.shading.size > 0,
      label: {
        lane: row.lane.id,
        row: row.row,
        name: paints.name[paint],
        text: "",
        x,
        y,
        w: Math.min(a + w, this.width) - x,
        h: row.h,
      },
    });
  }

  drawHatches() {
    const { context: c } = this;
    for (const { x, y, w, h, faded } of this.hatches) {
      if (faded) c.globalAlpha = FADED;
      c.fillStyle = this.hatch();
      c.fillRect(x, y, w, h);
      c.globalAlpha = 1;
    }
  }

  /** Hatches spans that had not ended, which needs no colour. */
  hatch() {
    if (this.hatched?.palette === this.frame.palette) return this.hatched.pattern;
    const tile = document.createElement("canvas");
    tile.width = 8;
    tile.height = 8;
    const c = tile.getContext("2d");
    c.strokeStyle = this.frame.palette.token("ground", 0.55);
    c.lineWidth = 2;
    c.beginPath();
    for (const shift of [-8, 0, 8]) {
      c.moveTo(shift - 1, 9);
      c.lineTo(shift + 9, -1);
    }
    c.stroke();
    this.hatched = { palette: this.frame.palette, pattern: this.context.createPattern(tile, "repeat") };
    return this.hatched.pattern;
  }

  /** Draws names last, so that no other span covers them. */
  names() {
    const { context: c, frame, labeller } = this;
    for (const { number, colour, veiled, label } of this.pending) {
      label.text = labeller.fit(label.name, label.w);
      if (!label.text) continue;
      if (veiled) labeller.drawGround(c, label, frame.palette.css[colour]);
      c.fillStyle = frame.palette.text[colour];
      c.fillText(label.text, label.x + TEXT_PAD, label.y + label.h / 2 + 0.5);
      this.stats.texts += 1;
      this.labelled[number].push(label);
    }
  }

  drawMarks() {
    const { context: c, frame } = this;
    c.fillStyle = frame.palette.token("ink");
    for (const { x, y, h } of this.marks) {
      const at = this.snap(x);
      c.fillRect(at - 0.5, y, 1, h);
      c.beginPath();
      c.moveTo(at - 3.5, y);
      c.lineTo(at + 3.5, y);
      c.lineTo(at, y + 4.5);
      c.fill();
    }
  }

  counter(row, y) {
    const { context: c, frame, scale } = this;
    const { lane } = row;
    if (lane.min === null) return;
    const whole = frame.whole(lane.id);
    const { t0, t1 } = frame.view;
    const fine = samplesOf(frame.sources(lane.id), lane.id);
    const coarse = whole ? samplesOf([{ tile: whole, from: whole.start, to: whole.end }], lane.id) : [];
    drawCounter(c, withNeighbours(fine, coarse, t0, t1), {
      low: lane.min,
      high: lane.max,
      y,
      h: row.h,
      t0,
      scale,
      colour: frame.palette.token("accent"),
      bad: frame.palette.token("bad"),
    });
  }
}
