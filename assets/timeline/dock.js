/**
 * The dock below the lanes: its height, kept in this browser.
 * @module
 */
import { element } from "./help.js";

const KEY = "lanescope.dock";
const LEAST = 96;
const DEFAULT = 236;

export class Dock {
  /** @param {HTMLElement} dock @param {HTMLElement} bar */
  constructor(dock, bar) {
    this.dock = dock;
    this.height = DEFAULT;
    this.closed = false;
    this.load();
    this.button = element("button", "");
    this.button.type = "button";
    this.button.addEventListener("click", () => this.toggle());
    this.button.addEventListener("pointerdown", (event) => event.stopPropagation());
    bar.append(this.button, element("span", "Details", "dock-title"));
    bar.setAttribute("role", "separator");
    bar.setAttribute("aria-orientation", "horizontal");
    bar.setAttribute("aria-label", "Height of the details");
    bar.addEventListener("pointerdown", (event) => this.drag(event, bar));
    this.apply();
  }

  toggle() {
    this.closed = !this.closed;
    this.apply();
  }

  apply() {
    this.dock.classList.toggle("collapsed", this.closed);
    this.dock.style.setProperty("--dock", `${this.height}px`);
    this.button.textContent = this.closed ? "▴" : "▾";
    this.button.setAttribute("aria-label", this.closed ? "Show details" : "Hide details");
    this.button.setAttribute("aria-expanded", String(!this.closed));
    try {
      localStorage.setItem(KEY, JSON.stringify({ height: this.height, closed: this.closed }));
    } catch {
      // Without storage the dock simply opens as it does the first time.
    }
  }

  load() {
    try {
      const kept = JSON.parse(localStorage.getItem(KEY) ?? "{}");
      if (kept.height >= LEAST) this.height = Math.min(kept.height, innerHeight * 0.7);
      this.closed = kept.closed === true;
    } catch {
      // Nothing kept, or nothing readable: the defaults stand.
    }
  }

  drag(event, bar) {
    event.preventDefault();
    bar.setPointerCapture(event.pointerId);
    const bottom = this.dock.getBoundingClientRect().bottom;
    const move = (e) => {
      this.closed = false;
      this.height = Math.round(Math.min(Math.max(bottom - e.clientY, LEAST), innerHeight * 0.7));
      this.apply();
    };
    bar.addEventListener("pointermove", move);
    bar.addEventListener("lostpointercapture", () => bar.removeEventListener("pointermove", move), { once: true });
  }
}
