/**
 * Shows what of the address the page cannot use: its parts then have their defaults.
 * @module
 */

import { faultsOf } from "../base/address_faults.js";
import { element } from "../base/dom.js";

export class AddressNotice {
  /** @param {string} timelinePath path of the timeline's page */
  constructor(timelinePath) {
    this.timelinePath = timelinePath;
    this.path = "";
    /** Parts of the address that were named. @type {Set<string>} */
    this.named = new Set();
    this.words = element("span", "");
    const close = element("button", "×", "icon-button");
    close.setAttribute("aria-label", "Close");
    close.addEventListener("click", () => this.empty());
    this.host = element("p", "", "notice unused");
    this.host.setAttribute("role", "alert");
    this.host.append(this.words, close);
    this.empty();
    document.body.append(this.host);
  }

  empty() {
    this.host.hidden = true;
    this.words.textContent = "";
  }

  /** Checks an address that was opened. @param {URL|Location} address @param {import("./timeline.js").Timeline} timeline */
  check({ pathname, search }, { run, steps, lanes, duration }) {
    if (pathname !== this.path) {
      this.empty();
      this.named.clear();
    }
    this.path = pathname;
    const has = { ranks: run.ranks, steps: steps.map(([step]) => step), lanes, duration };
    const all = faultsOf(search, run.first_lanes ? { ...has, lanes: [] } : has, pathname === this.timelinePath);
    const faults = all.filter((one) => !this.named.has(one));
    for (const one of faults) this.named.add(one);
    if (faults.length) this.say(`Not used of the address: ${faults.join(", ")}. Everything else in it is used.`);
  }

  /** Adds a sentence. @param {string} sentence */
  say(sentence) {
    this.words.textContent = `${this.words.textContent} ${sentence}`.trim();
    this.host.hidden = false;
  }
}
