/**
 * Shows training steps of the first rank: by number, the next one, the one at an instant.
 * @module
 */

import { around } from "../base/viewport.js";

export class Stepping {
  /** @param {import("../page/timeline.js").Timeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
  }

  /** Shows a step and measures it. @param {number} number */
  show(number) {
    const { timeline } = this;
    const { steps } = timeline;
    const found = steps.find(([step]) => step === number);
    if (!found) {
      const range = `steps are ${steps.at(0)?.[0]} to ${steps.at(-1)?.[0]}`;
      timeline.toast(steps.length ? `No step ${number}: ${range}.` : "The run holds no steps.");
      return;
    }
    timeline.setRange(found[1], found[2]);
    timeline.glideTo(around(found[1], found[2], 0.05, timeline.duration));
  }

  /** Shows the step after or before the measured one, else the one in the middle of the window. @param {1|-1} direction */
  next(direction) {
    const { range, goal, steps } = this.timeline;
    const here = steps.findIndex(([, start, end]) => range && start === range.t0 && end === range.t1);
    const middle = (goal.t0 + goal.t1) / 2;
    const there = here >= 0 ? here + direction : steps.findIndex(([, , end]) => end > middle);
    if (steps[there]) this.show(steps[there][0]);
    else this.timeline.toast(direction > 0 ? "This is the last step." : "This is the first step.");
  }

  /** Number of the step that is the range; undefined without. */
  get measured() {
    const { range, steps } = this.timeline;
    return steps.find(([, start, end]) => range && start === range.t0 && end === range.t1)?.[0];
  }

  /** Returns the number of the step at an instant. @param {number} t ns @returns {number|undefined} */
  at(t) {
    return this.timeline.steps.find(([, start, end]) => start <= t && t < end)?.[0];
  }
}
