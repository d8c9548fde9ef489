/**
 * The dock below the lanes: its height, stored in this browser, and its tabs.
 * @module
 */

import { element } from "../base/dom.js";

const KEY = "lanescope.dock";
const MIN_HEIGHT = 96;
const DEFAULT_HEIGHT = 236;

export class Dock {
  /** @param {HTMLElement} dock @param {HTMLElement} bar @param {() => void} opened */
  constructor(dock, bar, opened) {
    this.dock = dock;
    this.opened = opened;
    this.height = DEFAULT_HEIGHT;
    this.closed = false;
    this.load();
    this.button = element("button", "");
    this.button.type = "button";
    this.button.addEventListener("click", () => this.toggle());
    this.grip = element("div", "", "dock-grip");
    this.grip.tabIndex = 0;
    this.grip.setAttribute("role", "separator");
    this.grip.setAttribute("aria-orientation", "horizontal");
    this.grip.setAttribute("aria-label", "Height of the details");
    this.grip.addEventListener("pointerdown", (event) => this.drag(event, this.grip));
    this.grip.addEventListener("keydown", (event) => this.key(event));
    bar.append(this.grip, this.button, element("span", "Details", "dock-title"));
    this.apply();
  }

  toggle() {
    this.closed = !this.closed;
    this.apply();
    if (!this.closed) this.opened();
  }

  /** Sets its height, which opens it. @param {number} height px */
  size(height) {
    const closed = this.closed;
    this.closed = false;
    this.height = Math.round(Math.min(Math.max(height, MIN_HEIGHT), innerHeight * 0.7));
    this.apply();
    if (closed) this.opened();
  }

  apply() {
    this.dock.classList.toggle("collapsed", this.closed);
    this.dock.style.setProperty("--dock", `${this.height}px`);
    this.grip.setAttribute("aria-valuenow", String(this.closed ? 0 : this.height));
    this.grip.setAttribute("aria-valuemin", "0");
    this.grip.setAttribute("aria-valuemax", String(Math.round(innerHeight * 0.7)));
    this.button.textContent = this.closed ? "▴" : "▾";
    this.button.setAttribute("aria-label", this.closed ? "Show details" : "Hide details");
    this.button.setAttribute("aria-expanded", String(!this.closed));
    try {
      localStorage.setItem(KEY, JSON.stringify({ height: this.height, closed: this.closed }));
    } catch {
      // Without storage the dock opens with its defaults.
    }
  }

  load() {
    try {
      const kept = JSON.parse(localStorage.getItem(KEY) ?? "{}");
      if (kept.height >= MIN_HEIGHT) this.height = Math.min(kept.height, innerHeight * 0.7);
      this.closed = kept.closed === true;
    } catch {
      // Nothing stored, or not readable: the defaults apply.
    }
  }

  key(event) {
    const step = { ArrowUp: 24, ArrowDown: -24 }[event.key];
    if (!step) return;
    event.preventDefault();
    this.size(this.height + step);
  }

  drag(event, bar) {
    event.preventDefault();
    bar.setPointerCapture(event.pointerId);
    const bottom = this.dock.getBoundingClientRect().bottom;
    const move = (e) => this.size(bottom - e.clientY);
    bar.addEventListener("pointermove", move);
    bar.addEventListener("lostpointercapture", () => bar.removeEventListener("pointermove", move), { once: true });
  }
}

/** The tabs of the dock's middle part. */
export class Tabs {
  /**
   * @param {HTMLElement} host
   * @param {{id: string, title: string, panel: HTMLElement, shown?: (on: boolean) => void}[]} tabs
   */
  constructor(host, tabs) {
    this.tabs = tabs;
    host.setAttribute("role", "tablist");
    host.className = "tabs";
    this.buttons = tabs.map(({ id, title, panel }) => {
      const button = element("button", title);
      button.type = "button";
      button.id = `tab-${id}`;
      button.setAttribute("role", "tab");
      button.setAttribute("aria-controls", panel.id);
      button.addEventListener("click", () => this.choose(id));
      button.addEventListener("keydown", (event) => this.key(event));
      panel.setAttribute("role", "tabpanel");
      panel.setAttribute("aria-labelledby", button.id);
      return button;
    });
    host.replaceChildren(...this.buttons);
    this.choose(tabs[0].id);
  }

  choose(id) {
    this.chosen = id;
    this.tabs.forEach((tab, i) => {
      const on = tab.id === id;
      tab.panel.hidden = !on;
      this.buttons[i].setAttribute("aria-selected", String(on));
      this.buttons[i].tabIndex = on ? 0 : -1;
      tab.shown?.(on);
    });
  }

  rename(id, title) {
    const button = this.buttons[this.tabs.findIndex((tab) => tab.id === id)];
    if (button.textContent !== title) button.textContent = title;
  }

  key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const at = (this.tabs.findIndex((tab) => tab.id === this.chosen) + step + this.tabs.length) % this.tabs.length;
    this.choose(this.tabs[at].id);
    this.buttons[at].focus();
  }
}
