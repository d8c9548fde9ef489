/**
 * The field of the dock for what overlaps are searched: a phase, or part of a name.
 * @module
 */

import { element } from "../base/dom.js";

const PHASES = ["backward", "forward", "optimizer", "data", "evaluation", "user"];

export class OverlapField {
  /** @param {HTMLElement} host @param {import("../page/timeline.js").Timeline} timeline @param {() => void} leave */
  constructor(host, timeline, leave) {
    this.timeline = timeline;
    this.leave = leave;
    const label = element("label", "Overlap of ");
    this.input = element("input", "");
    Object.assign(this.input, { type: "text", autocomplete: "off", spellcheck: false, placeholder: "backward" });
    this.input.setAttribute("list", "overlap-phases");
    this.input.title = "A phase, or part of a name: shows where two or more threads run it at the same time";
    const list = element("datalist", "");
    list.id = "overlap-phases";
    list.append(...PHASES.map((phase) => Object.assign(element("option", ""), { value: phase })));
    label.append(this.input);
    host.className = "overlap-of";
    host.replaceChildren(label, list);
    this.input.addEventListener("change", () => this.chosen());
    this.input.addEventListener("focus", () => this.input.select());
    this.input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.stopPropagation();
      if (event.key === "Enter") this.chosen();
      else this.show();
      this.leave();
    });
    this.show();
  }

  focus() {
    this.input.focus();
  }

  show() {
    this.input.value = this.timeline.overlaps.of || PHASES[0];
  }

  /** Takes the text as a phase, or else as part of a name. */
  chosen() {
    const text = this.input.value.trim();
    const { overlaps } = this.timeline;
    const of =
      !text || PHASES.includes(text) || text.startsWith("/")
        ? text
        : `/${text.replaceAll(/[.*+?^${}()|[\]\\]/g, "\\$&")}/`;
    overlaps.choose(of);
    if (of) overlaps.show();
    this.show();
  }
}
