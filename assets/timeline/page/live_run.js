/**
 * Follows a run that is still being recorded: polls for its newest state, shows it without moving the
 * user's view, and reports new findings.
 * @module
 */

import { getJson, setStore } from "../base/bridge.js";
import { element } from "../base/dom.js";
import { withFirstLanes } from "../model/lane_pages.js";
import { Picker } from "../model/pick.js";
import { groupedBy } from "../model/rank_groups.js";
import { PageStates } from "./page_states.js";

const POLL_MS = 250;
/** A new state is shown when its tiles have arrived, or after this time, ms. */
const TIMEOUT_MS = 1500;
const WORDS = {
  recording: "recording",
  quiet: "no new data",
  ended: "recording ended",
  unfinished: "programs died, recording not finished",
};

export class LiveRun {
  /**
   * @param {import("./timeline.js").Timeline} timeline
   * @param {HTMLElement} host in the header
   * @param {{replaced: () => void, store: string}} page called after each new state
   */
  constructor(timeline, host, page) {
    Object.assign(this, { timeline, host, page });
    /** True while the window, or the open page, follows the run. */
    this.on = false;
    this.known = null;
    this.states = 0;
    this.pages = new PageStates();
    this.button = element("button", "", "pill live");
    this.button.title = "Follow the end of the run";
    this.button.addEventListener("click", () => this.toggle());
    this.alert = element("div", "", "live-alert");
    this.alert.setAttribute("role", "alert");
    this.alert.hidden = true;
    host.append(this.button);
    document.body.append(this.alert);
    this.show("recording");
    this.next();
  }

  toggle() {
    this.on = !this.on;
    this.show(this.state);
    if (this.on) this.toEnd();
  }

  show(state) {
    this.state = state;
    this.host.hidden = false;
    this.button.dataset.state = state;
    this.button.setAttribute("aria-pressed", String(this.on));
    const steps = this.timeline.steps.length;
    const along = state === "ended" || state === "unfinished" ? "" : ` · follow ${this.on ? "on" : "off"}`;
    this.button.textContent = `${WORDS[state]} · ${steps} steps${along}`;
  }

  next() {
    setTimeout(() => this.ask(), POLL_MS);
  }

  async ask() {
    let state = "quiet";
    try {
      const answer = await getJson("/api/live");
      state = answer.state;
      this.compare(answer.findings); // before drawing the new state, which may take a while
      if (answer.etag !== this.timeline.run.etag) await this.timeline.idle.track("live", this.take());
      const shown = this.on || answer.final ? this.pages.offer(answer.etag) : true;
      // The header's count of findings comes last, for the final state.
      if (answer.final && shown && setStore(this.page.store, answer.etag)) {
        this.show(state);
        return;
      }
    } catch {
      // The server does not answer: keep the current state and ask again.
    }
    this.show(state);
    this.next();
  }

  /**
   * Reports findings that the first state did not have.
   * @param {{key: string, title: string, link: string}[]|null} findings
   */
  compare(findings) {
    if (!findings) return;
    const first = this.known === null;
    this.known ??= new Set();
    const fresh = findings.filter(({ key }) => !this.known.has(key));
    for (const { key } of fresh) this.known.add(key);
    if (fresh.length) setStore(this.page.store, this.states);
    if (first || !fresh.length) return;
    const link = element("a", fresh[0].title);
    link.href = fresh[0].link;
    const close = element("button", "×");
    close.setAttribute("aria-label", "Close");
    close.addEventListener("click", () => {
      this.alert.hidden = true;
    });
    const more = fresh.length > 1 ? ` and ${fresh.length - 1} more` : "";
    this.alert.replaceChildren(element("b", "New finding: "), link, document.createTextNode(more), close);
    this.alert.hidden = false;
  }

  async take() {
    const { timeline } = this;
    const run = withFirstLanes(await getJson("/api/run"));
    const tileSource = timeline.tileSourceOf(run);
    const ids = renumbered(timeline.lanes, run.lanes);
    const inSight = timeline.layout.items.flatMap((item) =>
      item.lane && ids.has(item.lane.id) ? [ids.get(item.lane.id)] : [],
    );
    const window = this.after(run);
    tileSource.frame(window, window, Math.max(timeline.width, 1), inSight);
    const patience = performance.now() + TIMEOUT_MS;
    // What the user has asked for comes with the numbers of this state.
    while (timeline.selection.open || (tileSource.loading && performance.now() < patience)) await pause();
    const view = this.after(run); // the user may have moved the window by now
    replace(timeline, run, tileSource, ids);
    timeline.setView(view);
    this.states += 1;
    this.page.replaced();
  }

  /** Returns the window in the new state: where it was, or at the end. */
  after(run) {
    const { timeline } = this;
    const shift = shiftOf(timeline.run, run);
    const { t0, t1 } = timeline.view;
    if (!this.on) return { t0: t0 + shift, t1: t1 + shift };
    const all = t0 <= 0.5 && t1 >= timeline.duration - 0.5;
    return all ? { t0: 0, t1: run.duration_ns } : { t0: Math.max(0, run.duration_ns - (t1 - t0)), t1: run.duration_ns };
  }

  toEnd() {
    const { timeline } = this;
    timeline.setView(this.after(timeline.run));
  }
}

/** Returns how much later every event is on the new axis, ns. */
const shiftOf = (old, run) => Number(BigInt(old.origin_ns) - BigInt(run.origin_ns));

/** Maps ids of lanes from one state to another. @returns {Map<number, number>} */
function renumbered(old, lanes) {
  const byKey = new Map(lanes.map((lane) => [lane.key, lane.id]));
  return new Map(old.filter((lane) => byKey.has(lane.key)).map((lane) => [lane.id, byKey.get(lane.key)]));
}

const pause = () => new Promise((resolve) => setTimeout(resolve, 20));

/** Shows another state of the run; closed, opened, pinned and selected lanes stay so. */
function replace(timeline, run, tileSource, ids) {
  const shift = shiftOf(timeline.run, run);
  const moved = (list) => list.filter((id) => ids.has(id)).map((id) => ids.get(id));
  const old = timeline.groups;
  const groups = groupedBy(run, timeline.arrangement.by);
  const place = new Map(groups.map((group) => [group.name, group.index]));
  const regrouped = (list) => list.map((index) => place.get(old[index]?.name)).filter((index) => index !== undefined);
  const { arrangement, selection, range, query } = timeline;
  const collapsed = regrouped([...timeline.collapsed]);
  const expanded = moved([...timeline.expanded]);
  Object.assign(timeline, {
    collapsed: new Set(collapsed),
    expanded: new Set(expanded),
    range: range && { t0: range.t0 + shift, t1: range.t1 + shift },
    arrangement: {
      ...arrangement,
      pins: moved(arrangement.pins),
      laneOrder: moved(arrangement.laneOrder),
      groupOrder: regrouped(arrangement.groupOrder),
    },
  });
  timeline.adopt(run, tileSource, groups);
  timeline.lanePages.forget();
  timeline.picker = new Picker(run.etag, timeline.idle, () => timeline.invalidate("overlay"));
  for (const part of [selection, timeline.hits, timeline.overlaps]) part.etag = run.etag;
  timeline.overlaps.regions = null;
  if (timeline.overlaps.on) timeline.overlaps.show();
  timeline.labels.clear();
  timeline.retheme();
  timeline.relayout();
  reselect(timeline, ids, shift);
  if (query) timeline.onNames?.(query);
}

/** Finds the selected span and its arrows in the new state; the outline stays until then. */
async function reselect(timeline, ids, shift) {
  const { selection, idle } = timeline;
  const { current, etag } = selection;
  if (!current) return;
  const lane = ids.get(current.lane);
  if (lane === undefined) {
    selection.clear();
    return;
  }
  const [start, end] = [current.start + shift, current.end + shift];
  selection.current = { ...current, lane, start, end };
  selection.flows = []; // their ends have the numbers of the old state
  const mine = selection.asked;
  const at = Math.floor((Math.max(start, 0) + end) / 2);
  try {
    const address = `/api/look/${etag}/${lane}?row=${current.row}&t0=${at}&t1=${at + 1}`;
    const found = await selection.awaits(idle.track("look", getJson(address)));
    if (selection.asked !== mine || !Number.isInteger(found?.ref)) return;
    selection.current.ref = found.ref;
    const full = await selection.awaits(selection.facts(selection.current));
    if (selection.asked !== mine) return;
    [selection.current.start, selection.current.end] = full.drawn;
    selection.flows = full.flows ?? [];
    if (selection.current.unfinished && !full.unfinished) selection.show(full, timeline.laneById.get(lane));
    selection.current.unfinished = full.unfinished;
    timeline.invalidate("overlay");
  } catch {
    // The server does not answer: the next state asks again.
  }
}
