/**
 * Fetches tiles, whole or in parts, the most urgent first, and caches them per part and lane (least
 * recently used). Aborts requests no longer needed.
 * @module
 */

import { placeOf } from "./tile_plan.js";

const MAX_REQUESTS = 6;
const MAX_BYTES = 96 * 2 ** 20;
const RETRY_MS = 2000;
/** Lanes per request, so that the first are drawn while others are still loading. */
export const BATCH = 16;
/** Bytes that a cached lane of a part takes besides its payload. */
const OVERHEAD = 100;

/**
 * @typedef {{level: number, from: number, to: number, lanes: number[]}} Asked one request:
 * the parts of one tile from `from` up to `to`
 */

/** @param {Asked} asked @returns {number[]} the places of its parts */
const placesOf = ({ level, from, to }) => Array.from({ length: to - from }, (_, i) => placeOf(level, from + i));

export class TileCache {
  /**
   * @param {object} options
   * @param {(asked: Asked) => string} options.address
   * @param {(buffer: ArrayBuffer) => import("./tile.js").Tile} options.decode
   * @param {number} options.top level that is never dropped: the fallback for all others
   * @param {import("../base/idle.js").Idle} options.idle
   * @param {() => void} options.changed called when a tile arrived
   * @param {(message: string) => void} options.failed called with "" when requests work again
   * @param {typeof fetch} [options.fetcher]
   * @param {number} [options.limit] bytes
   */
  constructor({ address, decode, top, idle, changed, failed, fetcher = fetch.bind(globalThis), limit = MAX_BYTES }) {
    Object.assign(this, { address, decode, top, idle, changed, failed, fetcher, limit });
    /** @type {Map<number, Map<number, {tile: import("./tile.js").Tile, bytes: number, used: number}>>} by place, then lane; parts of one request share the tile */
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
  get(level, part, lane) {
    const entry = this.places.get(placeOf(level, part))?.get(lane);
    if (entry) entry.used = this.clock;
    return entry?.tile;
  }

  /** How many lanes of parts are cached. */
  get size() {
    let size = 0;
    for (const lanes of this.places.values()) size += lanes.size;
    return size;
  }

  /**
   * Requests these lanes of these parts, the most urgent first, and drops all other requests.
   * @param {Asked[]} wishes
   */
  want(wishes) {
    this.clock += 1;
    /** @type {Map<number, Set<number>>} */
    const missing = new Map();
    for (const wish of wishes) {
      for (const place of placesOf(wish)) {
        const here = this.places.get(place);
        const wanted = missing.get(place) ?? new Set();
        missing.set(place, wanted);
        for (const lane of wish.lanes) if (!here?.has(lane)) wanted.add(lane);
      }
    }
    for (const [controller, asked] of this.flying) {
      const sets = placesOf(asked)
        .map((place) => missing.get(place))
        .filter(Boolean);
      if (asked.lanes.some((lane) => sets.some((wanted) => wanted.has(lane)))) {
        for (const wanted of sets) for (const lane of asked.lanes) wanted.delete(lane);
        continue;
      }
      this.stats.aborted += 1;
      this.flying.delete(controller);
      controller.abort();
    }
    this.queue = wishes.flatMap((wish) => asksOf(wish, missing));
    this.pump();
  }

  /** True while a request is pending. */
  get loading() {
    return this.queue.length + this.flying.size > 0;
  }

  pump() {
    while (this.queue.length && this.flying.size < MAX_REQUESTS) this.fetch(this.queue.shift());
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
        // The server would refuse the same request again; a network error may pass.
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
      throw Object.assign(new Error(answer?.error ?? `The server answered ${response.status}.`), {
        status: response.status,
      });
    }
    const buffer = await response.arrayBuffer();
    // The compressed size: the browser has unpacked the buffer.
    this.stats.bytes += Number(response.headers?.get("content-length")) || buffer.byteLength;
    return this.decode(buffer);
  }

  again(asked) {
    if (this.loading) return;
    const places = placesOf(asked);
    const lanes = asked.lanes.filter((lane) => places.some((place) => !this.places.get(place)?.has(lane)));
    if (lanes.length) this.fetch({ ...asked, lanes });
  }

  keep(asked, tile) {
    const places = placesOf(asked);
    for (const place of places) {
      if (!this.places.has(place)) this.places.set(place, new Map());
      const here = this.places.get(place);
      for (const lane of asked.lanes) {
        const bytes = (tile.bytes.get(lane) ?? 0) / places.length + OVERHEAD;
        this.bytes += bytes - (here.get(lane)?.bytes ?? 0);
        here.set(lane, { tile, bytes, used: this.clock });
      }
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

/**
 * Returns the requests for the missing parts of a wish, and removes them from `missing`. Lanes that
 * miss the same parts share a request.
 * @param {Asked} wish
 * @param {Map<number, Set<number>>} missing
 * @returns {Asked[]}
 */
function asksOf({ level, from, to, lanes }, missing) {
  /** @type {Map<string, Asked>} */
  const asks = new Map();
  const sets = placesOf({ level, from, to, lanes }).map((place) => missing.get(place));
  for (const lane of lanes) {
    const first = sets.findIndex((wanted) => wanted.has(lane));
    if (first < 0) continue;
    const last = sets.findLastIndex((wanted) => wanted.has(lane));
    for (let i = first; i <= last; i += 1) sets[i].delete(lane);
    const key = `${first}-${last}`;
    const ask = asks.get(key) ?? { level, from: from + first, to: from + last + 1, lanes: [] };
    asks.set(key, ask);
    ask.lanes.push(lane);
  }
  return [...asks.values()].flatMap((ask) => {
    const batches = [];
    for (let i = 0; i < ask.lanes.length; i += BATCH) batches.push({ ...ask, lanes: ask.lanes.slice(i, i + BATCH) });
    return batches;
  });
}
