/**
 * Draws the lanes: ground, bands, slices, names, counters. Knows no DOM event and no network.
 * @module
 */
import { drawCounter, samplesOf, withNeighbours } from "./counter.js";
import { FADED, Inks, MARKED } from "./inks.js";
import { levelOf } from "./palette.js";
import { Raster } from "./raster.js";
import { Labeller, LEAST_WIDTH, TEXT_PAD } from "./text.js";
import { UNFINISHED } from "./tile.js";

/** Narrower slices go into the raster: at this width a rectangle has no visible edges anyway. */
const RASTER_WIDTH = 2;
/** From this width on a slice leaves a pixel to its neighbour. */
const GAP_WIDTH = 4;

/** Position of the first number that is at least `least`. */
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

/**
 * @typedef {object} Frame what is to be drawn
 * @property {{t0: number, t1: number}} view
 * @property {import("./layout.js").Layout} layout
 * @property {number} scrollY
 * @property {import("./palette.js").Palette} palette
 * @property {(lane: number) => import("./plan.js").Source[]} sources tiles for a lane, left to right
 * @property {(lane: number) => import("./tile.js").Tile|undefined} whole the tile of the whole run
 * @property {Uint8Array|null} matches by name id, while searching
 * @property {{t: number}[]} ticks
 * @property {import("./overlaps.js").Region[]} shaded overlap regions
 *
 * @typedef {{lane: number, row: number, name: number, text: string, x: number, y: number, w: number, h: number}} Label
 */

export class Painter {
  /** @param {HTMLCanvasElement} canvas @param {string[]} names by id */
  constructor(canvas, names) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { alpha: false });
    this.raster = new Raster();
    this.inks = new Inks();
    this.width = 0;
    this.height = 0;
    this.rename(names);
    this.stats = { rectangles: 0, cells: 0, texts: 0, rows: 0 };
    /** @type {Label[]} */
    this.labels = [];
  }

  /** @param {string[]} names by id */
  rename(names) {
    this.labeller = new Labeller((text) => this.context.measureText(text).width, names);
  }

  /** @param {number} width css px @param {number} height css px @param {number} ratio device px per css px */
  resize(width, height, ratio) {
    this.width = width;
    this.height = height;
    this.ratio = ratio;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.font = `11px ${getComputedStyle(document.documentElement).getPropertyValue("--sans") || "sans-serif"}`;
    this.labeller.widths.clear();
  }

  /** @param {Frame} frame */
  draw(frame) {
    const { context: c, width, height } = this;
    const { view, layout, scrollY, palette } = frame;
    this.frame = frame;
    this.scale = width / (view.t1 - view.t0);
    this.stats = { rectangles: 0, cells: 0, texts: 0, rows: 0 };
    const parts = layout.parts(scrollY, height);

    c.font = this.font;
    c.textBaseline = "middle";
    c.fillStyle = palette.token("ground");
    c.fillRect(0, 0, width, height);
    this.labels = [];
    for (const part of parts) this.part(part);
  }

  /** The lanes that scroll, or those that are pinned above them. @param {ReturnType<import("./layout.js").Layout["parts"]>[0]} part */
  part({ items, shift, top, bottom }) {
    const { context: c, frame, width } = this;
    this.pending = [];
    this.marks = [];
    c.save();
    c.beginPath();
    c.rect(0, top, width, bottom - top);
    c.clip();
    this.bands(items, shift);
    this.gridlines(frame.ticks);
    this.raster.begin(width, items.reduce((n, item) => n + item.rows.length, 0));
    for (const item of items) {
      for (const row of item.rows) {
        const y = row.y - shift;
        if (y + row.h <= top || y >= bottom) continue;
        this.stats.rows += 1;
        if (row.lane.kind === "counter") this.counter(row, y);
        else this.slices(row, y);
      }
    }
    this.raster.flush(c);
    this.stats.cells += this.raster.cells;
    this.drawMarks();
    this.shade(frame.shaded, items, shift);
    this.names();
    c.restore();
    if (top === 0 && frame.layout.pinnedHeight) {
      c.fillStyle = frame.palette.token("muted", 0.5);
      c.fillRect(0, bottom - 2, width, 1);
    }
  }

  /** Header bands of the groups and a hairline below each. */
  bands(items, shift) {
    const { context: c, frame } = this;
    for (const item of items) {
      if (item.type !== "group") continue;
      c.fillStyle = frame.palette.token("panel");
      c.fillRect(0, item.y - shift, this.width, item.h);
    }
  }

  gridlines(ticks) {
    const { context: c, frame } = this;
    c.fillStyle = frame.palette.token("line", 0.7);
    for (const { t } of ticks) c.fillRect(this.snap((t - frame.view.t0) * this.scale), 0, 1 / this.ratio, this.height);
  }

  snap(x) {
    return Math.round(x * this.ratio) / this.ratio;
  }

  /** All slices of one row. @param {import("./layout.js").Row} row */
  slices(row, y) {
    const { frame, raster, scale } = this;
    const { view, palette } = frame;
    let carried = false; // a slice that reaches into the next tile is in both: draw it once
    for (const { tile, from, to } of frame.sources(row.lane.id)) {
      const block = tile.block(row.lane.id, row.row);
      const left = Math.max(0, (from - view.t0) * scale);
      const right = Math.min(this.width, (to - view.t0) * scale);
      if (!block || right <= left) {
        carried = false;
        continue;
      }
      const ink = this.inks.of(palette, tile.paints, levelOf(row.lane, row.row), frame.matches);
      const origin = (tile.start - view.t0) * scale;
      if (block.dense) this.dense(block.dense, ink, row, origin, tile.bucket * scale, left, right, y);
      carried = block.slices ? this.wide(block.slices, ink, tile, row, origin, left, right, y, carried) : false;
    }
    raster.end(y, row.h, palette.pixel);
  }

  /** @returns {boolean} whether the last one drawn goes on past `right` */
  wide(s, ink, tile, row, origin, left, right, y, carried) {
    const { raster, scale } = this;
    let reaching = false;
    for (let i = 0; i < s.n; i += 1) {
      const x0 = origin + s.start[i] * scale;
      const x1 = origin + s.end[i] * scale;
      if (x1 <= left) continue;
      if (x0 >= right) break;
      reaching = x1 > right;
      // Slices of a row do not overlap: the one over the edge is the one that was over it before.
      if (carried && x0 < left) continue;
      const paint = s.paint[i];
      const colour = ink.colour[paint];
      if (colour === MARKED) this.marks.push({ x: x0, y, h: row.h });
      else if (x1 - x0 < RASTER_WIDTH) raster.add(x0, x1, ink.share[paint], colour);
      else this.rectangle(row, y, x0, x1, colour, ink.share[paint] < 1, tile.paints, paint);
    }
    return reaching;
  }

  dense(d, ink, row, origin, bucket, left, right, y) {
    const { bucket: number, covered, paint, n } = d;
    for (let i = firstAt(number, n, Math.floor((left - origin) / bucket)); i < n; i += 1) {
      const x = origin + number[i] * bucket;
      if (x >= right) break;
      const colour = ink.colour[paint[i]];
      if (colour === MARKED) this.marks.push({ x: x + bucket / 2, y, h: row.h });
      else this.raster.add(x > left ? x : left, x + bucket < right ? x + bucket : right, (covered[i] / 255) * ink.share[paint[i]], colour);
    }
  }

  rectangle(row, y, x0, x1, colour, faded, paints, paint) {
    const { context: c, frame } = this;
    const a = this.snap(Math.max(x0, -2));
    const b = this.snap(Math.min(x1, this.width + 2));
    const w = Math.max(b - a - (x1 - x0 >= GAP_WIDTH ? 1 : 0), 1 / this.ratio);
    if (faded) c.globalAlpha = FADED;
    c.fillStyle = frame.palette.css[colour];
    c.fillRect(a, y, w, row.h);
    this.stats.rectangles += 1;
    if (paints.style[paint] & UNFINISHED) {
      c.fillStyle = this.hatch();
      c.fillRect(a, y, w, row.h);
    }
    if (faded) c.globalAlpha = 1;
    else if (row.text && w >= LEAST_WIDTH) this.pending.push({ row, y, a: Math.max(a, 0), b: Math.min(a + w, this.width), colour, name: paints.name[paint] });
  }

  /** Stripes say "had not ended" without relying on colour. */
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

  /** Names last, so that no neighbour paints over them. */
  names() {
    const { context: c, frame, labeller } = this;
    for (const { row, y, a, b, colour, name } of this.pending) {
      const text = labeller.fit(name, b - a);
      if (!text) continue;
      c.fillStyle = frame.palette.text[colour];
      c.fillText(text, a + TEXT_PAD, y + row.h / 2 + 0.5);
      this.labels.push({ lane: row.lane.id, row: row.row, name, text, x: a, y, w: b - a, h: row.h });
    }
    this.stats.texts = this.labels.length;
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

  /** Regions where threads overlap: a wash over their rank, with edges, so that it needs no colour. */
  shade(regions, items, shift) {
    const { context: c, frame } = this;
    const extents = regions.length ? this.extents(items, shift) : null;
    for (const [from, to, lanes] of regions) {
      const x0 = (from - frame.view.t0) * this.scale;
      const x1 = (to - frame.view.t0) * this.scale;
      if (x1 < 0 || x0 > this.width) continue;
      for (const extent of new Set(lanes.map((lane) => extents.get(lane)).filter(Boolean))) {
        const [top, h] = extent;
        c.fillStyle = frame.palette.token("bad", 0.16);
        c.fillRect(x0, top, Math.max(x1 - x0, 1), h);
        if (x1 - x0 < 3) continue;
        c.fillStyle = frame.palette.token("bad", 0.7);
        c.fillRect(this.snap(x0), top, 1 / this.ratio, h);
        c.fillRect(this.snap(x1), top, 1 / this.ratio, h);
      }
    }
  }

  /** Top and height of what stands for each lane: its group, or itself where it is pinned. @returns {Map<number, [number, number]>} */
  extents(items, shift) {
    const { layout } = this.frame;
    if (items === layout.pinned) return new Map(layout.pinned.map(({ lane, y, h }) => [lane.id, [y, h]]));
    const groups = new Map();
    for (const { group, y, h } of layout.items) {
      const known = groups.get(group) ?? [y - shift, 0];
      groups.set(group, [known[0], y - shift + h - known[0]]);
    }
    return new Map([...groups].flatMap(([group, extent]) => group.lanes.map((lane) => [lane.id, extent])));
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
      low: lane.min, high: lane.max, y, h: row.h, t0, scale, colour: frame.palette.token("accent"), bad: frame.palette.token("bad"),
    });
  }
}
