/**
 * Decides which lanes are shown and in what order: pinned ones first, groups and lanes as dragged, the
 * filter applied. Pure.
 * @module
 */

/**
 * @typedef {import("./layout.js").Lane} Lane
 * @typedef {import("./layout.js").Group} Group
 *
 * @typedef {object} Arrangement
 * @property {number[]} pins ids of lanes, topmost first
 * @property {number[]} groupOrder indices of groups; all others follow in the run's order
 * @property {number[]} laneOrder ids of lanes; order of lanes within a group
 * @property {string} filter see `laneFilter`
 * @property {string} by what ranks are grouped by, see rank_groups.js; "": as the run lists them
 */

/** @returns {Arrangement} the lanes as the run lists them */
export const asListed = () => ({ pins: [], groupOrder: [], laneOrder: [], filter: "", by: "" });

/**
 * Parses the filter: all words must occur in a lane's rank, process, thread or name, `-word` must not;
 * or /a regular expression/.
 * @param {string} text
 * @returns {(lane: Lane) => boolean}
 */
export function laneFilter(text) {
  const pattern = /^\/(.+?)\/?$/.exec(text.trim());
  if (pattern) {
    try {
      const expression = new RegExp(pattern[1], "i");
      return (lane) => expression.test(aboutLane(lane));
    } catch {
      return () => true; // still being typed
    }
  }
  const words = text.toLowerCase().match(/-?(rank|pid)\s+\d+|\S+/g) ?? [];
  const tests = words.map((word) => {
    const not = word.length > 1 && word.startsWith("-");
    const plain = not ? word.slice(1) : word;
    // "rank 1" is rank 1, not rank 10: numbers must match as a whole.
    const numbered = /^(?:(rank|pid)\s+)?(\d+)$/.exec(plain);
    const expression = numbered && new RegExp(`${numbered[1] ? `${numbered[1]} ` : "(^|\\D)"}${numbered[2]}(\\D|$)`);
    const found = (all) => (expression ? expression.test(all) : all.includes(plain));
    return not ? (all) => !found(all) : found;
  });
  return (lane) => {
    const all = aboutLane(lane).toLowerCase();
    return tests.every((test) => test(all));
  };
}

const aboutLane = (lane) =>
  `rank ${lane.rank} ${lane.label} ${lane.kind} ${lane.title ?? ""} ${lane.pid ? `pid ${lane.pid}` : ""}`;

/**
 * @param {Group[]} groups as listed
 * @param {Map<number, Lane>} byId
 * @param {Arrangement} wish
 * @returns {{groups: Group[], pinned: Lane[]}} groups without lanes are left out
 */
export function arrange(groups, byId, { pins, groupOrder, laneOrder, filter }) {
  const pinned = pins.map((id) => byId.get(id)).filter(Boolean);
  const away = new Set(pins);
  const keep = filter.trim() ? laneFilter(filter) : () => true;
  const place = new Map(laneOrder.map((id, i) => [id, i]));
  const shown = sortedBy(groups, groupOrder, (group) => group.index).map((group) => {
    const lanes = group.lanes.filter((lane) => !away.has(lane.id) && keep(lane));
    if (lanes.some((lane) => place.has(lane.id)))
      lanes.sort((a, b) => (place.get(a.id) ?? Infinity) - (place.get(b.id) ?? Infinity) || 0);
    return { ...group, lanes };
  });
  const filled = shown.filter((group) => group.lanes.length);
  return {
    groups: shown.filter((group) => group.lanes.length || filled.some((one) => one.parent === group.index)),
    pinned,
  };
}

function sortedBy(things, order, id) {
  const place = new Map(order.map((one, i) => [one, i]));
  return [...things].sort(
    (a, b) => (place.get(id(a)) ?? order.length + id(a)) - (place.get(id(b)) ?? order.length + id(b)),
  );
}

/**
 * Returns the list with `what` moved before `before`, or to the end.
 * @template T
 * @param {T[]} list
 * @param {T} what
 * @param {T|null} before
 */
export function moved(list, what, before) {
  const rest = list.filter((one) => one !== what);
  const at = before === null ? -1 : rest.indexOf(before);
  rest.splice(at < 0 ? rest.length : at, 0, what);
  return rest;
}
