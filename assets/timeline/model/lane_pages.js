/**
 * Lanes of runs with many ranks come in pages: at first one for each rank, grouped by host, then all
 * lanes of the ranks that are open and in sight.
 * @module
 */

import { getJson } from "../base/bridge.js";
import { groupedBy } from "./rank_groups.js";

/** @typedef {import("./layout.js").Lane} Lane */

/** The server answers for so many ranks at once. */
const RANKS_AT_ONCE = 64;

/** @param {{columns: string[], rows: any[][]}} page as the server sends it @returns {Lane[]} */
export const lanesIn = ({ columns, rows }) =>
  rows.map((row) => Object.fromEntries(columns.map((name, i) => [name, row[i]])));

/** Takes the first lanes of a run for its lanes where they come in pages. @param {any} run as /api/run describes it */
export function withFirstLanes(run) {
  if (run.first_lanes) run.lanes = lanesIn(run.first_lanes);
  return run;
}

/**
 * Puts all lanes of some ranks in the place of those that were known of them.
 * @param {Lane[]} known
 * @param {Lane[]} all of each of their ranks
 * @returns {Lane[]}
 */
export function filledIn(known, all) {
  const byRank = new Map();
  for (const lane of all) {
    if (!byRank.has(lane.rank)) byRank.set(lane.rank, []);
    byRank.get(lane.rank).push(lane);
  }
  const placed = new Set();
  return known.flatMap((lane) => {
    const fresh = byRank.get(lane.rank);
    if (!fresh) return [lane];
    if (placed.has(lane.rank)) return [];
    placed.add(lane.rank);
    return fresh;
  });
}

export class LanePages {
  /** @param {import("../page/timeline.js").Timeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
    this.forget();
  }

  /** Another state of the run has come, with its first lanes. */
  forget() {
    /** @type {Set<number>} ranks whose lanes are here or asked for */
    this.asked = new Set();
  }

  /** Asks for the lanes of open ranks in sight. @param {import("./layout.js").Item[]} items in sight */
  see(items) {
    const { run, collapsed } = this.timeline;
    if (!run.first_lanes) return;
    const ranks = new Set();
    for (const { type, group } of items)
      if (type === "group" && !collapsed.has(group.index)) for (const { rank } of group.lanes) ranks.add(rank);
    this.ask([...ranks]);
  }

  /** Fetches the lanes of the ranks of some lanes, where these are not known. @param {number[]} ids */
  async bring(ids) {
    const { run, laneById } = this.timeline;
    const unknown = ids.filter((id) => !laneById.has(id));
    if (run.first_lanes && unknown.length) await this.take(`lanes=${unknown.join(",")}`);
  }

  /** @param {number[]} ranks */
  ask(ranks) {
    const fresh = ranks.filter((rank) => !this.asked.has(rank));
    for (const rank of fresh) this.asked.add(rank);
    for (let i = 0; i < fresh.length; i += RANKS_AT_ONCE)
      this.take(`ranks=${fresh.slice(i, i + RANKS_AT_ONCE).join(",")}`);
  }

  async take(wanted) {
    const { timeline } = this;
    const { run } = timeline;
    try {
      const page = await timeline.idle.track("lanes", getJson(`/api/lanes/${run.etag}?${wanted}`));
      if (timeline.run !== run) return; // of an earlier state
      const lanes = lanesIn(page);
      for (const { rank } of lanes) this.asked.add(rank);
      run.lanes = filledIn(run.lanes, lanes);
      timeline.adopt(run, timeline.tileSource, groupedBy(run, timeline.arrangement.by));
      timeline.relayout();
    } catch (error) {
      timeline.toast(error.message);
    }
  }
}
