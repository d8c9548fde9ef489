/**
 * The search field of the header: finds names and modules.
 * @module
 */

import { element } from "../base/dom.js";
import { count } from "../base/format.js";

const MAX_SHOWN = 12;

/**
 * @typedef {object} Found
 * @property {Uint8Array} flags by name id
 * @property {number[]} ids of the names
 * @property {number[]} modules ids
 * @property {number|undefined} least ns that a span lasts at least
 * @property {number|undefined} most ns that it lasts at most
 * @property {number[]|undefined} ranks the ranks it asks for
 * @property {number[]|undefined} within ids of the modules that a span must have run in
 * @property {boolean} narrowed it asks for one of these four
 * @property {string} error empty: the query is valid
 */

const UNITS = { ns: 1, us: 1e3, µs: 1e3, ms: 1e6, s: 1e9 };
const LENGTH = /^(.*?)\s*([<>])=?\s*(\d+(?:\.\d+)?|\.\d+)\s*(ns|us|µs|ms|s)$/;
const RANK = /^(.*?)(?:^|\s+)rank\s+(\d+)$/i;
const MODULE = /^(.*?)(?:^|\s+)in\s+(\S+)$/i;

/**
 * Returns the step that a query names, as in `step 7` or `step 7 rank 2`.
 * @returns {{step: number, rank: number|null}|null}
 */
export function stepAsked(query) {
  const found = /^\s*step\s+(\d+)(?:\s+(?:of\s+)?rank\s+(\d+))?\s*$/i.exec(query);
  return found && { step: Number(found[1]), rank: found[2] === undefined ? null : Number(found[2]) };
}

/**
 * Splits `aten::mm in blocks.0 rank 2 > 10 ms` into the text and what narrows it, which may follow
 * in any order: a part of a module's name, a rank, limits of the length in ns.
 * @param {string} query
 * @returns {{text: string, module?: string, ranks?: number[], least?: number, most?: number}}
 */
function partsOf(query) {
  const text = query.trim();
  let found = LENGTH.exec(text);
  if (found) return { ...partsOf(found[1]), [found[2] === ">" ? "least" : "most"]: Number(found[3]) * UNITS[found[4]] };
  found = RANK.exec(text);
  if (found) return { ...partsOf(found[1]), ranks: [Number(found[2])] };
  found = MODULE.exec(text);
  if (found) return { ...partsOf(found[1]), module: found[2].toLowerCase() };
  return { text };
}

/**
 * Returns the names and modules that match: part of the text in any case, or /a regular expression/;
 * either may be narrowed, see `partsOf`.
 * @param {string[]} names
 * @param {string} query
 * @param {string[]} [modules]
 * @returns {Found|null} null for an empty query
 */
export function match(names, query, modules = []) {
  const { text, module, ...limits } = partsOf(query);
  const narrowed = module !== undefined || Object.keys(limits).length > 0;
  if (!text && !narrowed) return null;
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
  const matching = (texts) => {
    const found = [...texts.keys()].filter((id) => texts[id] && test(texts[id]));
    return found.sort((a, b) => texts[a].length - texts[b].length || texts[a].localeCompare(texts[b]));
  };
  const ids = matching(names);
  const flags = new Uint8Array(names.length);
  for (const id of ids) flags[id] = 1;
  const within = module && [...modules.keys()].filter((id) => modules[id].toLowerCase().includes(module));
  // Without a text all names match, and modules would add nothing.
  return { flags, ids, modules: text ? matching(modules) : [], ...limits, within, narrowed, error };
}

/** Returns the query that only this name matches. @param {string} name */
const exactly = (name) => `/^${name.replace(/[^\w:]/g, "\\$&")}$/`;

export class Search {
  /**
   * @param {HTMLElement} host
   * @param {string[]} names
   * @param {object} act
   * @param {() => void} act.begun called when the field is first used
   * @param {(query: string) => void} act.changed
   * @param {(direction: "next"|"prev", fresh?: boolean) => void} act.step to the next match, or to
   *   the first one of the window
   * @param {() => void} act.leave returns the focus to the lanes
   */
  constructor(host, names, act) {
    this.names = names;
    /** @type {string[]} */
    this.modules = [];
    this.act = act;
    this.input = element("input", "");
    Object.assign(this.input, {
      type: "search",
      placeholder: "Search ops, modules …",
      autocomplete: "off",
      spellcheck: false,
    });
    this.input.setAttribute("aria-label", "Search ops and modules");
    this.state = element("span", "", "state");
    this.list = element("ul", "");
    this.list.hidden = true;
    this.list.setAttribute("aria-label", "Matching names");
    const box = element("div", "", "search");
    box.setAttribute("role", "search");
    box.append(this.input, this.state, this.list);
    host.replaceChildren(box);
    this.show(null);
    this.input.addEventListener("input", () => this.act.changed(this.input.value));
    this.input.addEventListener("keydown", (event) => this.key(event));
    this.input.addEventListener("focus", () => {
      this.act.begun();
      this.open();
    });
    this.input.addEventListener("blur", () =>
      setTimeout(() => {
        this.list.hidden = true;
      }, 120),
    );
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
    this.showHits();
    this.open();
  }

  /**
   * Shows the number of hits and the position of the selected one.
   * @param {number|null} [position]
   * @param {number|null} [total]
   */
  showHits(position = null, total = null) {
    const { found } = this;
    if (!found) this.state.replaceChildren(element("kbd", "/"));
    else if (stepAsked(this.input.value) !== null) this.state.textContent = "step";
    else if (found.error) this.state.textContent = found.error;
    else if ((!found.ids.length && !found.modules.length) || found.within?.length === 0)
      this.state.textContent = "none";
    else if (total === null) this.state.textContent = "…";
    else this.state.textContent = position ? `${count(position)} of ${count(total)}` : count(total);
  }

  open() {
    const { found } = this;
    this.list.hidden = !found || document.activeElement !== this.input;
    if (this.list.hidden) return;
    const rowOf = (text, kind) => {
      const row = element("li", text);
      if (kind) row.append(" ", element("span", kind, "muted"));
      row.addEventListener("pointerdown", (event) => {
        event.preventDefault();
        this.act.changed(text);
        this.act.step("next");
      });
      return row;
    };
    const step = stepAsked(this.input.value);
    if (step !== null) {
      this.list.replaceChildren(rowOf(this.input.value, ""), element("li", "Enter: show it · Esc: clear", "muted"));
      return;
    }
    const all = [
      ...found.ids.map((id) => [this.names[id], ""]),
      ...found.modules.map((id) => [this.modules[id], "module"]),
    ];
    const rows = all.slice(0, MAX_SHOWN).map(([text, kind]) => rowOf(text, kind));
    if (!all.length) rows.push(element("li", found.error || "No match", "muted"));
    if (all.length > MAX_SHOWN) rows.push(element("li", `and ${count(all.length - MAX_SHOWN)} more`, "muted"));
    if (all.length) rows.push(element("li", "Enter: next · Shift + Enter: previous · Esc: clear", "muted"));
    this.list.replaceChildren(...rows);
  }

  /** Searches for the calls of an op, from the window or range on; again for the next one. */
  showCalls(op, direction) {
    const query = exactly(op);
    const fresh = this.input.value !== query;
    if (fresh) this.act.changed(query);
    this.act.step(direction, fresh);
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
