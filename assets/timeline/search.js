/**
 * The search field of the header: which op names match, as flags by name id.
 * @module
 */
import { count } from "./format.js";
import { element } from "./help.js";

const SHOWN = 12;

/**
 * Flags of the names that match: a part of the name in any case, or /a regular expression/.
 * @param {string[]} names
 * @param {string} query
 * @returns {{flags: Uint8Array, ids: number[], error: string}|null} null for an empty query
 */
export function match(names, query) {
  const text = query.trim();
  if (!text) return null;
  let test;
  let error = "";
  const pattern = /^\/(.+?)\/?$/.exec(text);
  if (pattern) {
    try {
      const expression = new RegExp(pattern[1], "i");
      test = (name) => expression.test(name);
    } catch {
      error = "not a regular expression";
      test = () => false;
    }
  } else {
    const lower = text.toLowerCase();
    test = (name) => name.toLowerCase().includes(lower);
  }
  const flags = new Uint8Array(names.length);
  const ids = [];
  names.forEach((name, id) => {
    if (!test(name)) return;
    flags[id] = 1;
    ids.push(id);
  });
  ids.sort((a, b) => names[a].length - names[b].length || names[a].localeCompare(names[b]));
  return { flags, ids, error };
}

export class Search {
  /**
   * @param {HTMLElement} host
   * @param {string[]} names
   * @param {object} act
   * @param {(query: string) => void} act.changed
   * @param {(direction: "next"|"prev") => void} act.step to the next match
   * @param {() => void} act.leave focus goes back to the lanes
   */
  constructor(host, names, act) {
    this.names = names;
    this.act = act;
    this.input = element("input", "");
    Object.assign(this.input, { type: "search", placeholder: "Search ops …", autocomplete: "off", spellcheck: false });
    this.input.setAttribute("aria-label", "Search ops by name");
    this.state = element("span", "", "state");
    this.list = element("ul", "");
    this.list.hidden = true;
    this.list.setAttribute("aria-label", "Matching ops");
    const box = element("div", "", "search");
    box.setAttribute("role", "search");
    box.append(this.input, this.state, this.list);
    host.replaceChildren(box);
    this.show(null);
    this.input.addEventListener("input", () => this.act.changed(this.input.value));
    this.input.addEventListener("keydown", (event) => this.key(event));
    this.input.addEventListener("focus", () => this.open());
    this.input.addEventListener("blur", () => setTimeout(() => { this.list.hidden = true; }, 120));
  }

  focus() {
    this.input.focus();
    this.input.select();
  }

  /** @param {string} query @param {ReturnType<typeof match>} found */
  set(query, found) {
    if (this.input.value !== query) this.input.value = query;
    this.show(found);
  }

  show(found) {
    this.found = found;
    if (!found) this.state.replaceChildren(element("kbd", "/"));
    else if (found.error) this.state.textContent = found.error;
    else this.state.textContent = found.ids.length === 1 ? "1 op" : `${count(found.ids.length)} ops`;
    this.open();
  }

  open() {
    const { found } = this;
    this.list.hidden = !found || document.activeElement !== this.input;
    if (this.list.hidden) return;
    const rows = found.ids.slice(0, SHOWN).map((id) => {
      const row = element("li", this.names[id]);
      row.addEventListener("pointerdown", (event) => {
        event.preventDefault();
        this.act.changed(this.names[id]);
        this.act.step("next");
      });
      return row;
    });
    if (!found.ids.length) rows.push(element("li", found.error || "No op of this run has such a name.", "muted"));
    if (found.ids.length > SHOWN) rows.push(element("li", `and ${count(found.ids.length - SHOWN)} more`, "muted"));
    if (found.ids.length) rows.push(element("li", "Enter: next match · Shift + Enter: previous · Esc: clear", "muted"));
    this.list.replaceChildren(...rows);
  }

  key(event) {
    if (event.key === "Escape") {
      this.act.changed("");
      this.act.leave();
    } else if (event.key === "Enter") this.act.step(event.shiftKey ? "prev" : "next");
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
