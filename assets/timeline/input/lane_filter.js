/**
 * The field above the lanes' names that filters lanes.
 * @module
 */

import { element } from "../base/dom.js";

export class LaneFilter {
  /**
   * @param {HTMLElement} host
   * @param {import("../page/timeline.js").Timeline} timeline
   * @param {() => void} leave returns the focus to the lanes
   */
  constructor(host, timeline, leave) {
    this.timeline = timeline;
    this.leave = leave;
    this.input = element("input", "");
    Object.assign(this.input, { type: "text", placeholder: "Filter lanes …", autocomplete: "off", spellcheck: false });
    this.input.setAttribute("aria-label", "Filter lanes by rank, process, thread or name");
    this.input.title = "Words a lane must have: rank 0 main · -word: must not · /regex/ (L)";
    this.hint = element("span", "");
    this.box = element("div", "", "tl-filter");
    this.box.append(this.input, this.hint);
    host.replaceChildren(this.box);
    this.none = element(
      "p",
      "No lane has all of these words. Take one away, or press Esc in the field above the names.",
      "tl-message",
    );
    this.none.setAttribute("role", "status");
    timeline.dom.host.append(this.none);
    this.input.addEventListener("input", () => timeline.arranger.rearrange({ filter: this.input.value }));
    this.input.addEventListener("keydown", (event) => this.key(event));
    timeline.onArranged = () => this.show();
    this.show();
  }

  focus() {
    this.input.focus();
    this.input.select();
  }

  show() {
    const {
      arrangement: { filter },
      layout,
      lanes,
    } = this.timeline;
    if (this.input.value !== filter) this.input.value = filter;
    const on = Boolean(filter.trim());
    this.box.classList.toggle("on", on);
    const left = layout.pinned.length + layout.groups.reduce((n, group) => n + group.lanes.length, 0);
    this.none.hidden = left > 0 || !on;
    this.hint.replaceChildren(on ? `${left}/${lanes.length}` : element("kbd", "L"));
  }

  key(event) {
    if (event.key === "Escape") this.timeline.arranger.rearrange({ filter: "" });
    else if (event.key !== "Enter") return;
    event.preventDefault();
    event.stopPropagation();
    this.leave();
  }
}
