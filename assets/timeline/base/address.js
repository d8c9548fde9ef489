/**
 * The view as text in the address bar, and back. Pure.
 * @module
 */

import { placeOf, placeParts } from "./page_selection.js";

/**
 * @typedef {object} View
 * @property {import("./page_selection.js").Place} place
 * @property {{t0: number, t1: number}|null} window null: the whole run
 * @property {{lane: number, row: number, ref: number}|null} selected
 * @property {{t0: number, t1: number}|null} range
 * @property {number[]|null} collapsed indices of groups; null: as many as it takes to show all ranks
 * @property {number[]} expanded ids of lanes
 * @property {string} query of the search
 * @property {number} scrollY px
 * @property {string} theme light, dark or empty: as the system
 * @property {number|null} finding that the strip shows, its place among all
 * @property {boolean} overlaps shaded
 * @property {string} of what overlaps, see overlaps.js; empty: the backward phase
 * @property {import("../model/lane_order.js").Arrangement} lanes pinned, in order, filtered
 */

const pair = ({ t0, t1 }) => `${Math.round(t0)}-${Math.round(t1)}`;

/** @param {string} search of the address, with or without `?` @returns {View} */
export function parse(search) {
  const get = new URLSearchParams(search);
  const window = span(get.get("t"));
  const sel = /^(\d+)\.(\d+)\.(\d+)$/.exec(get.get("sel") ?? "");
  return {
    place: placeOf(get),
    window,
    selected: sel ? { lane: Number(sel[1]), row: Number(sel[2]), ref: Number(sel[3]) } : null,
    range: span(get.get("range")),
    collapsed: get.has("closed") ? integers(get.get("closed")) : null,
    expanded: integers(get.get("open")),
    query: get.get("q") ?? "",
    scrollY: Math.max(0, Number.parseInt(get.get("y") ?? "0", 10) || 0),
    theme: ["light", "dark"].includes(get.get("theme")) ? get.get("theme") : "",
    finding: /^\d{1,6}$/.test(get.get("finding") ?? "") ? Number(get.get("finding")) : null,
    overlaps: get.get("overlaps") === "1",
    of: get.get("of") ?? "",
    lanes: {
      pins: integers(get.get("pin")),
      groupOrder: integers(get.get("ranks")),
      laneOrder: integers(get.get("order")),
      filter: get.get("lanes") ?? "",
      by: get.get("by") ?? "",
    },
  };
}

/** @param {View} view @returns {string} with `?`, or empty for the whole run as it opens */
export function format(view) {
  const parts = placeParts(view.place);
  if (view.window) parts.push(`t=${pair(view.window)}`);
  if (view.selected) parts.push(`sel=${view.selected.lane}.${view.selected.row}.${view.selected.ref}`);
  if (view.range) parts.push(`range=${pair(view.range)}`);
  if (view.collapsed) parts.push(`closed=${stretches(view.collapsed)}`);
  if (view.expanded.length) parts.push(`open=${view.expanded.join(".")}`);
  if (view.scrollY > 0) parts.push(`y=${Math.round(view.scrollY)}`);
  const { pins, groupOrder, laneOrder, filter, by } = view.lanes;
  if (pins.length) parts.push(`pin=${pins.join(".")}`);
  if (groupOrder.length) parts.push(`ranks=${groupOrder.join(".")}`);
  if (laneOrder.length) parts.push(`order=${laneOrder.join(".")}`);
  if (by) parts.push(`by=${encodeURIComponent(by)}`);
  if (filter) parts.push(`lanes=${encodeURIComponent(filter)}`);
  if (view.of) parts.push(`of=${encodeURIComponent(view.of)}`);
  if (view.overlaps) parts.push("overlaps=1");
  if ((view.finding ?? null) !== null) parts.push(`finding=${view.finding}`);
  if (view.query) parts.push(`q=${encodeURIComponent(view.query)}`);
  if (view.theme) parts.push(`theme=${view.theme}`);
  return parts.length ? `?${parts.join("&")}` : "";
}

function span(text) {
  const match = /^(\d+)-(\d+)$/.exec(text ?? "");
  if (!match) return null;
  const [t0, t1] = [Number(match[1]), Number(match[2])];
  return t1 > t0 ? { t0, t1 } : null;
}

const MOST = 100_000; // numbers in a list: an address may be made by anybody

function integers(text) {
  const found = [];
  for (const part of (text ?? "").split(".")) {
    const match = /^(\d+)(?:-(\d+))?$/.exec(part);
    if (!match) continue;
    const [first, last] = [Number(match[1]), Number(match[2] ?? match[1])];
    for (let i = first; i <= last && found.length < MOST; i += 1) found.push(i);
  }
  return found;
}

/** Returns numbers as `0-15.17`: a run of many ranks has a thousand closed groups. @param {number[]} numbers */
function stretches(numbers) {
  const found = [];
  for (const one of [...numbers].sort((a, b) => a - b)) {
    const last = found.at(-1);
    if (last && last[1] === one - 1) last[1] = one;
    else found.push([one, one]);
  }
  const text = ([a, b]) => (b > a + 1 ? `${a}-${b}` : a === b ? `${a}` : `${a}.${b}`);
  return found.map(text).join(".");
}
