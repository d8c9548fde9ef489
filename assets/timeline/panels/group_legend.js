/**
 * The line below the lanes that says what the lanes of groups of ranks show, and leads to the slowest rank.
 * @module
 */

import { element } from "../base/dom.js";
import { slowWords } from "../model/group_times.js";

export class GroupLegend {
  /** @param {HTMLElement} grid that it becomes the last row of @param {import("../page/timeline.js").Timeline} timeline */
  constructor(grid, timeline) {
    this.timeline = timeline;
    this.host = element("div", "", "tl-legend");
    grid.append(this.host);
    this.what = element("span", "");
    this.slowest = element("button", "", "tl-slowest");
    this.slowest.type = "button";
    this.slowest.title = "Open its group and show it (J)";
    this.slowest.addEventListener("click", () => timeline.groupTimes.showSlowest());
    this.first = element("button", "slow groups first", "link");
    this.first.type = "button";
    this.first.title = "Put groups with slow ranks on top (Shift + J)";
    this.first.addEventListener("click", () => timeline.groupTimes.slowestFirst());
    const keys = [
      ["least", "up to the least"],
      ["band", "from least to greatest"],
      ["median", "median of the group's ranks"],
      ["slow", "a slow rank: 20 % and more above the median of all ranks"],
    ].map(([name, text]) => {
      const entry = element("span", "");
      entry.append(element("i", "", `swatch ${name}`), text);
      return entry;
    });
    this.host.append(this.what, ...keys, this.slowest, this.first);
    timeline.groupTimes.onCame = () => this.show();
    this.show();
  }

  show() {
    const { known, all } = this.timeline.groupTimes;
    const [one] = known.values();
    const hidden = !one || !this.timeline.groups.some(({ summed }) => summed);
    if (this.host.hidden !== hidden) this.host.hidden = hidden;
    if (hidden) return;
    this.what.textContent = one.waits
      ? "Time of a step in which a rank does not wait for others:"
      : "Time of a step (clocks were not compared, waits are not known):";
    this.slowest.textContent = slowWords(all);
    this.slowest.disabled = !all.slowest.length;
    this.first.hidden = !all.slowest.length;
  }
}
