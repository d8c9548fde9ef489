/**
 * Moves the baseline's lanes of a rank so that one operator begins where the run's does.
 *
 * Tiles and spans keep their own times; a lane that is moved is only drawn elsewhere.
 * @module
 */

import { duration } from "../base/format.js";

/** @typedef {{lane: number, start: number, end: number}} Span times of its lane, ns */

const NONE = new Map();

export class Alignment {
  /** @param {import("../page/timeline.js").Timeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
    /** @type {Map<number, number>} by lane how much later it is drawn, ns; replaced, never changed */
    this.shifts = NONE;
  }

  /** Aligns the selected operator's rank at its partner in the baseline; without one, at nothing. */
  follow() {
    const { current } = this.timeline.selection;
    const lanes = this.timeline.laneById;
    const partner = current?.beside;
    if (!partner || lanes.get(partner.lane)?.kind !== "baseline") {
      this.clear();
      return;
    }
    const { rank } = lanes.get(partner.lane);
    const shift = current.start - partner.start_ns;
    const moved = [...lanes.values()].filter((lane) => lane.kind === "baseline" && lane.rank === rank);
    this.shifts = new Map(moved.map((lane) => [lane.id, shift]));
    this.timeline.changed();
  }

  clear() {
    if (!this.shifts.size) return;
    this.shifts = NONE;
    this.timeline.changed();
  }

  /** Returns how much later a lane is drawn, ns. @param {number} lane id */
  of(lane) {
    return this.shifts.get(lane) ?? 0;
  }

  /** Returns where a span is drawn. @template {Span} T @param {T} span @returns {T} */
  drawn(span) {
    const shift = this.of(span.lane);
    return shift ? { ...span, start: span.start + shift, end: span.end + shift } : span;
  }

  /** Returns the words behind a lane's label. @param {number} lane id */
  words(lane) {
    const shift = this.of(lane);
    return shift ? `${shift > 0 ? "+" : ""}${duration(shift)}` : "";
  }
}
