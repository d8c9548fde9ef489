/**
 * The timeline: one state, one frame loop. Everything that moves the view goes through here; the
 * modules that draw, fetch and listen do not import each other.
 * @module
 */

import { duration as formatDuration } from "../base/format.js";
import { debounced } from "../base/idle.js";
import { Palette, readTokens } from "../base/palette.js";
import * as vp from "../base/viewport.js";
import { Header } from "../draw/header.js";
import { Labels } from "../draw/labels.js";
import { Overlay } from "../draw/overlay.js";
import { Painter } from "../draw/painter.js";
import { BUDGET, drawLanes, drawOverlay } from "../draw/scene.js";
import { Arranger } from "../input/lane_actions.js";
import { Alignment } from "../model/alignment.js";
import { Differences } from "../model/differences.js";
import { GroupTimes } from "../model/group_times.js";
import { hitRow } from "../model/hit_test.js";
import { arrange, asListed } from "../model/lane_order.js";
import { LanePages } from "../model/lane_pages.js";
import { Layout } from "../model/layout.js";
import { Overlaps } from "../model/overlaps.js";
import { Picker } from "../model/pick.js";
import { Place } from "../model/place.js";
import { groupedBy } from "../model/rank_groups.js";
import { SearchMarks } from "../model/search_marks.js";
import { Selection } from "../model/selection.js";
import { Stepping } from "../model/stepping.js";
import { WindowHistory } from "../model/window_history.js";
import { Tooltip } from "../panels/tooltip.js";
import { TileSource } from "../tiles/tile_source.js";
import { verticalScroll } from "./timeline_dom.js";

/** Share of the way covered per frame while gliding. */
const GLIDE = 0.34;
/** The end of a range snaps to the edge of a span within this distance, px. */
const SNAP = 6;
const still = matchMedia("(prefers-reduced-motion: reduce)");

export class Timeline {
  /**
   * @param {ReturnType<typeof import("./timeline_dom.js").buildDom>} dom
   * @param {any} run as /api/run describes it
   * @param {import("../base/idle.js").Idle} idle
   * @param {import("../model/span_panel.js").SpanPanel} details
   * @param {{settled: () => void, drawn?: () => void}} page called when the view has settled, and
   *   when all visible lanes are drawn for the first time
   */
  constructor(dom, run, idle, details, page) {
    Object.assign(this, { dom, run, idle, whenDrawn: page.drawn, width: 0, height: 0 });
    this.painter = new Painter(dom.lanesCanvas, run.names);
    this.adopt(run, this.tileSourceOf(run), groupedBy(run, ""));
    this.lanePages = new LanePages(this);
    this.groupTimes = new GroupTimes(this);
    this.view = this.opening;
    this.goal = this.view;
    Object.assign(this, { scrollY: 0, collapsed: new Set(), expanded: new Set() });
    /** @type {import("../model/lane_order.js").Arrangement} */
    this.arrangement = asListed();
    Object.assign(this, { range: null, marks: [], query: "", matches: null, pointer: { x: null, y: null } });
    this.dirty = new Set();
    this.frames = { count: 0, last: 0, times: new Float32Array(240) };
    this.picker = new Picker(run.etag, idle, () => this.invalidate("overlay"));
    this.header = new Header(dom.headCanvas);
    this.overlay = new Overlay(dom.overlayCanvas);
    this.tooltip = new Tooltip(dom.lanes);
    this.labels = new Labels(dom.labels, {
      group: (index) => this.arranger.toggleGroup(index),
      lane: (id) => this.arranger.toggleLane(id),
      pin: (id) => this.arranger.togglePin(id),
    });
    this.arranger = new Arranger(this);
    this.selection = new Selection(this, details, run.etag);
    this.hits = new SearchMarks(this, run.etag);
    this.overlaps = new Overlaps(this, run.etag);
    this.differences = new Differences(this, run);
    this.alignment = new Alignment(this);
    this.stepping = new Stepping(this);
    this.place = new Place(this);
    this.history = new WindowHistory(this);
    this.placeThumb = verticalScroll(dom, (y) => this.scrollBy(y - this.scrollY));
    this.settled = debounced(idle, "settling", 160, () => {
      this.history.remember(this.view);
      page.settled();
      this.hits.follow();
    });
    this.retheme();
    this.relayout();
    new ResizeObserver(() => this.resize()).observe(dom.lanes);
    this.resize();
  }

  /** Takes a run's description and the source of its tiles. */
  adopt(run, tileSource, groups) {
    Object.assign(this, { run, tileSource, groups, names: run.names, lanes: run.lanes });
    this.duration = Math.max(run.duration_ns, 1);
    const [t0, t1] = run.opening ?? [0, this.duration]; // what an address without a window shows
    this.opening = { t0, t1: Math.max(t1, t0 + 1) };
    this.laneById = new Map(run.lanes.map((lane) => [lane.id, lane]));
    this.steps = Object.entries(run.steps ?? {}).find(([key]) => key.startsWith("rank"))?.[1] ?? [];
    this.painter.rename(run.names);
  }

  tileSourceOf(run) {
    const duration = Math.max(run.duration_ns, 1);
    return new TileSource(
      run,
      duration,
      this.idle,
      () => this.invalidate("lanes"),
      (message) => this.toast(message, true),
    );
  }

  // ---- size, theme, lanes ----

  resize() {
    const { clientWidth: width, clientHeight: height } = this.dom.lanes;
    const ratio = globalThis.devicePixelRatio || 1;
    if (!width || !height || (width === this.width && height === this.height && ratio === this.ratio)) return;
    Object.assign(this, { width, height, ratio });
    this.painter.resize(width, height, ratio);
    this.overlay.resize(width, height, ratio);
    this.header.resize(width, ratio);
    this.arranger.fitAtFirst();
    this.scrollBy(0);
    this.invalidate("lanes");
    this.frame(); // synchronously: a resized canvas is blank
  }

  retheme() {
    this.palette = new Palette(readTokens(this.dom.host), this.names);
    this.invalidate("lanes");
  }

  relayout() {
    const { groups, pinned } = arrange(this.groups, this.laneById, this.arrangement);
    this.layout = new Layout(groups, this.collapsed, this.expanded, pinned, this.arranger.raised);
    this.scrollBy(0);
    this.onArranged?.();
    this.changed();
  }

  // ---- moving ----

  /** Call when the view changed: draws, and notifies the page once it has settled. */
  changed() {
    this.invalidate("lanes");
    this.settled();
  }

  /** @param {vp.Window} view */
  setView(view) {
    this.view = vp.clamp(view, this.duration);
    this.goal = this.view;
    this.changed();
  }

  show(t0, t1) {
    this.setView({ t0, t1 });
  }

  /** @param {number} px to the right */
  panBy(px) {
    this.setView(vp.pan(this.view, (px / this.width) * (this.view.t1 - this.view.t0), this.duration));
  }

  /** @param {number} factor @param {number|null} anchor ns; null: the middle */
  zoomBy(factor, anchor) {
    this.setView(vp.zoom(this.view, factor, anchor ?? (this.view.t0 + this.view.t1) / 2, this.duration));
  }

  /** How far the lanes can be scrolled, px; 0: all are visible. */
  get scrollable() {
    return Math.max(0, (this.layout?.height ?? 0) - this.height);
  }

  scrollBy(px) {
    const before = this.scrollY;
    this.scrollY = Math.min(Math.max(before + px, 0), this.scrollable);
    if (this.scrollY !== before) this.changed();
  }

  /** Moves smoothly: each key press moves the goal, and frames approach it. */
  glide(kind, amount) {
    const { t0, t1 } = this.goal;
    if (kind === "pan") this.glideTo(vp.pan(this.goal, (t1 - t0) * amount, this.duration));
    else {
      const at = this.pointer.x === null ? (t0 + t1) / 2 : t0 + (this.pointer.x / this.width) * (t1 - t0);
      this.glideTo(vp.zoom(this.goal, amount, at, this.duration));
    }
  }

  glideTo(goal) {
    this.goal = vp.clamp(goal, this.duration);
    if (still.matches) this.view = this.goal;
    this.changed();
  }

  fitAll() {
    this.glideTo({ t0: 0, t1: this.duration });
  }

  /** Fits the range or the selected span; if it fits already, the whole run. */
  fit() {
    const target = this.range ?? this.selection.extent;
    if (!target) {
      this.fitAll();
      return;
    }
    const next = vp.around(target.t0, target.t1, 0.15, this.duration);
    const there = Math.abs(next.t0 - this.goal.t0) + Math.abs(next.t1 - this.goal.t1) < (next.t1 - next.t0) * 0.01;
    if (there) this.fitAll();
    else this.glideTo(next);
  }

  zoomToSelected() {
    const { extent } = this.selection;
    if (extent) this.glideTo(vp.around(extent.t0, extent.t1, 0.15, this.duration));
  }

  /** Returns the group that shows a lane: its process's, or its rank's if that is closed. */
  groupOf(lane) {
    const own = this.groups.find((group) => group.lanes.some((one) => one.id === lane));
    return own && this.collapsed.has(own.parent) ? this.groups[own.parent] : own;
  }

  revealRow(lane, row) {
    while (this.collapsed.has(this.groupOf(lane)?.index)) this.arranger.toggleGroup(this.groupOf(lane).index);
    if (!this.layout.find(lane, row) && this.arrangement.filter) this.arranger.rearrange({ filter: "" });
    const place = this.layout.find(lane, row);
    if (!place || this.arrangement.pins.includes(lane)) return; // pinned: always visible
    const top = this.layout.pinnedHeight + 24;
    if (place.y - top < this.scrollY) this.scrollBy(place.y - top - this.scrollY);
    else if (place.y + place.h + 24 > this.scrollY + this.height)
      this.scrollBy(place.y + place.h + 24 - this.scrollY - this.height);
  }

  // ---- selecting ----

  timeAt(x) {
    return this.view.t0 + (x / this.width) * (this.view.t1 - this.view.t0);
  }

  /** @param {number|null} x @param {number|null} y px in the lanes; null: not over them */
  pointAt(x, y) {
    this.pointer = { x, y };
    this.pointed = y === null ? null : (this.layout.itemAt(y, this.scrollY)?.lane?.id ?? null);
    this.invalidate("overlay");
  }

  /** Returns the hit at a point of the lanes. @returns {import("../model/hit_test.js").Hit|null} */
  hit(x, y) {
    const row = this.layout.rowAt(y, this.scrollY);
    return row ? this.picker.of(this.hitRow(row, this.timeAt(x))) : null;
  }

  hitRow(row, t) {
    const { id } = row.lane;
    const perPixel = (this.view.t1 - this.view.t0) / this.width;
    return hitRow(this.tileSource.sources(id), row, t - this.alignment.of(id), perPixel);
  }

  async click(x, y) {
    const hit = this.hit(x, y);
    if (hit) await this.selectHit(hit, false);
    else if (!this.groupTimes.open(x, y)) this.selection.clear();
  }

  /** Selects a hit. @returns {Promise<boolean>} false if it has no span */
  async selectHit(hit, reveal) {
    try {
      const { kind, lane, row, ref, start, end } = await this.selection.awaits(this.picker.ask(hit));
      if (ref < 0) return false;
      this.selection.select(kind === "span" ? { lane, row, ref, start, end } : { lane, row, ref }, reveal);
      return true;
    } catch (error) {
      this.toast(error.message);
      return false;
    }
  }

  setRange(t0, t1) {
    this.range = t1 > t0 ? { t0: Math.round(t0), t1: Math.max(Math.round(t1), Math.round(t0) + 1) } : null;
    this.changed();
  }

  /** Sets the range to the selected span, or without one to the window. */
  markRange() {
    const { t0, t1 } = this.selection.extent ?? this.view;
    this.setRange(t0, t1);
  }

  /** Measures from the selected span to the one at a point, and shows the distance. */
  measureTo(x, y) {
    const { current } = this.selection;
    const hit = this.hit(x, y);
    if (!current || !hit || hit.kind !== "span") {
      this.setRange(0, 0);
      return;
    }
    const both = [current, hit].map((span) => this.alignment.drawn(span));
    const [first, second] = both.sort((a, b) => a.start - b.start);
    this.setRange(first.start, second.start);
    const gap = second.start - first.end;
    const between =
      gap >= 0
        ? `end to start ${formatDuration(gap)}`
        : `they overlap by ${formatDuration(Math.min(-gap, second.end - second.start))}`;
    this.toast(`Start to start ${formatDuration(second.start - first.start)} · ${between}`);
  }

  /** Returns the instant at a point, or the edge of a nearby span. */
  snappedAt(x, y) {
    const t = this.timeAt(x);
    const hit = y >= 0 && y < this.height ? this.hit(x, y) : null;
    if (hit?.kind !== "span") return t;
    const reach = (SNAP / this.width) * (this.view.t1 - this.view.t0);
    const { start, end } = this.alignment.drawn(hit);
    const edge = Math.abs(start - t) < Math.abs(end - t) ? start : end;
    return Math.abs(edge - t) <= reach ? edge : t;
  }

  /** @param {string} query @param {import("../panels/search.js").Found|null} found */
  setSearch(query, found) {
    this.query = query;
    // Tiles hold neither modules nor lengths: such hits are outlined, and nothing fades.
    this.matches = found && !found.modules.length && !found.narrowed ? found.flags : null;
    const { ids: names, modules, least, most, ranks, within } = found ?? {};
    this.hits.look(found && { names, modules, least, most, ranks, within });
    this.changed();
  }

  /** Esc: clears one thing at a time: search, range, overlaps, selection. */
  letGo() {
    if (this.query) this.onSearchCleared?.();
    else if (this.range) this.setRange(0, 0);
    else if (this.overlaps.on) this.overlaps.hide();
    else if (this.selection.current) this.selection.clear();
    this.settled();
  }

  // ---- frames ----

  /** @param {"lanes"|"overlay"|"rest"} what rest: lanes that the last frame did not draw */
  invalidate(what) {
    this.dirty.add(what);
    if (this.scheduled) return;
    this.scheduled = this.idle.begin("frame");
    requestAnimationFrame(() => {
      const end = this.scheduled;
      this.scheduled = null;
      this.frame();
      end();
    });
  }

  frame() {
    if (!this.width) return;
    const begin = performance.now();
    if (this.goal !== this.view) {
      const { view, done } = vp.approach(this.view, this.goal, GLIDE);
      this.view = view;
      if (done) this.goal = view;
      this.settled(); // every frame of a glide restarts the pause
      this.dirty.add("lanes");
    }
    const lanes = this.dirty.has("lanes");
    const overlay = lanes || this.dirty.has("overlay");
    this.dirty.clear();
    if (lanes) this.sharp = drawLanes(this);
    else if (this.painter.unfinished) this.painter.resume(BUDGET);
    if (overlay) drawOverlay(this);
    if (this.sharp && !this.painter.unfinished && this.whenDrawn) {
      this.whenDrawn();
      this.whenDrawn = null;
    }
    this.frames.last = performance.now() - begin;
    this.frames.times[this.frames.count % this.frames.times.length] = this.frames.last;
    this.frames.count += 1;
    if (this.goal !== this.view) this.invalidate("lanes");
    else if (this.painter.unfinished) this.invalidate("rest");
  }

  /** Shows a message at the bottom of the lanes. @param {string} message empty: remove it @param {boolean} [stays] */
  toast(message, stays = false) {
    const { toast } = this.dom;
    if (!message && !toast.dataset.stays) return;
    toast.textContent = message;
    toast.hidden = !message;
    toast.dataset.stays = stays && message ? "1" : "";
    clearTimeout(this.toastTimer);
    if (message && !stays)
      this.toastTimer = setTimeout(() => {
        toast.hidden = true;
      }, 3500);
  }
}
