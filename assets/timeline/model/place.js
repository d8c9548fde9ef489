/**
 * Rank, thread and step that are chosen: the selected span's, else what another page handed on.
 * @module
 */

import { parse } from "../base/address.js";
import { selectionIn } from "../base/page_selection.js";

export class Place {
  /** @param {import("../page/timeline.js").Timeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
    /** @type {import("../base/page_selection.js").Place} */
    this.handed = { rank: null, thread: "", step: null };
  }

  /** What the address says beside the window. @returns {import("../base/page_selection.js").Place} */
  get current() {
    const { selection, laneById, stepping } = this.timeline;
    const span = selection.current;
    const lane = span && laneById.get(span.lane);
    if (lane) this.handed = { rank: lane.rank, thread: lane.thread ?? "", step: span.step ?? null };
    return { ...this.handed, step: stepping.measured ?? this.handed.step };
  }

  /**
   * Shows the lane of a rank or thread, and the step unless there is a window.
   * @param {import("../base/page_selection.js").Place} place
   * @param {boolean} windowed
   */
  goTo(place, windowed) {
    const { rank, thread, step } = place;
    const { selection, lanes, laneById, run, steps, stepping } = this.timeline;
    const known = (number, of) => (of.includes(number) ? number : null);
    const measured = known(
      step,
      steps.map(([one]) => one),
    );
    this.handed = { rank: known(rank, run.ranks), thread, step: measured };
    const there = laneById.get(selection.current?.lane);
    if (there && (there.rank !== rank || (thread && there.thread !== thread))) selection.clear();
    const own = lanes.filter((one) => one.rank === rank);
    const paged = this.timeline.run.first_lanes; // the thread may not be here yet
    const lane = own.find((one) => !thread || one.thread === thread) ?? (paged ? own[0] : undefined);
    if (lane) this.timeline.revealRow(lane.id, 0);
    if (measured !== null && !windowed) stepping.show(measured);
  }

  /** Shows the selection that a page hands on, if it is another than before. @param {string} search @param {string} before */
  take(search, before) {
    if (selectionIn(search) === selectionIn(before)) return;
    const { place, window } = parse(search);
    this.timeline.range = null;
    if (window) this.timeline.setView(window);
    this.goTo(place, window !== null);
  }
}
