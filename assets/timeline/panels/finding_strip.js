/**
 * The strip above the lanes that names the finding shown, and leads to the next and the previous one.
 * @module
 */

import { getJson } from "../base/bridge.js";
import { element } from "../base/dom.js";

const SEVERITIES = { error: "Error", warning: "Warning", info: "Note" };

export class FindingStrip {
  /**
   * @param {HTMLElement} host element to fill; hidden without a finding
   * @param {import("../page/timeline.js").Timeline} timeline
   * @param {(search: string) => void} visit shows another address of the timeline
   * @param {(sentence: string) => void} say shows what is wrong with the address
   */
  constructor(host, timeline, visit, say) {
    Object.assign(this, { host, timeline, visit, say });
    /** @type {number|null} */
    this.position = null;
    this.title = element("span", "", "title");
    this.count = element("b", "");
    const button = (text, label, run) => {
      const node = element("button", text, "icon-button");
      node.setAttribute("aria-label", label);
      node.title = label;
      node.addEventListener("click", run);
      return node;
    };
    host.setAttribute("role", "region");
    host.setAttribute("aria-label", "Finding shown");
    host.replaceChildren(
      this.count,
      this.title,
      button("‹", "Previous finding", () => this.step(-1)),
      button("›", "Next finding", () => this.step(1)),
      button("×", "Close", () => this.close()),
    );
  }

  /** Shows the finding of an address. @param {number|null} position null: none */
  async show(position) {
    if (position === this.position) return;
    this.position = position;
    this.timeline.marks = [];
    this.host.hidden = true;
    this.timeline.invalidate("overlay");
    if (position === null) return;
    try {
      // Null while the run is still being examined.
      while (!this.found) this.found = (await this.timeline.idle.track("findings", getJson("/api/findings"))).findings;
    } catch (error) {
      this.timeline.toast(error.message);
      return;
    }
    if (position !== this.position) return;
    const one = this.found[position];
    if (!one) {
      const has = this.found.length ? `its findings are 0–${this.found.length - 1}` : "it has none";
      this.say(`The run has no finding ${position}: ${has}.`);
      this.show(null);
      this.timeline.changed();
      return;
    }
    this.count.textContent = `${SEVERITIES[one.severity]} ${position + 1} of ${this.found.length}`;
    this.count.className = { error: "bad", warning: "warn" }[one.severity] ?? "";
    this.title.textContent = one.title;
    this.title.title = one.title;
    this.host.hidden = false;
    this.timeline.marks = one.marks;
    this.timeline.invalidate("overlay");
  }

  /** Goes to the next or previous finding that has a place on the timeline. @param {1|-1} direction */
  step(direction) {
    const { found, position } = this;
    const n = found.length;
    for (let i = 1; i <= n; i += 1) {
      const next = found[(((position + direction * i) % n) + n) % n];
      if (next.address.startsWith("/timeline?")) {
        this.visit(next.address.slice("/timeline".length));
        return;
      }
    }
  }

  close() {
    this.timeline.arranger.rearrange({ pins: [] });
    this.show(null);
    this.timeline.changed();
  }
}
