/**
 * Regions where several threads of a rank are in the same phase: shading, and jumping to them.
 * @module
 */

import { getJson } from "../base/bridge.js";
import { count, duration as formatDuration } from "../base/format.js";
import { around } from "../base/viewport.js";

const USUAL = "backward";
/** More regions in one window would cover it completely. */
const MAX_REGIONS = 2000;

/** @typedef {[number, number, number[]]} Region start, end, lanes in the phase there */

export class Overlaps {
  /** @param {import("../page/timeline.js").Timeline} timeline @param {string} etag of the run */
  constructor(timeline, etag) {
    this.timeline = timeline;
    this.etag = etag;
    this.on = false;
    this.of = "";
    /** @type {Region[]|null} by start; null: not yet requested */
    this.regions = null;
    this.at = -1;
  }

  /** @param {string} of a phase, or /a regular expression/ for names; empty: the backward phase */
  choose(of) {
    const next = of.trim() === USUAL ? "" : of.trim();
    if (next === this.of) return;
    this.of = next;
    this.regions = null;
    this.at = -1;
    this.timeline.onOverlapsChosen?.();
    this.timeline.changed();
  }

  /** The phase or name, for messages. */
  get what() {
    const phase = this.of || USUAL;
    return phase.startsWith("/") ? phase : `the ${phase} phase`;
  }

  /** Fetches the regions, once. */
  async load() {
    if (this.regions) return this.regions;
    const { timeline, of } = this;
    const t1 = Math.ceil(timeline.duration);
    const address = `/api/overlap/${this.etag}?phase=${encodeURIComponent(of || USUAL)}&t0=0&t1=${t1}`;
    const answer = await timeline.idle.track("overlap", getJson(address));
    if (of !== this.of) return this.load();
    this.regions = answer.regions.sort((x, y) => x[0] - y[0]);
    this.total = answer.total ?? this.regions.length;
    return this.regions;
  }

  /** Shades the regions without moving the window. */
  async show() {
    this.on = true; // before the request: the address may be written while it runs
    try {
      await this.load();
      this.timeline.invalidate("lanes");
    } catch (error) {
      this.hide();
      this.timeline.toast(error.message);
    }
  }

  hide() {
    this.on = false;
    this.at = -1;
    this.timeline.invalidate("lanes");
  }

  /** Goes to the next or previous region from the middle of the window. @param {1|-1} direction */
  async step(direction) {
    const { timeline } = this;
    try {
      await this.load();
    } catch (error) {
      timeline.toast(error.message);
      return;
    }
    if (!this.regions.length) {
      timeline.toast(`No two threads of a rank are in ${this.what} at the same time.`);
      return;
    }
    this.on = true;
    this.go(this.following(direction));
  }

  /** Goes to a region that the list names by start, end and rank. @param {string} named */
  async visit(named) {
    const [start, end, rank] = named.split("-").map(Number);
    try {
      await this.load();
    } catch (error) {
      this.timeline.toast(error.message);
      return;
    }
    // The list is that of the window, which may cut its first and last region.
    const at = this.regions.findIndex(
      ([t0, t1, lanes]) => t0 <= start && t1 >= end && this.timeline.laneById.get(lanes[0])?.rank === rank,
    );
    this.on = true;
    if (at >= 0) this.go(at);
    else this.timeline.glideTo(around(start, end, 1, this.timeline.duration));
  }

  /** @param {number} at position among the regions */
  go(at) {
    const { timeline } = this;
    this.at = at;
    const [t0, t1] = this.regions[this.at];
    const next = around(t0, t1, 1, timeline.duration);
    timeline.glideTo(next);
    const lanes = this.regions[this.at][2].map((id) => timeline.laneById.get(id)).filter(Boolean);
    for (const lane of lanes.toReversed()) timeline.revealRow(lane.id, 0);
    const who = lanes.length ? ` · rank ${lanes[0].rank}: ${lanes.map((lane) => lane.label).join(", ")}` : "";
    timeline.toast(`Overlap ${count(this.at + 1)} of ${count(this.total)} · ${formatDuration(t1 - t0)}${who}`);
  }

  following(direction) {
    const n = this.regions.length;
    if (this.at >= 0) return (this.at + direction + n) % n;
    const middle = (this.timeline.view.t0 + this.timeline.view.t1) / 2;
    const after = this.regions.findIndex(([t]) => t >= middle);
    const next = Math.max(after, 0);
    return direction > 0 ? next : (next - 1 + n) % n;
  }

  /** Returns the regions in the window. @returns {Region[]} */
  visible({ t0, t1 }) {
    if (!this.on || !this.regions) return [];
    return this.regions.filter(([a, b]) => b >= t0 && a <= t1).slice(0, MAX_REGIONS);
  }
}
