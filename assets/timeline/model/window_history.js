/**
 * The windows in which the view rested, to go back to.
 * @module
 */

const MAX_WINDOWS = 100;
/** A smaller change, as a share of the window, does not make another window. */
const SAME = 0.01;

export class WindowHistory {
  /** @param {import("../page/timeline.js").Timeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
    /** @type {{t0: number, t1: number}[]} */
    this.windows = [];
    this.resting = timeline.view;
  }

  /** Call when the view rests. @param {{t0: number, t1: number}} view */
  remember(view) {
    const { resting, windows } = this;
    const moved = Math.abs(view.t0 - resting.t0) + Math.abs(view.t1 - resting.t1);
    if (moved < (resting.t1 - resting.t0) * SAME) return;
    windows.push(resting);
    if (windows.length > MAX_WINDOWS) windows.shift();
    this.resting = view;
  }

  /** Shows the window before this one. */
  back() {
    const last = this.windows.pop();
    if (!last) {
      this.timeline.toast("No window before this one.");
      return;
    }
    this.resting = last;
    this.timeline.glideTo(last);
  }
}
