/**
 * The column left of the lanes: DOM elements, so that groups can be reached by keyboard and read by a
 * screen reader. Only visible ones exist.
 * @module
 */

import { element } from "../base/dom.js";
import { slowWords } from "../model/group_times.js";
import { expandable, GROUP } from "../model/layout.js";

export class Labels {
  /**
   * @param {HTMLElement} host
   * @param {{group: (index: number) => void, lane: (id: number) => void, pin: (id: number) => void}} toggle
   */
  constructor(host, toggle) {
    this.host = host;
    this.toggle = toggle;
    /** @type {Map<string, HTMLElement>} */
    this.nodes = new Map();
    /** The layout and scroll position that are shown. */
    this.drawn = null;
  }

  /** Removes all labels: ids of lanes have changed. */
  clear() {
    for (const node of this.nodes.values()) node.remove();
    this.nodes.clear();
    this.drawn = null;
  }

  /**
   * @param {import("../model/layout.js").Layout} layout
   * @param {number} scrollY
   * @param {number} height
   * @param {object} state
   * @param {Set<number>} state.collapsed
   * @param {Set<number>} state.expanded
   * @param {number} state.selectedLane
   * @param {(lane: import("../model/layout.js").Lane) => string} state.aside text behind a lane's label
   * @param {(group: any) => import("../model/group_times.js").Times|undefined} state.times of a group's ranks
   */
  draw(layout, scrollY, height, state) {
    // Opening, closing or moving lanes creates a new layout; zooming changes nothing here.
    const { drawn } = this;
    if (
      drawn?.layout === layout &&
      drawn.scrollY === scrollY &&
      drawn.height === height &&
      drawn.selected === state.selectedLane
    )
      return;
    this.drawn = { layout, scrollY, height, selected: state.selectedLane };
    const seen = new Set();
    const items = layout
      .parts(scrollY, height)
      .flatMap((part) => part.items.map((item) => [item, part.shift, item.group === null]));
    for (const [item, shift, pinned] of items) {
      const key = item.lane ? `lane ${item.lane.id}` : `group ${item.group.index}`;
      seen.add(key);
      let node = this.nodes.get(key);
      if (!node) {
        node = item.lane ? this.lane(item.lane) : this.group(item.group);
        this.nodes.set(key, node);
        this.host.append(node);
      }
      node.style.top = `${item.y - shift}px`;
      node.style.height = `${item.h}px`;
      if (item.lane) {
        node.classList.toggle("selected", item.lane.id === state.selectedLane);
        this.refresh(node, item.lane, pinned, state);
      } else {
        node.setAttribute("aria-expanded", String(!state.collapsed.has(item.group.index)));
        if (item.group.summed) sayTimes(node, state.times(item.group));
      }
    }
    for (const [key, node] of this.nodes) {
      if (seen.has(key)) continue;
      node.remove();
      this.nodes.delete(key);
    }
  }

  group(group) {
    const node = document.createElement("button");
    node.type = "button";
    node.className = group.parent === null ? "tl-group" : "tl-group process";
    node.dataset.group = String(group.index);
    node.style.minHeight = `${GROUP}px`;
    const aside = document.createElement("span");
    aside.className = "muted";
    // Of a thread: it names the process. Those that are pinned are not here.
    const title = group.lanes.find((lane) => lane.kind === "thread")?.title ?? "";
    aside.textContent = group.about || processOf(title);
    node.classList.toggle("summed", Boolean(group.summed));
    node.append(group.name, group.summed ? element("span", "", "times") : aside);
    node.title = [group.name, group.about, title.split(",")[0]].filter(Boolean).join(" · ");
    node.addEventListener("click", () => this.toggle.group(group.index));
    return node;
  }

  lane(lane) {
    const opens = expandable(lane);
    const node = document.createElement("div");
    node.className = `tl-lane ${lane.kind}`;
    node.dataset.lane = String(lane.id);
    const name = document.createElement(opens ? "button" : "span");
    name.className = "name";
    const aside = document.createElement("span");
    aside.className = "muted";
    name.append(`${lane.label} `, aside);
    node.title = [lane.label, lane.title, opens ? "click: all rows in full height" : ""].filter(Boolean).join(" · ");
    if (opens) {
      name.type = "button";
      name.addEventListener("click", () => this.toggle.lane(lane.id));
    }
    const pin = document.createElement("button");
    pin.type = "button";
    pin.className = "pin";
    pin.setAttribute("aria-label", `Keep ${lane.label} at the top`);
    pin.title = "Keep at the top (P)";
    pin.addEventListener("click", () => this.toggle.pin(lane.id));
    node.append(name, pin);
    return node;
  }

  /** Updates what changes while a lane is visible. */
  refresh(node, lane, pinned, state) {
    const [name, pin] = node.children;
    if (name.tagName === "BUTTON") name.setAttribute("aria-expanded", String(state.expanded.has(lane.id)));
    node.classList.toggle("pinned", pinned);
    pin.setAttribute("aria-pressed", String(pinned));
    const aside = [pinned ? `rank ${lane.rank}` : "", state.aside(lane)].filter(Boolean).join(" · ");
    if (name.lastChild.textContent !== aside) name.lastChild.textContent = aside;
  }
}

/** Says below the name of a group which of its ranks are slow. @param {HTMLElement} node */
function sayTimes(node, times) {
  const said = times ? slowWords(times) : "…";
  const place = node.querySelector(".times");
  if (place.textContent === said) return;
  place.textContent = said;
  place.classList.toggle("slow", Boolean(times?.slowest.length));
}

/** Shortens "train.py 4120 on node-a, main thread 4120" to "node-a · pid 4120". @param {string} title */
export function processOf(title) {
  const [process] = title.split(",");
  const found = /(\d+)(?: on (.+))?$/.exec(process);
  if (!found) return process;
  return [found[2], `pid ${found[1]}`].filter(Boolean).join(" · ");
}
