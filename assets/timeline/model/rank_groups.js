/**
 * Groups lanes by what their ranks have in common: a host, or a place along a parallel dimension. Pure.
 * @module
 */

import { groupsOf } from "./layout.js";

/**
 * @typedef {object} Grouping as the server lists it
 * @property {string} name host, pipeline, ...
 * @property {string} word what one group is called
 * @property {string[]} titles of the groups
 * @property {(number|null)[]} of the group of each rank of the run, in their order; null: none
 */

/** Returns the groups of a run's lanes. @param {any} run @param {string} by name of a grouping; "": as they are listed */
export function groupedBy(run, by) {
  const groups = grouped(run, by);
  for (const group of groups) group.summed = Boolean(group.ofRanks && run.steps?.count);
  return groups;
}

function grouped(run, by) {
  const chosen = (run.groupings ?? []).find(({ name }) => name === by);
  if (!chosen) return groupsOf(run.lanes);
  const titles = new Map(run.ranks.map((rank, i) => [rank, chosen.titles[chosen.of[i]] ?? `no ${chosen.word}`]));
  const process = new Map(run.ranks.map((rank) => [rank, { name: `rank ${rank}`, about: "" }]));
  return groupsOf(
    run.lanes.map((lane) => ({ ...lane, group: titles.get(lane.rank), process: process.get(lane.rank) })),
  );
}

/** Returns what ranks can be grouped by: name and title. @param {any} run @returns {{by: string, title: string}[]} */
export function choicesOf(run) {
  const rest = (run.groupings ?? []).map(({ name, word }) => ({ by: name, title: word }));
  return [{ by: "", title: run.first_lanes ? "host" : "rank" }, ...rest];
}
