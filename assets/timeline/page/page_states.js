/**
 * The page beside the timeline while its run is recorded: made anew of the newest state.
 * @module
 */

import { PAGE_STORE, tell } from "../base/bridge.js";

export class PageStates {
  constructor() {
    /** The state that was told last, by its etag. */
    this.told = "";
    this.began = 0;
    this.next = 0;
  }

  /**
   * Have the page made of this state if it is of another one and half the time stays free.
   * @param {string} etag
   * @returns {boolean} whether nothing is left to do for this state
   */
  offer(etag) {
    const page = document.getElementById("page");
    if (!page || page.hidden) return true;
    if (page.hasAttribute("data-dash-is-loading")) return false;
    const now = performance.now();
    if (this.began) {
      this.next = 2 * now - this.began;
      this.began = 0;
      delete page.dataset.renewed;
    }
    if (etag === this.told) return true;
    if (now < this.next || !tell(PAGE_STORE, etag)) return false;
    page.dataset.renewed = ""; // what stands there is not dimmed meanwhile
    this.told = etag;
    this.began = now;
    return false;
  }
}
