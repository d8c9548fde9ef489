/**
 * The selected span: fetches its details, shows them in the dock, and steps to its neighbours.
 * @module
 */

import { getJson } from "../base/bridge.js";
import { duration as formatDuration } from "../base/format.js";
import { STYLE_NAMES, STYLE_TOKENS } from "../base/palette.js";
import { around } from "../base/viewport.js";

/**
 * @typedef {object} Selected
 * @property {number} lane
 * @property {number} row
 * @property {number} ref
 * @property {string} name
 * @property {number} start ns
 * @property {number} end ns
 * @property {{lane: number, row: number, start_ns: number}|null} [beside] the same operator of the other run
 */

export class Selection {
  /**
   * @param {import("../page/timeline.js").Timeline} timeline
   * @param {import("./span_panel.js").SpanPanel} details
   * @param {string} etag of the run
   */
  constructor(timeline, details, etag) {
    this.timeline = timeline;
    this.details = details;
    this.etag = etag;
    /** @type {Selected|null} */
    this.current = null;
    /** @type {import("./flows.js").Flow[]} */
    this.flows = [];
    this.asked = 0;
    /** The span to select, until its details have come. @type {{lane: number, row: number, ref: number}|null} */
    this.wanted = null;
    /** Requests under way that end in a selection: their numbers are those of this state of the run. */
    this.open = 0;
  }

  /** Awaits work that ends in a selection. @template T @param {Promise<T>} work @returns {Promise<T>} */
  async awaits(work) {
    this.open += 1;
    try {
      return await work;
    } finally {
      this.open -= 1;
    }
  }

  /** Where the selected span is drawn; null without one. @returns {{t0: number, t1: number}|null} */
  get extent() {
    const { current, timeline } = this;
    if (!current) return null;
    const { start, end } = timeline.alignment.drawn(current);
    return { t0: start, t1: end };
  }

  /**
   * Selects a span, then fetches its details.
   * @param {{lane: number, row: number, ref: number, start?: number, end?: number, name?: string}} span
   * @param {boolean} [reveal] move the window to it
   */
  async select(span, reveal = false) {
    const { timeline } = this;
    this.asked += 1;
    const mine = this.asked;
    this.wanted = span;
    try {
      if (!timeline.laneById.has(span.lane)) await this.awaits(timeline.lanePages.bring([span.lane]));
      if (mine !== this.asked) return;
      const lane = timeline.laneById.get(span.lane);
      if (!lane) throw new Error("The run has no such lane.");
      if (span.start !== undefined) this.set(span, reveal);
      const full = await this.awaits(this.facts(span));
      if (mine !== this.asked) return;
      const [start, end] = full.drawn;
      const first = span.start === undefined;
      const step = full.step >= 0 ? full.step : timeline.stepping.at(start);
      const { name, unfinished, row = span.row, beside = null } = full;
      this.set({ ...span, row, name, start, end, step, unfinished, beside }, reveal && first);
      this.flows = full.flows ?? [];
      timeline.invalidate("overlay");
      this.show(full, lane);
    } catch (error) {
      if (mine !== this.asked) return;
      this.wanted = null;
      this.details.fail(error.message);
    }
  }

  /** @param {{lane: number, ref: number}} span @returns {Promise<Record<string, any>>} everything known of it */
  facts({ lane, ref }) {
    return this.timeline.idle.track("slice", getJson(`/api/slice/${this.etag}/${lane}/${ref}`));
  }

  set(span, reveal) {
    const { current } = this;
    this.wanted = null;
    if (current?.lane !== span.lane || current.ref !== span.ref) this.flows = [];
    this.current = { ...span };
    if (reveal) this.reveal();
    this.timeline.changed();
  }

  show(full, lane) {
    const where = `rank ${lane.rank} · ${lane.label}`;
    this.details.show(full, STYLE_TOKENS[STYLE_NAMES.indexOf(full.style)] ?? "other", where);
    const length = full.duration_ns === null ? "unfinished" : formatDuration(Number(full.duration_ns));
    this.timeline.dom.live.textContent = `${full.name}, ${length}, ${where}`;
  }

  clear() {
    this.asked += 1;
    this.wanted = null;
    this.current = null;
    this.flows = [];
    this.timeline.alignment.clear();
    this.details.clear();
    this.timeline.changed();
  }

  /** Moves the window to the span; zooms only if the span is wider than the window. */
  reveal() {
    const { timeline, current, extent } = this;
    const { t0, t1 } = timeline.goal;
    const span = t1 - t0;
    if (extent.t1 - extent.t0 > span) timeline.glideTo(around(extent.t0, extent.t1, 0.1, timeline.duration));
    else if (extent.t0 < t0 + span * 0.02 || extent.t1 > t1 - span * 0.02) {
      const middle = (extent.t0 + extent.t1) / 2;
      timeline.glideTo({ t0: middle - span / 2, t1: middle + span / 2 });
    }
    timeline.revealRow(current.lane, current.row);
  }

  /** Follows an arrow of the selected span: the first outgoing or incoming one. @param {1|-1} direction */
  along(direction) {
    const { current, flows, timeline } = this;
    const [near, far] = direction > 0 ? ["from", "to"] : ["to", "from"];
    const ends = flows
      .filter((flow) => flow[near].lane === current.lane && flow[near].ref === current.ref)
      .map((flow) => flow[far]);
    if (!ends.length) {
      timeline.toast(
        direction > 0 ? "No arrow leads from the selected slice." : "No arrow leads to the selected slice.",
      );
      return;
    }
    const { lane, row, ref } = ends.reduce((a, b) => (b.t < a.t ? b : a));
    this.select({ lane, row, ref }, true);
  }

  /** Selects the next or previous span in the row. @param {"next"|"prev"} direction */
  async neighbour(direction) {
    const { timeline, current } = this;
    if (!current) {
      timeline.toast("Select a slice first: click one.");
      return;
    }
    await this.nearest(current.lane, current.row, current.start, direction, true);
  }

  /**
   * Selects the next or previous search match, in any lane.
   * @param {"next"|"prev"} direction
   * @param {{t0: number}|null} [within] window to begin in; null: from the selected span
   */
  async match(direction, within = null) {
    const { timeline, current } = this;
    const { wanted } = timeline.hits;
    if (!wanted) {
      timeline.toast(timeline.query ? "No match" : "Search for something first: press /.");
      return;
    }
    const start = { t: Math.round((within ?? timeline.view).t0), lane: -1, row: -1 };
    const from = current && !within ? { t: current.start, lane: current.lane, row: current.row } : start;
    try {
      const address = `/api/find/${this.etag}`;
      const answer = getJson(address, { ...wanted, ...from, dir: direction });
      const found = await this.awaits(timeline.idle.track("find", answer));
      if (found.ref === null) {
        const where = direction === "next" ? "after" : "before";
        timeline.toast(found.total === 0 ? "No match" : `No match ${where} this one.`);
      } else {
        timeline.hits.position = found.position;
        timeline.onHits?.();
        await this.select({ lane: found.lane, row: found.row, ref: found.ref }, true);
      }
    } catch (error) {
      timeline.toast(error.message);
    }
  }

  /** Selects the span of a row that is nearest to an instant. */
  async nearest(lane, row, t, direction, announceEnd) {
    const { timeline } = this;
    const address = `/api/nearest/${this.etag}/${lane}?row=${row}&t=${Math.round(t)}&dir=${direction}`;
    try {
      const found = await this.awaits(timeline.idle.track("nearest", getJson(address)));
      if (found && found.ref !== undefined && found.ref !== null)
        await this.select({ lane, row, ref: found.ref }, true);
      else if (announceEnd)
        timeline.toast(
          direction === "next" ? "This is the last slice in its row." : "This is the first slice in its row.",
        );
      return Boolean(found && found.ref !== undefined && found.ref !== null);
    } catch (error) {
      timeline.toast(error.message);
      return false;
    }
  }

  /** Goes to the row above or below, at the time of the selected span. @param {-1|1} step */
  async vertical(step) {
    const { timeline, current } = this;
    const rows = timeline.layout.rows().filter((row) => row.lane.kind !== "counter");
    if (!rows.length) return;
    if (!current) {
      const first = rows.find((row) => row.y >= timeline.scrollY + timeline.layout.pinnedHeight) ?? rows[0];
      await this.nearest(first.lane.id, first.row, timeline.view.t0, "next", false);
      return;
    }
    const here = rows.findIndex((row) => row.lane.id === current.lane && row.row === current.row);
    const t = Math.max(this.extent.t0, Math.min(this.extent.t1, timeline.view.t0));
    for (let i = here + step; i >= 0 && i < rows.length; i += step) {
      const { lane, row } = rows[i];
      const hit = timeline.hitRow(rows[i], t);
      if (hit && (await timeline.selectHit(hit, true))) return;
      const own = t - timeline.alignment.of(lane.id);
      if (await this.nearest(lane.id, row, own, "next", false)) return;
      if (await this.nearest(lane.id, row, own, "prev", false)) return;
    }
    timeline.toast(step > 0 ? "This is the lowest row." : "This is the topmost row.");
  }
}
