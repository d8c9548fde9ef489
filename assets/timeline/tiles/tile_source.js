/**
 * Requests the tiles of the window and provides those available for drawing.
 * @module
 */

import { levelFor, TILE_BUCKETS, TILE_PARTS, topLevel } from "../base/viewport.js";
import { TileCache } from "./cache.js";
import { decode, paintsOf } from "./tile.js";
import { cover, indices, wanted } from "./tile_plan.js";

/** Lanes whose activity the strip adds up; more would not change the picture. */
const STRIP_LANES = 256;
/** Part of the window that is prefetched on either side: panning within it sends no requests. */
const AHEAD = 0.5;
/**
 * Buckets requested at once, over all lanes, so that the payload does not grow with the number of
 * lanes: with many lanes less is prefetched, and only parts in the window. A crowded lane takes 3
 * bytes per bucket compressed.
 */
const MAX_BUCKETS = 1300 * 64;
const UNMOVED = new Map();
const PART_BUCKETS = TILE_BUCKETS / TILE_PARTS;

/** Returns the end of a request's address. @param {import("./cache.js").Asked} asked */
function placeText({ level, from, to, lanes }) {
  const index = Math.floor(from / TILE_PARTS);
  const [first, last] = [from, to].map((part) => (part - index * TILE_PARTS) * PART_BUCKETS);
  const part = last - first < TILE_BUCKETS ? `&part=${first}-${last}` : "";
  return `${level}/${index}?lanes=${lanes.join(",")}${part}`;
}

export class TileSource {
  /**
   * @param {any} run as /api/run describes it
   * @param {number} duration ns
   * @param {import("../base/idle.js").Idle} idle
   * @param {() => void} changed a tile arrived
   * @param {(message: string) => void} failed
   */
  constructor(run, duration, idle, changed, failed) {
    this.duration = duration;
    this.idle = idle;
    /** @type {import("./cache.js").Asked[]|null} next requests to the cache */
    this.wishes = null;
    this.top = topLevel(duration);
    this.level = this.top;
    this.wholeRun = { level: this.top, from: 0, to: TILE_PARTS };
    this.paints = paintsOf(run);
    this.perFrame = new Map();
    /** @type {{lane: number, tile: import("./tile.js").Tile}[]} */
    this.strip = [];
    const tiles = { decode: (buffer) => decode(buffer, this.paints), top: this.top, idle, changed, failed };
    const address = (asked) => `/tile/${run.etag}/${placeText(asked)}`;
    this.cache = new TileCache({ ...tiles, address, changed: () => this.came(changed) });
    const threads = run.lanes.filter((lane) => lane.kind === "thread").slice(0, STRIP_LANES);
    this.stripLanes = threads.map((lane) => lane.id);
    const outermost = (asked) => `${address(asked)}&rows=1`;
    this.stripCache = new TileCache({ ...tiles, address: outermost, changed: () => this.stripCame(changed) });
    this.stripAsked = false;
  }

  /**
   * Begins a frame: requests tiles if the window has left the range requested before. Panning inside
   * that range sends no requests.
   *
   * While the window glides, tiles are requested for its goal: those on the way would arrive too late.
   * @param {{t0: number, t1: number}} view
   * @param {{t0: number, t1: number}} goal where the window will be; without a glide the view itself
   * @param {number} width px
   * @param {number[]} lanes visible, top to bottom, some more than once
   * @param {Map<number, number>} [shifts] by lane how much later it is drawn, ns
   */
  frame(view, goal, width, lanes, shifts = UNMOVED) {
    this.view = view;
    this.shifts = shifts;
    this.perFrame.clear();
    this.level = levelFor(view.t1 - view.t0, width, this.top);
    const { t0, t1 } = goal;
    const level = levelFor(t1 - t0, width, this.top);
    const p = this.planned;
    const planned = p && p.level === level && p.shifts === shifts;
    if (planned && t0 >= p.t0 && t1 <= p.t1 && lanes.every((lane) => p.lanes.has(lane))) return;
    const { top } = this;
    const seen = new Set(lanes);
    const room = MAX_BUCKETS / seen.size - PART_BUCKETS - (t1 - t0) / 2 ** level;
    const whole = level === top || room > 3 * TILE_BUCKETS;
    const span = Math.min((t1 - t0) * AHEAD, Math.max(0, room / 2) * 2 ** level);
    this.planned = { level, t0: t0 - span, t1: t1 + span, lanes: seen, shifts };
    const shiftOf = (lane) => shifts.get(lane) ?? 0;
    const plans = [...new Set([...seen].map(shiftOf))].map((shift) => ({
      ...this.plan(goal, shift, whole),
      lanes: [...seen].filter((lane) => shiftOf(lane) === shift),
    }));
    const near = plans.flatMap(({ near, lanes }) => near.map((place) => ({ ...place, lanes })));
    const ahead = plans.flatMap(({ ahead, lanes }) => ahead.map((place) => ({ ...place, lanes })));
    this.ask([...near, { ...this.wholeRun, lanes: [...seen] }, ...ahead]);
  }

  /** Returns the parts of tiles for lanes that are drawn later by `shift`, those in the window apart. */
  plan(goal, shift, whole) {
    const { level, t0, t1 } = this.planned;
    const own = { t0: goal.t0 - shift, t1: goal.t1 - shift };
    const ahead = wanted({ t0: t0 - shift, t1: t1 - shift }, own, level, this.duration, whole);
    // One request per tile: the part in the window together with its prefetched parts.
    const [first, last] = indices(level, own.t0, own.t1, this.duration);
    return { near: ahead.filter(({ from, to }) => from <= last && to > first), ahead };
  }

  /** Runs after the frame: sending a dozen requests takes longer than drawing the lanes. */
  ask(wishes) {
    if (!this.wishes) {
      const asked = this.idle.begin("wishes");
      setTimeout(() => {
        const { wishes } = this;
        this.wishes = null;
        this.cache.want(wishes);
        if (!wishes.some(({ lanes }) => lanes.length)) this.came(() => {}); // no lane is in sight
        asked();
      });
    }
    this.wishes = wishes;
  }

  /** True while a request is pending. */
  get loading() {
    return Boolean(this.wishes) || this.cache.loading;
  }

  /** Requests the strip's tiles only once the lanes have theirs. */
  came(changed) {
    if (!this.stripAsked && !this.cache.queue.length) {
      this.stripAsked = true;
      this.stripCache.want([{ ...this.wholeRun, lanes: this.stripLanes }]);
    }
    changed();
  }

  stripCame(changed) {
    const tiles = this.stripLanes.map((lane) => ({ lane, tile: this.stripCache.get(this.top, 0, lane) }));
    this.strip = tiles.filter(({ tile }) => tile);
    changed();
  }

  /** Returns the tiles for a lane in the window of the frame, left to right. @param {number} lane id */
  sources(lane) {
    return this.covering(lane).sources;
  }

  /** True if a lane is drawn at the level of the window. @param {number} lane id */
  loaded(lane) {
    return this.covering(lane).complete;
  }

  covering(lane) {
    let found = this.perFrame.get(lane);
    if (!found) {
      const get = (level, part) => this.cache.get(level, part, lane);
      const shift = this.shifts.get(lane) ?? 0;
      const [t0, t1] = [this.view.t0 - shift, this.view.t1 - shift];
      found = cover(get, this.level, t0, t1, this.duration, this.top);
      this.perFrame.set(lane, found);
    }
    return found;
  }

  /** Returns the tile that holds the whole run. @param {number} lane id */
  whole(lane) {
    return this.cache.get(this.top, 0, lane);
  }

  /** Returns thread lanes with their whole-run tile, those already loaded. */
  stripTiles() {
    return this.strip;
  }
}
