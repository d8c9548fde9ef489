/**
 * How long the ranks of a group work in each step, and which of them are slow: what stands in place of
 * the lanes of a group of ranks.
 * @module
 */

import { getJson } from "../base/bridge.js";
import { count, duration, percent } from "../base/format.js";

/** The server answers for so many groups at once. */
const GROUPS_AT_ONCE = 32;
/** Steps that share a column are asked for again once the window is so much shorter than before. */
const FINER = 4;

/**
 * @typedef {[number, number, number, number, number]} Column start, end, first step, last step, typical time; ns
 * @typedef {(number|null)[]} Spread least, median, greatest time, ns, the rank and the step of the greatest
 * @typedef {{columns: Column[], spread: Spread[], slow: any[][], slowest: [number, number][], steps: number,
 *   scale: number, waits: boolean}} Times of one group
 * @typedef {{group: import("./layout.js").Group, at: number, times: Times}} Pointed a column of a group
 */

/** Returns the column at an instant; -1: none. @param {Times} times @param {number} t ns */
export const columnAt = ({ columns }, t) => columns.findIndex(([start, end]) => t >= start && t < end);

/** Which ranks are slow, in how many steps. @param {{slowest: [number, number][], steps: number}} of */
export function slowWords({ slowest, steps }) {
  if (!slowest.length) return "no slow rank";
  const [[rank, slow], ...others] = slowest;
  const more = others.length ? `, also ${others.map(([one]) => one).join(", ")}` : "";
  return `slow: rank ${rank} in ${count(slow)} of ${count(steps)} steps${more}`;
}

/** Words for a column under the pointer. @param {Pointed} pointed @returns {{title: string, lines: string[]}} */
export function timesWords({ group, at, times }) {
  const [, , first, last, typical] = times.columns[at];
  const [least, median, greatest, rank, step] = times.spread[at];
  const title = `${group.name} · step ${count(first)}${last > first ? ` to ${count(last)}` : ""}`;
  if (least === null) return { title, lines: ["not recorded"] };
  const in_ = (number) => (last > first ? ` in step ${count(number)}` : "");
  const lines = [
    `${duration(least, 4)} to ${duration(greatest, 4)}, median ${duration(median, 4)}`,
    `longest: rank ${rank}${in_(step)} · all ranks: median ${duration(typical, 4)}`,
  ];
  const slow = times.slow.find(([column]) => column === at);
  if (slow) {
    const [, all, ...named] = slow;
    for (const [who, when, own] of named)
      lines.push(`slow: rank ${who}${in_(when)}, ${duration(own, 4)} (+${percent(own / typical - 1)})`);
    if (all > named.length) lines.push(`and ${count(all - named.length)} more slow ranks`);
  }
  return { title, lines };
}

export class GroupTimes {
  /** @param {import("../page/timeline.js").Timeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
    /** @type {Map<number, Times>} by the first rank of a group */
    this.known = new Map();
    this.asked = new Set();
    this.answered = Promise.resolve();
    this.window = null;
    /** @type {{slowest: [number, number][], steps: number}|null} of the whole run */
    this.all = null;
    this.onCame = null;
  }

  /** Returns the times of a group once they are here. @param {import("./layout.js").Group} group */
  of = (group) => this.known.get(group.rank);

  /** Asks for the times of the groups in sight. @param {import("./layout.js").Item[]} items */
  see(items) {
    const groups = items.filter(({ type, group }) => type === "group" && group.summed).map(({ group }) => group.rank);
    if (!groups.length) return;
    const { run, goal, arrangement } = this.timeline;
    const by = arrangement.by || "host";
    if (run !== this.run || by !== this.by || !this.covers(goal)) {
      if (run !== this.run || by !== this.by) this.known = new Map();
      Object.assign(this, { run, by, asked: new Set(), window: this.around(goal), exact: false });
    }
    const fresh = groups.filter((rank) => !this.asked.has(rank));
    for (const rank of fresh) this.asked.add(rank);
    const asked = [];
    for (let i = 0; i < fresh.length; i += GROUPS_AT_ONCE) asked.push(this.ask(fresh.slice(i, i + GROUPS_AT_ONCE)));
    this.answered = Promise.all([this.answered, ...asked]);
  }

  /** Whether what was asked for still serves: it has the window, with a column for each step or not much wider. */
  covers({ t0, t1 }) {
    const { window: w } = this;
    return w && t0 >= w.t0 && t1 <= w.t1 && (this.exact || (t1 - t0) * 2 * FINER >= w.t1 - w.t0);
  }

  around({ t0, t1 }) {
    const beside = (t1 - t0) / 2;
    const end = Math.ceil(this.timeline.duration);
    return { t0: Math.max(0, Math.floor(t0 - beside)), t1: Math.min(end, Math.ceil(t1 + beside)) };
  }

  async ask(ranks) {
    const { timeline, run, by, window } = this;
    const address = `/api/group_times/${run.etag}?by=${encodeURIComponent(by)}&of=${ranks.join(",")}`;
    try {
      const wanted = getJson(`${address}&t0=${window.t0}&t1=${window.t1}`);
      const {
        columns,
        groups,
        scale_ns: scale,
        waits_known: waits,
        slowest,
        steps,
      } = await timeline.idle.track("group times", wanted);
      if (this.window !== window) return; // another one was asked for meanwhile
      this.exact = columns.every(([, , first, last]) => first === last);
      this.all = { slowest, steps };
      for (const [i, rank] of ranks.entries()) this.known.set(rank, { columns, scale, waits, steps, ...groups[i] });
      timeline.labels.drawn = null; // they name slow ranks
      timeline.invalidate("lanes");
      this.onCame?.();
    } catch (error) {
      timeline.toast(error.message);
    }
  }

  /** Returns the group and the column at a point of the lanes. @returns {Pointed|null} */
  at(x, y) {
    const { layout, scrollY } = this.timeline;
    const item = y === null ? null : layout.itemAt(y, scrollY);
    const times = item?.type === "group" && item.group.summed && this.of(item.group);
    if (!times) return null;
    const at = columnAt(times, this.timeline.timeAt(x));
    return at < 0 ? null : { group: item.group, at, times };
  }

  /** Opens or closes the group of ranks at a point. @returns {boolean} false: none is there */
  open(x, y) {
    const pointed = this.at(x, y);
    if (pointed) this.timeline.arranger.toggleGroup(pointed.group.index);
    return Boolean(pointed);
  }

  /** Asks for the slow ranks of a run whose groups of ranks are not shown, so that no times came. */
  async askRun() {
    const { timeline } = this;
    if (timeline.groups.some(({ summed }) => summed)) return;
    const { run, idle, duration } = timeline;
    const address = `/api/group_times/${run.etag}?of=${run.ranks[0]}&t0=0&t1=${Math.ceil(duration)}`;
    try {
      this.all = await idle.track("group times", getJson(address));
    } catch (error) {
      timeline.toast(error.message);
    }
  }

  /** Puts groups with slow ranks first, on top the one that has the slowest. */
  async slowestFirst() {
    const { groups, arranger } = this.timeline;
    this.see(groups.map((group) => ({ type: "group", group })));
    await Promise.all([this.answered, this.askRun()]);
    const ofRanks = new Map([this.all, ...this.known.values()].flatMap((one) => one?.slowest ?? []));
    const slow = (group) => (group.summed ? (this.of(group)?.slowest[0]?.[1] ?? 0) : (ofRanks.get(group.rank) ?? 0));
    const order = groups.filter(slow).sort((a, b) => slow(b) - slow(a));
    if (!order.length) {
      this.timeline.toast("No rank is slow.");
      return;
    }
    arranger.rearrange({ groupOrder: order.map(({ index }) => index) });
    this.timeline.scrollBy(-this.timeline.scrollY);
  }

  /** Opens the group of the slowest rank of the run, and shows that. */
  async showSlowest() {
    const { timeline } = this;
    await this.askRun();
    const [found] = this.all?.slowest ?? [];
    if (!found) {
      timeline.toast("No rank is slow.");
      return;
    }
    const lane = timeline.lanes.find(({ rank, kind }) => rank === found[0] && kind === "thread");
    if (lane) timeline.revealRow(lane.id, 0);
    timeline.toast(slowWords(this.all));
  }
}
