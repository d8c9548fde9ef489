/**
 * Passes the window to show to the flame graph of the dock. The graph is made by the server, and not in the
 * page before its tab is opened: its chart needs scripts that the lanes do not.
 * @module
 */

import { appears, FLAME_OPEN_STORE, FLAME_VIEW_STORE, setStore } from "../base/bridge.js";

export class FlameTab {
  constructor() {
    this.opened = false;
    this.made = false;
    this.shown = "";
  }

  /** Call when its tab is chosen, or another one. @param {boolean} on */
  open(on) {
    this.opened = on;
    this.report();
  }

  /** Shows a window, or the selected range. @param {number} t0 ns @param {number} t1 */
  show(t0, t1) {
    this.view = { t0, t1 };
    this.report();
  }

  async report() {
    const text = JSON.stringify(this.view);
    if (!this.opened || !this.view || text === this.shown) return;
    this.shown = text;
    if (!this.made) {
      this.made = setStore(FLAME_OPEN_STORE, this.view);
      return;
    }
    await appears("flame-graph");
    setStore(FLAME_VIEW_STORE, this.view);
  }
}
