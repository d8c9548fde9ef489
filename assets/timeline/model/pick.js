/**
 * What a slice or a crowded bucket is, to the nanosecond: tiles only hold what is drawn, so this is
 * asked for when someone points at it.
 * @module
 */

import { getJson } from "../base/bridge.js";
import { debounced } from "../base/idle.js";

/** The pointer has to rest this long, ms: passing over lanes asks for nothing. */
const REST = 60;
const KEPT = 500;

/** @typedef {import("./hit_test.js").Hit} Hit */

export class Look {
  /**
   * @param {string} etag of the run
   * @param {import("../base/idle.js").Idle} idle
   * @param {() => void} changed something is known that was not
   * @param {(address: string) => Promise<any>} [get]
   */
  constructor(etag, idle, changed, get = getJson) {
    Object.assign(this, { etag, idle, changed, get });
    /** @type {Map<string, object|null>} by address */
    this.known = new Map();
    this.later = debounced(idle, "look", REST, (hit) => this.ask(hit).catch(() => {}));
  }

  /** The hit with all that is known of it by now; the rest is asked for. @param {Hit|null} hit @returns {Hit|null} */
  of(hit) {
    if (!hit || hit.kind === "sample") return hit;
    const address = this.address(hit);
    if (this.known.has(address)) return { ...hit, ...(this.known.get(address) ?? { near: true }) };
    if (this.asked !== address) {
      this.asked = address;
      this.later(hit);
    }
    return hit;
  }

  /** The hit with everything; rejects where the server does not answer. @param {Hit} hit @returns {Promise<Hit>} */
  async ask(hit) {
    if (hit.kind === "sample") return hit;
    const address = this.address(hit);
    if (!this.known.has(address)) {
      const found = await this.idle.track("look", this.get(address));
      if (this.known.size >= KEPT) this.known.clear();
      this.known.set(address, exactly(hit, found));
      this.changed();
    }
    return { ...hit, ...this.known.get(address) };
  }

  /** A wide slice is the one that covers its middle, a bucket stands for what is shorter than it. */
  address({ kind, lane, row, start, end }) {
    const at = Math.floor((Math.max(start, 0) + end) / 2);
    const [t0, t1] = kind === "slice" ? [at, at + 1] : [start, end];
    const limit = kind === "slice" ? "" : `&shorter=${end - start}`;
    return `/api/look/${this.etag}/${lane}?row=${row}&t0=${t0}&t1=${t1}${limit}`;
  }
}

/** What an answer says more than the hit. */
function exactly(hit, found) {
  if (found.ref === null) return null;
  const slice = { ref: found.ref, exact: true };
  if (hit.kind === "slice") return { ...slice, start: found.start_ns, end: found.end_ns };
  if (found.count === undefined) return { ref: found.ref }; // a page without a server may not know
  return { ...slice, count: found.count, covered: found.covered_ns / (hit.end - hit.start) };
}
