/**
 * Where lanes stand: groups one below the other, each with its lanes, each lane with its rows.
 * Pure arithmetic on the lane list of the run.
 * @module
 */

export const ROW = 16;
export const ROW_GAP = 1;
export const SLIM = 4;
export const GROUP = 22;
export const LANE_PAD = 4;
export const COUNTER = 26;
/** A lane with more rows shows this many in full and the deeper ones slim, until it is opened. */
export const FULL_ROWS = 4;
const STRIP = 3;
const MAX_STRIPS = 12;

/**
 * @typedef {object} Lane as the server lists it
 * @property {number} id
 * @property {string} key
 * @property {number} rank
 * @property {string} kind thread, collectives or counter
 * @property {string} label
 * @property {string} group
 * @property {number} rows
 * @property {string} [title]
 *
 * @typedef {{lane: Lane, row: number, y: number, h: number, text: boolean}} Row
 * @typedef {{type: "group"|"lane", group: Group, lane: Lane|null, y: number, h: number, rows: Row[]}} Item
 * @typedef {{index: number, name: string, lanes: Lane[]}} Group
 */

/** Lanes by group, in the order in which they come. @param {Lane[]} lanes @returns {Group[]} */
export function groupsOf(lanes) {
  const groups = new Map();
  for (const lane of lanes) {
    if (!groups.has(lane.group)) groups.set(lane.group, { index: groups.size, name: lane.group, lanes: [] });
    groups.get(lane.group).lanes.push(lane);
  }
  return [...groups.values()];
}

/** Whether a lane has rows that are slim until it is opened. @param {Lane} lane */
export const expandable = (lane) => lane.kind !== "counter" && lane.rows > FULL_ROWS;

/** The placed items of a run. */
export class Layout {
  /**
   * @param {Group[]} groups
   * @param {Set<number>} collapsed indices of closed groups
   * @param {Set<number>} expanded ids of opened lanes
   */
  constructor(groups, collapsed, expanded) {
    /** @type {Item[]} */
    this.items = [];
    let y = 0;
    for (const group of groups) {
      const closed = collapsed.has(group.index);
      const strips = closed ? stripsOf(group, y) : [];
      const h = closed ? Math.max(GROUP, strips.length * (STRIP + 1) + 8) : GROUP;
      this.items.push({ type: "group", group, lane: null, y, h, rows: strips });
      y += h;
      if (closed) continue;
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

  /** The item at a height, or null. @returns {Item|null} */
  itemAt(y) {
    const [item] = this.visible(y, y + 1);
    return item && y >= item.y ? item : null;
  }

  /** The row at a height, or null. Gaps belong to the row above. @returns {Row|null} */
  rowAt(y) {
    const item = this.itemAt(y);
    if (!item) return null;
    return item.rows.find((row) => y >= row.y && y < row.y + row.h + ROW_GAP) ?? null;
  }

  /** Where a row of a lane is drawn now, or null when its group is closed. @returns {Row|null} */
  find(laneId, row) {
    const item = this.items.find((i) => i.type === "lane" && i.lane.id === laneId);
    return item?.rows[row] ?? null;
  }

  /** All rows from top to bottom. @returns {Row[]} */
  rows() {
    return this.items.filter((i) => i.type === "lane").flatMap((i) => i.rows);
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

/** A closed group keeps one thin strip per thread: its outermost row, the same data as before. */
function stripsOf(group, y) {
  const lanes = group.lanes.filter((lane) => lane.kind === "thread").slice(0, MAX_STRIPS);
  return lanes.map((lane, i) => ({ lane, row: 0, y: y + 4 + i * (STRIP + 1), h: STRIP, text: false }));
}
