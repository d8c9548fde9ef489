/**
 * Places groups one below the other, each with its lanes, each lane with its rows. Pure arithmetic on
 * the lane list of the run.
 * @module
 */

export const ROW = 16;
const ROW_GAP = 1;
export const SLIM = 4;
export const GROUP = 22;
/** Height of a group of ranks whose times are drawn. */
export const SUMMED = 42;
const LANE_PAD = 4;
export const COUNTER = 26;
/** A lane shows this many rows in full height and deeper ones slim, until it is opened. */
export const FULL_ROWS = 4;
const STRIP = 3;
/** In a closed group of many threads each strip is a pixel lower. */
const THIN_STRIP = 2;
const MAX_FULL_STRIPS = 12;
/** Where there is room, a strip is higher by up to so many px. */
const MAX_RAISED = 9;
/** Gap below the pinned lanes, where scrolling begins, px. */
const PIN_EDGE = 3;

/**
 * @typedef {object} Lane as the server lists it
 * @property {number} id
 * @property {string} key
 * @property {number} rank
 * @property {string} kind thread, collectives or counter
 * @property {string} label
 * @property {string} group of its rank; in a run of many ranks, of its host
 * @property {{name: string, about: string}|null} [process] where the rank has several; in a run of
 *   many ranks, its rank
 * @property {number} rows
 * @property {string} [title]
 *
 * @typedef {{lane: Lane, row: number, y: number, h: number, text: boolean}} Row
 * @typedef {{type: "group"|"lane", group: Group|null, lane: Lane|null, y: number, h: number, rows: Row[]}} Item
 * @typedef {object} Group a rank, or a process of a rank that has several; or a host, and its ranks
 * @property {number} index position among all groups as they are listed
 * @property {string} name
 * @property {string} about text behind its name; "": its process, as its first lane names it
 * @property {number|null} parent index of the rank's group; null: it is a rank
 * @property {Lane[]} lanes its own lanes, without those of inner groups
 * @property {number} rank of its first lane
 * @property {boolean} [ofRanks] its inner groups are ranks
 * @property {boolean} [summed] the times of its ranks are drawn in place of their lanes
 */

/**
 * Returns ranks in the order of their lanes, then the processes within them.
 * @param {Lane[]} lanes
 * @returns {Group[]}
 */
export function groupsOf(lanes) {
  const ranks = new Map();
  for (const { group, rank } of lanes)
    if (!ranks.has(group))
      ranks.set(group, { index: ranks.size, name: group, about: "", parent: null, lanes: [], rank });
  const processes = new Map();
  for (const lane of lanes) {
    const rank = ranks.get(lane.group);
    if (!lane.process) {
      rank.lanes.push(lane);
      continue;
    }
    const { name, about } = lane.process;
    const key = `${lane.group} ${name}`;
    if (!processes.has(key))
      processes.set(key, {
        index: ranks.size + processes.size,
        name,
        about,
        parent: rank.index,
        lanes: [],
        rank: lane.rank,
      });
    processes.get(key).lanes.push(lane);
  }
  const groups = [...ranks.values(), ...processes.values()];
  for (const rank of ranks.values()) {
    const inner = groups.filter((group) => group.parent === rank.index);
    rank.ofRanks = Boolean(inner[0]?.name.startsWith("rank "));
    if (inner.length) rank.about = `${inner.length} ${rank.ofRanks ? "ranks" : "processes"}`;
  }
  return groups;
}

/** Returns each rank followed by its processes. @param {Group[]} groups @returns {Group[]} */
const inTree = (groups) =>
  groups
    .filter((group) => group.parent === null)
    .flatMap((rank) => [rank, ...groups.filter((group) => group.parent === rank.index)]);

/**
 * Returns what to close for all ranks to fit, and how much higher their strips may be. From the top,
 * ranks are open with as many of their processes as leave room for the strips of all others. A rank
 * that is alone is open.
 * @param {Group[]} groups @param {number} height px of the view
 * @returns {{closed: number[], raised: number}} indices of groups, px of each strip
 */
export function closedToFit(groups, height) {
  const closed = new Set(groups.map((group) => group.index));
  const ranks = groups.filter((group) => group.parent === null);
  if (ranks.length === 1) closed.delete(ranks[0].index);
  const heightOf = (some) => new Layout(some, closed, new Set()).height;
  let room = height - heightOf(groups);
  const opens = (rank) => {
    const inner = groups.filter((group) => group.parent === rank.index);
    const before = heightOf([rank, ...inner]);
    const order = [rank, ...inner].map((group) => group.index).filter((index) => closed.has(index));
    const bare = rank.lanes.length === 0 && closed.has(rank.index); // open alone it would show no lane
    for (let count = order.length; count > (bare ? 1 : 0); count -= 1) {
      for (const index of order.slice(0, count)) closed.delete(index);
      const more = heightOf([rank, ...inner]) - before;
      if (more <= room) {
        room -= more;
        return true;
      }
      for (const index of order) closed.add(index);
    }
    return false;
  };
  ranks.every(opens);
  const strips = new Layout(groups, closed, new Set()).items.flatMap((one) => (one.type === "group" ? one.rows : []));
  const raised = strips.length ? Math.max(0, Math.min(MAX_RAISED, Math.floor(room / strips.length))) : 0;
  return { closed: [...closed].sort((a, b) => a - b), raised };
}

/** True if a lane has rows that are slim until it is opened. @param {Lane} lane */
export const expandable = (lane) => lane.kind !== "counter" && lane.rows > FULL_ROWS;

/** The placed items of a run. */
export class Layout {
  /**
   * @param {Group[]} groups in the order in which they are shown
   * @param {Set<number>} collapsed indices of closed groups
   * @param {Set<number>} expanded ids of opened lanes
   * @param {Lane[]} [pinned] lanes that stay at the top while the others scroll
   * @param {number} [raised] px by which the strips of closed groups are higher
   */
  constructor(groups, collapsed, expanded, pinned = [], raised = 0) {
    this.groups = groups;
    /** @type {Item[]} */
    this.items = [];
    /** @type {Item[]} */
    this.pinned = [];
    let y = 0;
    for (const lane of pinned) {
      const item = laneItem(null, lane, y, expanded.has(lane.id));
      this.pinned.push(item);
      y += item.h;
    }
    this.pinnedHeight = y ? y + PIN_EDGE : 0;
    y = this.pinnedHeight;
    for (const own of inTree(groups)) {
      if (collapsed.has(own.parent)) continue;
      const closed = collapsed.has(own.index);
      // A closed group includes the lanes of its inner groups.
      const group = closed
        ? {
            ...own,
            lanes: [...own.lanes, ...groups.filter((one) => one.parent === own.index).flatMap((one) => one.lanes)],
          }
        : own;
      const strips = closed && !own.summed ? stripsOf(group, y, raised) : [];
      const least = own.summed ? SUMMED : GROUP;
      const h = strips.length ? Math.max(least, strips.at(-1).y + strips.at(-1).h + 4 - y) : least;
      this.items.push({ type: "group", group, lane: null, y, h, rows: strips });
      y += h;
      if (closed) {
        y += LANE_PAD / 2;
        continue;
      }
      for (const lane of group.lanes) {
        const item = laneItem(group, lane, y, expanded.has(lane.id));
        this.items.push(item);
        y += item.h;
      }
      y += LANE_PAD;
    }
    this.height = y;
  }

  /** Items that touch [y0, y1). @returns {Item[]} */
  visible(y0, y1) {
    let low = 0;
    let high = this.items.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.items[middle].y + this.items[middle].h <= y0) low = middle + 1;
      else high = middle;
    }
    const out = [];
    for (let i = low; i < this.items.length && this.items[i].y < y1; i += 1) out.push(this.items[i]);
    return out;
  }

  /**
   * Returns the lanes drawn at a scroll position: first the scrolling lanes, then the pinned ones.
   * @param {number} scrollY
   * @param {number} height px of the view
   * @returns {{items: Item[], shift: number, top: number, bottom: number}[]} subtract shift from y
   */
  parts(scrollY, height) {
    const edge = this.pinnedHeight;
    const parts = [
      { items: this.visible(scrollY + edge, scrollY + height), shift: scrollY, top: edge, bottom: height },
    ];
    if (edge) parts.push({ items: this.pinned, shift: 0, top: 0, bottom: Math.min(edge, height) });
    return parts;
  }

  /** The item at a height of the view, or null. @param {number} y @param {number} [scrollY] @returns {Item|null} */
  itemAt(y, scrollY = 0) {
    if (y < this.pinnedHeight) return this.pinned.find((item) => y >= item.y && y < item.y + item.h) ?? null;
    const [item] = this.visible(y + scrollY, y + scrollY + 1);
    return item && y + scrollY >= item.y ? item : null;
  }

  /** The row at a height of the view, or null. Gaps belong to the row above. @returns {Row|null} */
  rowAt(y, scrollY = 0) {
    const item = this.itemAt(y, scrollY);
    if (!item) return null;
    const at = y < this.pinnedHeight ? y : y + scrollY;
    return item.rows.find((row) => at >= row.y && at < row.y + row.h + ROW_GAP) ?? null;
  }

  /** Returns where a row of a lane is drawn in full, null if its group is closed. @returns {Row|null} */
  find(laneId, row) {
    const has = (item) => item.type === "lane" && item.lane.id === laneId;
    return (this.pinned.find(has) ?? this.items.find(has))?.rows[row] ?? null;
  }

  /**
   * Returns the place of a row in the view, or of its lane's strip in a closed group. Null: not visible.
   * @returns {{y: number, h: number}|null}
   */
  onScreen(laneId, row, scrollY) {
    const pinned = this.pinned.find((item) => item.lane.id === laneId)?.rows[row];
    if (pinned) return { y: pinned.y, h: pinned.h };
    const found =
      this.find(laneId, row) ??
      this.items.flatMap((item) => (item.type === "group" ? item.rows : [])).find((one) => one.lane.id === laneId);
    return found && found.y + found.h - scrollY > this.pinnedHeight ? { y: found.y - scrollY, h: found.h } : null;
  }

  /** All rows from top to bottom. @returns {Row[]} */
  rows() {
    return [...this.pinned, ...this.items].filter((i) => i.type === "lane").flatMap((i) => i.rows);
  }
}

function laneItem(group, lane, y, open) {
  const rows = [];
  let at = y + LANE_PAD / 2;
  if (lane.kind === "counter") {
    rows.push({ lane, row: 0, y: at, h: COUNTER, text: false });
    at += COUNTER + ROW_GAP;
  } else {
    const slimFrom = open || lane.rows <= FULL_ROWS ? lane.rows : FULL_ROWS - 1;
    for (let row = 0; row < lane.rows; row += 1) {
      const slim = row >= slimFrom;
      const h = slim ? SLIM : ROW;
      rows.push({ lane, row, y: at, h, text: !slim });
      at += h + ROW_GAP;
    }
  }
  return { type: "lane", group, lane, y, h: at - y + LANE_PAD / 2 + 2, rows };
}

/**
 * A closed group shows thin strips per thread: its outermost phases and its outermost ops. Each shows
 * the covered time of exactly that row.
 */
function stripsOf(group, y, raised) {
  const lanes = group.lanes.filter((lane) => lane.kind !== "counter");
  const rows = lanes.flatMap((lane) => {
    const phases = lane.phase_rows ?? 0;
    return phases && phases < lane.rows
      ? [
          [lane, 0],
          [lane, phases],
        ]
      : [[lane, 0]];
  });
  const h = (rows.length > MAX_FULL_STRIPS ? THIN_STRIP : STRIP) + raised;
  let at = y + 4;
  return rows.map(([lane, row], i) => {
    if (i && rows[i - 1][0] !== lane) at += 1;
    const strip = { lane, row, y: at, h, text: false };
    at += h;
    return strip;
  });
}
