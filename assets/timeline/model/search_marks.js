/**
 * Marks all search hits on the strip of the whole run, on the ruler and on each visible lane. The
 * server counts and places them, so that none is missing at any zoom.
 * @module
 */

import { getJson } from "../base/bridge.js";
import { debounced } from "../base/idle.js";

const WHOLE = 2048;
/** The server's limit. */
const MAX_MARKS = 4096;
const PAUSE = 120;

/**
 * @typedef {object} Marks
 * @property {number} t0 ns
 * @property {number} t1 ns
 * @property {number} total
 * @property {number} many equal parts of the window
 * @property {Uint8Array} bits of the parts in which a hit begins
 * @property {Map<number, Uint8Array>} lanes the same per lane
 * @property {Map<number, [number, number, number][]>|null} spans row, start and end by lane; null: too many
 */

export class SearchMarks {
  /** @param {import("../page/timeline.js").Timeline} timeline @param {string} etag of the run */
  constructor(timeline, etag) {
    this.timeline = timeline;
    this.etag = etag;
    /** @type {{names: number[], modules: number[]}|null} */
    this.wanted = null;
    /** @type {Marks|null} */
    this.whole = null;
    /** @type {Marks|null} */
    this.window = null;
    /** Position of the selected hit among all. */
    this.position = null;
    this.later = debounced(timeline.idle, "hits", PAUSE, () => this.fetchWhole());
  }

  /** @param {{names: number[], modules: number[]}|null} wanted null: no search */
  look(wanted) {
    const empty = !wanted || (!wanted.names.length && !wanted.modules.length);
    const key = empty ? "" : JSON.stringify([this.etag, wanted]);
    if (key && key === this.looked) {
      this.timeline.onHits?.(); // modules were loaded, and none has the words
      return;
    }
    this.looked = key;
    this.wanted = empty ? null : wanted;
    this.whole = null;
    this.window = null;
    this.position = null;
    this.asked = "";
    if (!empty) this.later();
    this.timeline.onHits?.();
  }

  async fetchWhole() {
    const { timeline, wanted } = this;
    if (!wanted) return;
    const found = await this.ask({ t0: 0, t1: Math.ceil(timeline.duration) + 1 }, WHOLE, []);
    if (!found || wanted !== this.wanted) return;
    this.whole = found;
    timeline.onHits?.();
    timeline.invalidate("overlay");
    await this.follow();
  }

  /** Updates the marks once the window has settled. */
  async follow() {
    const { timeline, wanted } = this;
    if (!wanted || !this.whole) return;
    const { view, width, layout, scrollY, height } = timeline;
    const window = { t0: Math.max(0, Math.floor(view.t0)), t1: Math.ceil(view.t1) + 1 };
    const lanes = layout
      .parts(scrollY, height)
      .flatMap(({ items }) => items.filter((item) => item.lane).map((item) => item.lane.id));
    const key = JSON.stringify([window, lanes, width]);
    if (key === this.asked) return;
    this.asked = key;
    const found = await this.ask(window, Math.min(Math.ceil(width), MAX_MARKS), lanes);
    if (!found || key !== this.asked || wanted !== this.wanted) return;
    this.window = found;
    timeline.invalidate("overlay");
  }

  /** @returns {Promise<Marks|null>} null if the server did not answer */
  async ask(window, many, lanes) {
    const { timeline } = this;
    try {
      const answer = await timeline.idle.track(
        "hits",
        getJson(`/api/hits/${this.etag}`, { ...this.wanted, ...window, lanes, buckets: many }),
      );
      const byLane = (object) => Object.entries(object).map(([lane, value]) => [Number(lane), value]);
      return {
        ...window,
        many,
        total: answer.total,
        bits: bytesOf(answer.marks),
        lanes: new Map(byLane(answer.lanes).map(([lane, text]) => [lane, bytesOf(text)])),
        spans: answer.slices && new Map(byLane(answer.slices)),
      };
    } catch (error) {
      timeline.toast(error.message);
      return null;
    }
  }
}

/** @param {string} text base64 */
const bytesOf = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

/**
 * Draws runs of adjacent parts that hold hits, on the axis of a view.
 * @param {Uint8Array} bits
 * @param {number} many
 * @param {{t0: number, t1: number}} window of the bits
 * @param {{t0: number, t1: number}} view
 * @param {number} width px of the view
 * @param {(x: number, w: number) => void} draw
 */
export function drawBits(bits, many, window, view, width, draw) {
  const scale = width / (view.t1 - view.t0);
  const part = (window.t1 - window.t0) / many;
  for (let i = 0; i < many; i += 1) {
    if (!(bits[i >> 3] & (1 << (i & 7)))) continue;
    const from = i;
    while (i + 1 < many && bits[(i + 1) >> 3] & (1 << ((i + 1) & 7))) i += 1;
    const x = (window.t0 + from * part - view.t0) * scale;
    const w = (i + 1 - from) * part * scale;
    if (x + w >= 0 && x <= width) draw(x, Math.max(w, 1));
  }
}

/**
 * Draws marks on the visible lanes: a line along the top, and outlines of spans if there are few.
 * @param {CanvasRenderingContext2D} c
 * @param {Marks} marks
 * @param {import("../page/timeline.js").Timeline} timeline
 */
export function drawLaneHits(c, marks, { view, layout, scrollY, height, width, palette, alignment }) {
  const scale = width / (view.t1 - view.t0);
  c.fillStyle = palette.token("accent");
  c.strokeStyle = palette.token("accent");
  c.lineWidth = 1;
  for (const { items, shift, top } of layout.parts(scrollY, height)) {
    for (const { lane, y } of items) {
      const bits = lane && marks.lanes.get(lane.id);
      if (!bits || y - shift < top - 2) continue;
      const [t0, t1] = [marks.t0, marks.t1].map((t) => t + alignment.of(lane.id));
      drawBits(bits, marks.many, { t0, t1 }, view, width, (x, w) => c.fillRect(x, y - shift, w, 2));
    }
  }
  for (const [lane, spans] of marks.spans ?? []) {
    for (const [row, start, end] of spans) {
      const [x0, x1] = [start, end].map((t) => (t + alignment.of(lane) - view.t0) * scale);
      if (x1 < 0 || x0 > width || x1 - x0 < 3) continue;
      const place = layout.onScreen(lane, row, scrollY);
      if (place)
        c.strokeRect(
          Math.max(x0, -2) + 0.5,
          place.y + 0.5,
          Math.min(x1, width + 2) - Math.max(x0, -2) - 1,
          place.h - 1,
        );
    }
  }
}
