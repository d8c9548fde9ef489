/**
 * The command palette: finds commands, lanes and pages by a few letters.
 * @module
 */

import { element } from "../base/dom.js";
import { keyText } from "../input/commands.js";

const MAX_SHOWN = 60;

/** @typedef {{title: string, group: string, keys: string[], run: () => void}} Entry */

/**
 * Returns entries whose title or group holds all words, those whose title begins with them first.
 * @param {Entry[]} entries
 * @param {string} text
 */
export function matching(entries, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const scored = entries.map((entry, i) => {
    const title = entry.title.toLowerCase();
    const all = `${title} ${entry.group.toLowerCase()}`;
    if (!words.every((word) => all.includes(word))) return null;
    const first = words.length && title.startsWith(words[0]) ? 0 : words.every((word) => title.includes(word)) ? 1 : 2;
    return { entry, first, i };
  });
  return scored
    .filter(Boolean)
    .sort((a, b) => a.first - b.first || a.i - b.i)
    .map(({ entry }) => entry);
}

export class CommandBar {
  /** @param {() => Entry[]} entries called each time it opens */
  constructor(entries) {
    this.entries = entries;
    this.dialog = element("dialog", "", "commands");
    this.dialog.setAttribute("aria-label", "Commands");
    this.input = element("input", "");
    Object.assign(this.input, {
      type: "text",
      placeholder: "What would you like to do?",
      autocomplete: "off",
      spellcheck: false,
    });
    for (const [name, value] of [
      ["role", "combobox"],
      ["aria-expanded", "true"],
      ["aria-controls", "command-list"],
      ["aria-label", "Command"],
    ]) {
      this.input.setAttribute(name, value);
    }
    this.list = element("ul", "");
    this.list.id = "command-list";
    this.list.setAttribute("role", "listbox");
    this.list.setAttribute("aria-label", "Commands");
    this.dialog.append(this.input, this.list);
    document.body.append(this.dialog);
    this.input.addEventListener("input", () => this.show());
    this.input.addEventListener("keydown", (event) => this.key(event));
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog) this.dialog.close();
    });
  }

  open() {
    this.all = this.entries();
    this.input.value = "";
    this.show();
    this.dialog.showModal();
    this.input.focus();
  }

  show() {
    this.found = matching(this.all, this.input.value).slice(0, MAX_SHOWN);
    this.at = 0;
    const rows = this.found.map((entry, i) => {
      const row = element("li", "");
      row.id = `command-${i}`;
      row.setAttribute("role", "option");
      const keys = element("span", "", "keys");
      keys.append(...entry.keys.map((key) => element("kbd", keyText(key))));
      row.append(element("span", entry.title, "title"), element("span", entry.group, "muted"), keys);
      row.addEventListener("click", () => this.run(i));
      return row;
    });
    if (!rows.length) {
      const none = element("li", "No match", "none");
      none.setAttribute("role", "option");
      none.setAttribute("aria-disabled", "true");
      rows.push(none);
    }
    this.list.replaceChildren(...rows);
    this.light();
  }

  light() {
    for (const [i, row] of [...this.list.children].entries()) {
      row.setAttribute("aria-selected", String(i === this.at && this.found.length > 0));
    }
    this.input.setAttribute("aria-activedescendant", this.found.length ? `command-${this.at}` : "");
    this.list.children[this.at]?.scrollIntoView({ block: "nearest" });
  }

  run(i) {
    this.dialog.close();
    this.found[i]?.run();
  }

  key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && this.found.length) {
      this.at = (this.at + step + this.found.length) % this.found.length;
      this.light();
    } else if (event.key === "Enter") this.run(this.at);
    else return;
    event.preventDefault();
  }
}

/** Returns an entry per page of the rail. */
export function pagesOf() {
  return [...document.querySelectorAll(".rail a")].map((link) => ({
    title: link.textContent,
    group: "Pages",
    keys: [],
    run: () => link.click(),
  }));
}

/** Returns an entry per lane. @param {any[]} lanes @param {(id: number) => void} reveal */
export function lanesOf(lanes, reveal) {
  return lanes.map((lane) => ({
    title: `rank ${lane.rank} · ${lane.label}`,
    group: "Lanes",
    keys: [],
    run: () => reveal(lane.id),
  }));
}
