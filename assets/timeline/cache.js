/**
 * Tiles: fetched in order of urgency, kept lane by lane by least recent use, dropped requests
 * aborted.
 * @module
 */
import { placeOf } from "./plan.js";

const PARALLEL = 6;
const LIMIT = 96 * 2 ** 20;
const RETRY_MS = 2000;
/** Lanes of one request, so that the first of many are drawn while the others are on their way. */
export const BATCH = 16;
/** What a lane of a tile costs besides its payload: a tile without slices is kept too. */
const OVERHEAD = 200;

/**
 * @typedef {{level: number, index: number}} Place of a tile
 * @typedef {{level: number, index: number, lanes: number[]}} Asked for in one request
 */

export class TileCache {
  /**
   * @param {object} options
   * @param {(asked: Asked) => string} options.address
   * @param {(buffer: ArrayBuffer) => import("./tile.js").Tile} options.decode
   * @param {number} options.top level that is never dropped: the fallback for everything
   * @param {import("./idle.js").Idle} options.idle
   * @param {() => void} options.changed called when a tile arrived
   * @param {(message: string) => void} options.failed called with "" when requests work again
   * @param {typeof fetch} [options.fetcher]
   * @param {number} [options.limit] bytes
   */
  constructor({ address, decode, top, idle, changed, failed, fetcher = fetch.bind(globalThis), limit = LIMIT }) {
    Object.assign(this, { address, decode, top, idle, changed, failed, fetcher, limit });
    /** @type {Map<number, Map<number, {tile: import("./tile.js").Tile, bytes: number, used: number}>>} by place, then lane */
    this.places = new Map();
    /** @type {Map<AbortController, Asked>} */
    this.flying = new Map();
    /** @type {Asked[]} */
    this.queue = [];
    this.clock = 0;
    this.bytes = 0;
    this.stats = { requests: 0, bytes: 0, aborted: 0, failures: 0 };
  }

  /** @returns {import("./tile.js").Tile|undefined} */
  get(level, index, lane) {
    const entry = this.places.get(placeOf(level, index))?.get(lane);
    if (entry) entry.used = this.clock;
    return entry?.tile;
  }

  /** Lanes of tiles that are here. */
  get size() {
    let size = 0;
    for (const lanes of this.places.values()) size += lanes.size;
    return size;
  }

  /**
   * These lanes of these tiles, the most urgent first, and no others any more.
   * @param {Asked[]} wishes
   */
  want(wishes) {
    this.clock += 1;
    /** @type {Map<number, Set<number>>} */
    const missing = new Map();
    for (const { level, index, lanes } of wishes) {
      const place = placeOf(level, index);
      if (!missing.has(place)) missing.set(place, new Set());
      for (const lane of lanes) if (!this.places.get(place)?.has(lane)) missing.get(place).add(lane);
    }
    for (const [controller, asked] of this.flying) {
      const wanted = missing.get(placeOf(asked.level, asked.index));
      if (asked.lanes.some((lane) => wanted?.has(lane))) {
        for (const lane of asked.lanes) wanted.delete(lane);
        continue;
      }
      this.stats.aborted += 1;
      this.flying.delete(controller);
      controller.abort();
    }
    this.queue = [];
    for (const { level, index, lanes } of wishes) {
      const wanted = missing.get(placeOf(level, index));
      const ask = lanes.filter((lane) => wanted.delete(lane));
      for (let i = 0; i < ask.length; i += BATCH) this.queue.push({ level, index, lanes: ask.slice(i, i + BATCH) });
    }
    this.pump();
  }

  /** Whether something asked for has not come yet. */
  get loading() {
    return this.queue.length + this.flying.size > 0;
  }

  pump() {
    while (this.queue.length && this.flying.size < PARALLEL) this.fetch(this.queue.shift());
  }

  /** @param {Asked} asked */
  fetch(asked) {
    const controller = new AbortController();
    this.flying.set(controller, asked);
    this.stats.requests += 1;
    const done = this.idle.begin("tile");
    this.load(asked, controller)
      .then((tile) => {
        if (controller.signal.aborted) return;
        this.keep(asked, tile);
        this.failed("");
        this.changed();
      })
      .catch((error) => {
        if (controller.signal.aborted) return;
        this.stats.failures += 1;
        this.failed(error instanceof TypeError ? "The server does not answer. Trying again." : error.message);
        // What the server refuses it will refuse again; what failed on the way may come through.
        if (!(error.status < 500)) setTimeout(() => this.again(asked), RETRY_MS);
      })
      .finally(() => {
        this.flying.delete(controller);
        this.pump();
        done();
      });
  }

  async load(asked, { signal }) {
    const response = await this.fetcher(this.address(asked), { signal });
    if (!response.ok) {
      const answer = await response.json().catch(() => null);
      throw Object.assign(new Error(answer?.error ?? `The server answered ${response.status}.`), { status: response.status });
    }
    const buffer = await response.arrayBuffer();
    // What travelled: the browser has unpacked it.
    this.stats.bytes += Number(response.headers?.get("content-length")) || buffer.byteLength;
    return this.decode(buffer);
  }

  again({ level, index, lanes }) {
    if (this.loading) return;
    const missing = lanes.filter((lane) => !this.places.get(placeOf(level, index))?.has(lane));
    if (missing.length) this.fetch({ level, index, lanes: missing });
  }

  keep({ level, index, lanes }, tile) {
    const place = placeOf(level, index);
    if (!this.places.has(place)) this.places.set(place, new Map());
    const here = this.places.get(place);
    for (const lane of lanes) {
      const bytes = (tile.bytes.get(lane) ?? 0) + OVERHEAD;
      here.set(lane, { tile, bytes, used: this.clock });
      this.bytes += bytes;
    }
    if (this.bytes > this.limit) this.forget();
  }

  forget() {
    const old = [];
    for (const [place, lanes] of this.places) {
      for (const [lane, entry] of lanes) {
        if (entry.tile.level !== this.top && entry.used < this.clock) old.push({ place, lane, entry });
      }
    }
    old.sort((a, b) => a.entry.used - b.entry.used);
    for (const { place, lane, entry } of old) {
      if (this.bytes <= this.limit * 0.9) break;
      const lanes = this.places.get(place);
      lanes.delete(lane);
      if (!lanes.size) this.places.delete(place);
      this.bytes -= entry.bytes;
    }
  }
}
