/**
 * Steps through the differences from the baseline, across all ranks.
 * @module
 */

import { getJson } from "../base/bridge.js";
import { count } from "../base/format.js";
import { around } from "../base/viewport.js";

/** A span narrower than this is hard to see: the window then zooms to it, px. */
const SEEN = 8;
/** Margin of that window on either side, in lengths of the span. */
const MARGIN = 12;

export class Differences {
  /** @param {import("../page/timeline.js").Timeline} timeline @param {any} run as /api/run describes it */
  constructor(timeline, run) {
    this.timeline = timeline;
    this.etag = run.etag;
    /** True if the run is compared with a baseline. */
    this.on = Boolean(run.baseline);
    this.total = run.differences ?? 0;
  }

  /**
   * Goes to the next or previous difference from the selected span, else from the window's start.
   * @param {"next"|"prev"} direction
   */
  async step(direction) {
    const { timeline } = this;
    const { current } = timeline.selection;
    if (!this.total) {
      timeline.toast("No operator differs from the baseline.");
      return;
    }
    const { t, lane, row } = current
      ? { ...current, t: current.start }
      : { t: Math.round(timeline.view.t0), lane: -1, row: -1 };
    const address = `/api/difference/${this.etag}?t=${t}&lane=${lane}&row=${row}&dir=${direction}`;
    try {
      const found = await timeline.selection.awaits(timeline.idle.track("difference", getJson(address)));
      if (found.ref === null) {
        timeline.toast(direction === "next" ? "No difference after this one." : "No difference before this one.");
        return;
      }
      await timeline.selection.select({ lane: found.lane, row: found.row, ref: found.ref }, true);
      this.closeIn();
      this.align();
      const { rank, label } = timeline.laneById.get(found.lane);
      timeline.toast(
        `Difference ${count(found.position)} of ${count(found.total)} · ${found.kind} · rank ${rank} · ${label}`,
      );
    } catch (error) {
      timeline.toast(error.message);
    }
  }

  /** Aligns the baseline at the operator, and brings both lanes into sight. */
  align() {
    const { alignment, selection } = this.timeline;
    const { current } = selection;
    alignment.follow();
    if (!current.beside) return;
    this.timeline.revealRow(current.beside.lane, current.beside.row);
    this.timeline.revealRow(current.lane, current.row);
  }

  closeIn() {
    const { selection, goal, width, duration } = this.timeline;
    const { t0: start, t1: end } = selection.extent;
    if (((end - start) / (goal.t1 - goal.t0)) * width < SEEN)
      this.timeline.glideTo(around(start, end, MARGIN, duration));
  }
}
