/**
 * Rebuilds the open page from the newest state while its run is recorded.
 * @module
 */

import { PAGE_STORE, setStore } from "../base/bridge.js";

export class PageStates {
  constructor() {
    /** Etag of the state that Dash got last. */
    this.shown = "";
    this.began = 0;
    this.next = 0;
  }

  /**
   * Rebuilds the page from this state if it shows another one, using at most half of the time.
   * @param {string} etag
   * @returns {boolean} true if the page shows this state
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
    if (etag === this.shown) return true;
    if (now < this.next || !setStore(PAGE_STORE, etag)) return false;
    page.dataset.renewed = ""; // the old content is not dimmed during the update
    this.shown = etag;
    this.began = now;
    return false;
  }
}
