/**
 * Tiles: fetched in order of urgency, kept by least recent use, dropped requests aborted.
 * @module
 */
import { decode } from "./tile.js";
import { keyText } from "./plan.js";

const PARALLEL = 6;
const LIMIT = 128 * 2 ** 20;
const RETRY_MS = 2000;

/** @typedef {import("./plan.js").TileKey} TileKey */

export class TileCache {
  /**
   * @param {object} options
   * @param {(key: TileKey) => string} options.address
   * @param {number} options.top level that is never dropped: the fallback for everything
   * @param {import("./idle.js").Idle} options.idle
   * @param {() => void} options.changed called when a tile arrived
   * @param {(message: string) => void} options.failed called with "" when requests work again
   * @param {typeof fetch} [options.fetcher]
   * @param {number} [options.limit] bytes
   */
  constructor({ address, top, idle, changed, failed, fetcher = fetch.bind(globalThis), limit = LIMIT }) {
    Object.assign(this, { address, top, idle, changed, failed, fetcher, limit });
    /** @type {Map<string, {tile: import("./tile.js").Tile, used: number}>} */
    this.tiles = new Map();
    /** @type {Map<string, AbortController>} */
    this.flying = new Map();
    /** @type {TileKey[]} */
    this.queue = [];
    this.clock = 0;
    this.bytes = 0;
    this.stats = { requests: 0, bytes: 0, aborted: 0, failures: 0 };
  }

  /** @returns {import("./tile.js").Tile|undefined} */
  get(level, index, chunk) {
    const entry = this.tiles.get(`${level}/${index}/${chunk}`);
    if (entry) entry.used = this.clock;
    return entry?.tile;
  }

  /** These tiles, the most urgent first, and no others any more. @param {TileKey[]} keys */
  want(keys) {
    this.clock += 1;
    const texts = new Set(keys.map(keyText));
    for (const [text, controller] of this.flying) {
      if (!texts.has(text)) {
        this.stats.aborted += 1;
        this.flying.delete(text);
        controller.abort();
      }
    }
    this.queue = keys.filter((key) => !this.tiles.has(keyText(key)) && !this.flying.has(keyText(key)));
    this.pump();
  }

  /** Whether something asked for has not come yet. */
  get loading() {
    return this.queue.length + this.flying.size > 0;
  }

  pump() {
    while (this.queue.length && this.flying.size < PARALLEL) this.fetch(this.queue.shift());
  }

  /** @param {TileKey} key */
  fetch(key) {
    const text = keyText(key);
    const controller = new AbortController();
    this.flying.set(text, controller);
    this.stats.requests += 1;
    const done = this.idle.begin("tile");
    this.load(key, controller)
      .then((tile) => {
        if (controller.signal.aborted) return;
        this.keep(text, tile);
        this.failed("");
        this.changed();
      })
      .catch((error) => {
        if (controller.signal.aborted) return;
        this.stats.failures += 1;
        this.failed(error instanceof TypeError ? "The server does not answer. Trying again." : error.message);
        // What the server refuses it will refuse again; what failed on the way may come through.
        if (!(error.status < 500)) setTimeout(() => this.again(key), RETRY_MS);
      })
      .finally(() => {
        if (this.flying.get(text) === controller) this.flying.delete(text);
        this.pump();
        done();
      });
  }

  async load(key, { signal }) {
    const response = await this.fetcher(this.address(key), { signal });
    if (!response.ok) {
      const answer = await response.json().catch(() => null);
      throw Object.assign(new Error(answer?.error ?? `The server answered ${response.status}.`), { status: response.status });
    }
    const buffer = await response.arrayBuffer();
    this.stats.bytes += buffer.byteLength;
    return decode(buffer);
  }

  again(key) {
    if (this.queue.length === 0 && !this.tiles.has(keyText(key)) && !this.flying.has(keyText(key))) this.fetch(key);
  }

  keep(text, tile) {
    this.tiles.set(text, { tile, used: this.clock });
    this.bytes += tile.byteLength;
    if (this.bytes <= this.limit) return;
    const old = [...this.tiles].filter(([, e]) => e.tile.level !== this.top && e.used < this.clock);
    old.sort(([, a], [, b]) => a.used - b.used);
    for (const [key, entry] of old) {
      if (this.bytes <= this.limit * 0.9) break;
      this.tiles.delete(key);
      this.bytes -= entry.tile.byteLength;
    }
  }
}
