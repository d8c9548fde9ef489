/**
 * The tabs of the dock's middle part.
 * @module
 */
import { element } from "./help.js";

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
