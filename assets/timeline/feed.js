/**
 * Keeps the right tiles coming for a window, and hands out what is there for drawing.
 * @module
 */
import { TileCache } from "./cache.js";
import { CHUNK_LANES, cover, wanted } from "./plan.js";
import { levelFor, topLevel } from "./viewport.js";

/** Lanes whose activity the strip sums up; more would not change what one sees. */
const STRIP_LANES = 256;

export class Feed {
  /**
   * @param {any} run as /api/run describes it
   * @param {number} duration ns
   * @param {import("./idle.js").Idle} idle
   * @param {() => void} changed a tile came
   * @param {(message: string) => void} failed
   */
  constructor(run, duration, idle, changed, failed) {
    this.lanes = run.lanes;
    this.duration = duration;
    this.top = topLevel(duration);
    this.level = this.top;
    this.order = new Map(run.lanes.map((lane, i) => [lane.id, Math.floor(i / CHUNK_LANES)]));
    this.perFrame = new Map();
    this.complete = false;
    const ids = (chunk) => run.lanes.slice(chunk * CHUNK_LANES, (chunk + 1) * CHUNK_LANES).map((lane) => lane.id);
    this.cache = new TileCache({
      address: ({ level, index, chunk }) => `/tile/${run.etag}/${level}/${index}?lanes=${ids(chunk).join(",")}`,
      top: this.top,
      idle,
      changed,
      failed,
    });
  }

  /**
   * Begin a frame: ask for tiles where the window has left what was asked for before. As long as
   * it stays within, panning asks for nothing.
   * @param {{t0: number, t1: number}} view
   * @param {number} width px
   * @param {number[]} lanes in sight
   */
  frame(view, width, lanes) {
    this.view = view;
    this.perFrame.clear();
    this.level = levelFor(view.t1 - view.t0, width, this.top);
    const chunks = [...new Set(lanes.map((id) => this.order.get(id)))].sort((a, b) => a - b);
    const { t0, t1 } = view;
    const p = this.planned;
    if (p && p.level === this.level && t0 >= p.t0 && t1 <= p.t1 && chunks.every((chunk) => p.chunks.includes(chunk))) return;
    const span = t1 - t0;
    this.planned = { level: this.level, t0: t0 - span, t1: t1 + span, chunks };
    const strip = Math.ceil(Math.min(this.lanes.length, STRIP_LANES) / CHUNK_LANES);
    const whole = [...new Set([...chunks, ...Array(strip).keys()])].map((chunk) => ({ level: this.top, index: 0, chunk }));
    this.cache.want([...whole, ...wanted(view, this.planned, this.level, this.top, this.duration, chunks)]);
  }

  /** Tiles for a lane in the window of the frame, left to right. @param {number} lane id */
  sources(lane) {
    return this.covering(this.order.get(lane)).sources;
  }

  /** Whether a lane is drawn at the level of the window, not a substitute. @param {number} lane id */
  loaded(lane) {
    return this.covering(this.order.get(lane)).complete;
  }

  covering(chunk) {
    let found = this.perFrame.get(chunk);
    if (!found) {
      const get = (level, index) => this.cache.get(level, index, chunk);
      found = cover(get, this.level, this.view.t0, this.view.t1, this.duration, this.top);
      this.perFrame.set(chunk, found);
    }
    return found;
  }

  /** The tile that holds the whole run. @param {number} lane id */
  whole(lane) {
    return this.cache.get(this.top, 0, this.order.get(lane));
  }

  /** Thread lanes with their whole-run tile, as far as they are here. */
  stripTiles() {
    const threads = this.lanes.filter((lane) => lane.kind === "thread").slice(0, STRIP_LANES);
    return threads.map((lane) => ({ lane: lane.id, tile: this.whole(lane.id) })).filter(({ tile }) => tile);
  }
}
