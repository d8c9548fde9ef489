/**
 * The tooltip beside the pointer. Shown at once, never under the pointer.
 * @module
 */

import { count, duration, measured, percent } from "../base/format.js";
import { STYLE_NAMES } from "../base/palette.js";
import { timesWords } from "../model/group_times.js";

/**
 * Returns the text for a hit.
 * @param {import("../model/hit_test.js").Hit} hit
 * @param {string[]} names
 * @param {import("../model/layout.js").Lane} where the lane
 * @returns {{title: string, lines: string[]}}
 */
export function wordsFor(hit, names, where) {
  const lane = `rank ${where.rank} · ${where.label}`;
  if (hit.kind === "sample") {
    const [value, low, high] = [hit.value, hit.min, hit.max].map((v) => measured(v, where.unit));
    const spread = hit.min === hit.max ? [] : [`${low} to ${high} nearby`];
    return { title: value, lines: [lane, ...spread] };
  }
  const name = names[hit.name] ?? "?";
  const style = STYLE_NAMES[hit.style] ?? "other";
  if (hit.kind === "dense") {
    const covered = `${percent(hit.covered)} of ${duration(hit.end - hit.start)}`;
    if (!hit.exact || hit.count === 1) return { title: name, lines: [`covers ${covered}`, `${style} · ${lane}`] };
    return {
      title: name,
      lines: [`the longest of ${count(hit.count)} slices, together ${covered}`, `${style} · ${lane}`],
    };
  }
  const near = hit.near ? `about ${duration(hit.end - hit.start, 2)}` : "…";
  const known = hit.exact ? duration(hit.end - hit.start) : near;
  const length = hit.unfinished ? "still running when the recording ended" : known;
  return { title: name, lines: [style === "mark" ? "an instant" : length, `${style} · ${lane}`] };
}

export class Tooltip {
  /** @param {HTMLElement} host */
  constructor(host) {
    this.said = "";
    this.node = document.createElement("div");
    this.node.className = "tl-tip";
    this.node.hidden = true;
    this.node.setAttribute("role", "tooltip");
    host.append(this.node);
  }

  /**
   * @param {import("../model/hit_test.js").Hit|null} hit hit under the pointer
   * @param {import("../model/group_times.js").Pointed|null} pointed else a column of a group of ranks
   * @param {{names: string[], laneById: Map<number, import("../model/layout.js").Lane>}} run
   * @param {{x: number, y: number, width: number, height: number}} position of the pointer, and size of the host
   */
  show(hit, pointed, { names, laneById }, { x, y, width, height }) {
    const words = hit ? wordsFor(hit, names, laneById.get(hit.lane)) : pointed && timesWords(pointed);
    if (this.node.hidden !== !words) this.node.hidden = !words;
    if (!words) return;
    this.say(words);
    const { w, h } = this;
    const left = x + 14 + w > width ? Math.max(4, x - 14 - w) : x + 14;
    const top = y + 18 + h > height ? Math.max(4, y - 10 - h) : y + 18;
    this.node.style.left = `${left}px`;
    this.node.style.top = `${top}px`;
  }

  /** Sets the text only if it changed: measuring its size causes a layout. */
  say(words) {
    const said = [words.title, ...words.lines].join("\n");
    if (said === this.said) return;
    this.said = said;
    const title = document.createElement("b");
    title.textContent = words.title;
    const lines = words.lines.map((line) => {
      const node = document.createElement("span");
      node.textContent = line;
      return node;
    });
    this.node.replaceChildren(title, ...lines);
    this.w = this.node.offsetWidth;
    this.h = this.node.offsetHeight;
  }
}
