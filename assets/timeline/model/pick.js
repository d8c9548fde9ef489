/**
 * Requests exact facts about a span or a crowded bucket when the user points at it: tiles only hold
 * the drawing.
 * @module
 */

import { getJson } from "../base/bridge.js";
import { debounced } from "../base/idle.js";

/** The pointer must rest this long, ms: moving over lanes sends no requests. */
const PAUSE_MS = 60;
const MAX_ANSWERS = 500;

/** @typedef {import("./hit_test.js").Hit} Hit */

export class Picker {
  /**
   * @param {string} etag of the run
   * @param {import("../base/idle.js").Idle} idle
   * @param {() => void} changed called when an answer came
   * @param {(address: string) => Promise<any>} [get]
   */
  constructor(etag, idle, changed, get = getJson) {
    Object.assign(this, { etag, idle, changed, get });
    /** @type {Map<string, object|null>} by address */
    this.known = new Map();
    this.later = debounced(idle, "look", PAUSE_MS, (hit) => this.ask(hit).catch(() => {}));
  }

  /** Returns the hit with all that is known so far, and requests the rest. @param {Hit|null} hit @returns {Hit|null} */
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

  /** Resolves with the complete hit; rejects if the server does not answer. @param {Hit} hit @returns {Promise<Hit>} */
  async ask(hit) {
    if (hit.kind === "sample") return hit;
    const address = this.address(hit);
    if (!this.known.has(address)) {
      const found = await this.idle.track("look", this.get(address));
      if (this.known.size >= MAX_ANSWERS) this.known.clear();
      this.known.set(address, exactly(hit, found));
      this.changed();
    }
    return { ...hit, ...this.known.get(address) };
  }

  /** Returns the request for a hit: the span at its middle, or for a bucket the spans shorter than it. */
  address({ kind, lane, row, start, end }) {
    const at = Math.floor((Math.max(start, 0) + end) / 2);
    const [t0, t1] = kind === "span" ? [at, at + 1] : [start, end];
    const limit = kind === "span" ? "" : `&shorter=${end - start}`;
    return `/api/look/${this.etag}/${lane}?row=${row}&t0=${t0}&t1=${t1}${limit}`;
  }
}

/** Returns what an answer adds to the hit. */
function exactly(hit, found) {
  if (found.ref === null) return null;
  const span = { ref: found.ref, exact: true };
  if (hit.kind === "span") return { ...span, start: found.start_ns, end: found.end_ns };
  if (found.count === undefined) return { ref: found.ref }; // an exported page may not hold more
  return { ...span, count: found.count, covered: found.covered_ns / (hit.end - hit.start) };
}
