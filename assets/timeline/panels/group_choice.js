/**
 * The field above the lanes' names that chooses how ranks are grouped.
 * @module
 */

import { element } from "../base/dom.js";
import { choicesOf } from "../model/rank_groups.js";

export class GroupChoice {
  /** @param {HTMLElement} host @param {import("../page/timeline.js").Timeline} timeline */
  constructor(host, timeline) {
    this.timeline = timeline;
    const choices = choicesOf(timeline.run);
    this.field = element("select", "", "tl-group-by");
    this.field.setAttribute("aria-label", "Group ranks by");
    this.field.title = "Group ranks by host or by parallel dimension";
    for (const { by, title } of choices) this.field.append(new Option(`by ${title}`, by));
    if (choices.length < 2) return;
    host.replaceChildren(this.field);
    this.field.addEventListener("change", () => timeline.arranger.groupBy(this.field.value));
    timeline.onGrouped = () => this.show();
    this.show();
  }

  show() {
    this.field.value = this.timeline.arrangement.by;
  }
}
