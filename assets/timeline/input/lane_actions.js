/**
 * Actions on lanes: pin, move, open, close, filter. The timeline holds the state.
 * @module
 */

import { arrange, asListed, moved } from "../model/lane_order.js";
import { closedToFit } from "../model/layout.js";
import { groupedBy } from "../model/rank_groups.js";

export class Arranger {
  /** @param {import("../page/timeline.js").Timeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
    /** @type {number[]|null} groups closed for all to fit, which an address need not name; null: not known yet */
    this.closedToFit = null;
    this.raised = 0;
    /** @type {Set<number>|null} groups that were closed when the filter was set; null: no filter */
    this.unfiltered = null;
  }

  /** Closes groups until all that the filter leaves fit. */
  fit() {
    const { groups, laneById, arrangement, height } = this.timeline;
    if (!height) return;
    const { closed, raised } = closedToFit(arrange(groups, laneById, arrangement).groups, height);
    Object.assign(this, { closedToFit: closed, raised });
    this.timeline.collapsed = new Set(closed);
  }

  /** The same once, when the height is known. */
  fitAtFirst() {
    if (this.closedToFit) return;
    this.fit();
    this.timeline.relayout();
  }

  /** Returns the closed groups as an address states them; null: those that it need not name. */
  closed() {
    const { collapsed, scrollY } = this.timeline;
    const fitting = this.closedToFit ?? [];
    const same = collapsed.size === fitting.length && fitting.every((index) => collapsed.has(index));
    return same && !scrollY ? null : [...collapsed];
  }

  /** @param {import("../base/address.js").View} state */
  restore({ collapsed, scrollY, expanded, lanes }) {
    this.timeline.arrangement = lanes;
    this.unfiltered = null;
    this.regroup();
    this.fit();
    if (collapsed || scrollY) this.timeline.collapsed = new Set(collapsed);
    this.timeline.expanded = new Set(expanded);
    this.timeline.relayout();
    this.timeline.lanePages.bring([...lanes.pins, ...expanded]);
  }

  /** Groups the ranks of the run's lanes as the arrangement says. */
  regroup() {
    const { run, arrangement } = this.timeline;
    this.timeline.groups = groupedBy(run, arrangement.by);
    this.timeline.labels.clear(); // headings are known by the places of their groups
    this.timeline.onGrouped?.();
  }

  /** Groups the ranks by another dimension and closes groups that do not fit. @param {string} by see rank_groups.js */
  groupBy(by) {
    Object.assign(this.timeline.arrangement, { by, groupOrder: [] });
    this.regroup();
    this.fit();
    this.timeline.relayout();
  }

  toggleGroup(index) {
    if (!this.timeline.collapsed.delete(index)) this.timeline.collapsed.add(index);
    this.timeline.relayout();
  }

  toggleLane(id) {
    if (!this.timeline.expanded.delete(id)) this.timeline.expanded.add(id);
    this.timeline.relayout();
  }

  /** @param {Partial<import("../model/lane_order.js").Arrangement>} change */
  rearrange(change) {
    const closed = this.unfiltered ?? this.timeline.collapsed;
    Object.assign(this.timeline.arrangement, change);
    if ("filter" in change) {
      this.fit();
      this.unfiltered = change.filter.trim() ? closed : null;
      if (!this.unfiltered) this.timeline.collapsed = closed;
    }
    this.timeline.relayout();
  }

  /** Shows all lanes in the run's order. */
  reset() {
    this.restore({ collapsed: null, scrollY: 0, expanded: [], lanes: asListed() });
  }

  togglePin(id) {
    const { pins } = this.timeline.arrangement;
    this.rearrange({ pins: pins.includes(id) ? pins.filter((one) => one !== id) : [...pins, id] });
  }

  /** Closes all groups, or opens them where all are closed. */
  toggleGroups() {
    const { collapsed, groups } = this.timeline;
    this.timeline.collapsed = new Set(collapsed.size === groups.length ? [] : groups.map((group) => group.index));
    this.timeline.relayout();
  }

  /** Puts a lane before another of its group (null: last). Pinned lanes move among themselves. */
  moveLane(id, before) {
    const { pins, laneOrder } = this.timeline.arrangement;
    if (pins.includes(id)) {
      this.rearrange({ pins: moved(pins, id, before) });
      return;
    }
    const group = this.timeline.layout.items.find((item) => item.lane?.id === id)?.group;
    if (!group) return;
    const ids = group.lanes.map((lane) => lane.id);
    this.rearrange({ laneOrder: [...laneOrder.filter((one) => !ids.includes(one)), ...moved(ids, id, before)] });
  }

  /** Puts a group before another (null: last). @param {number} index @param {number|null} before */
  moveGroup(index, before) {
    const order = this.timeline.layout.items.filter((item) => item.type === "group").map((item) => item.group.index);
    this.rearrange({ groupOrder: moved(order, index, before) });
  }

  /** Returns the lane that a key acts on: the one under the pointer, else that of the selected span. */
  meantLane() {
    const id = this.timeline.pointed ?? this.timeline.selection.current?.lane ?? null;
    if (id === null) this.timeline.toast("Point at a lane, or select a slice in it.");
    return id;
  }

  expandMeant() {
    const id = this.meantLane();
    if (id !== null) this.toggleLane(id);
  }

  pinMeant() {
    const id = this.meantLane();
    if (id !== null) this.togglePin(id);
  }

  /** Moves that lane within its group. @param {-1|1} step */
  moveMeant(step) {
    const id = this.meantLane();
    if (id === null) return;
    const {
      arrangement: { pins },
      layout,
    } = this.timeline;
    const mates = pins.includes(id)
      ? pins
      : (layout.items.find((item) => item.lane?.id === id)?.group.lanes.map((lane) => lane.id) ?? []);
    const at = mates.indexOf(id) + step;
    if (at >= 0 && at < mates.length) this.moveLane(id, step > 0 ? (mates[at + 1] ?? null) : mates[at]);
  }

  /** Closes or opens the group of that lane, else the topmost visible one. */
  collapseMeant() {
    const { selection, layout, scrollY } = this.timeline;
    const lane = this.timeline.pointed ?? selection.current?.lane;
    const topmost = () => layout.visible(scrollY + layout.pinnedHeight, Infinity)[0]?.group;
    const group = lane === undefined ? topmost() : this.timeline.groupOf(lane);
    if (group) this.toggleGroup(group.index);
  }
}
