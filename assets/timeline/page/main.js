/**
 * Starts the timeline: fetches the run's description while Dash is still loading, mounts the lanes
 * once the page has a place for them, and ties address, keys, search and theme together.
 * @module
 */

import { format, parse } from "../base/address.js";
import { appears, dashBusy, getJson, LIVE_STORE, THEME_STORE, tell, VIEW_STORE } from "../base/bridge.js";
import { debugState } from "../base/debug.js";
import { element } from "../base/dom.js";
import { Idle } from "../base/idle.js";
import { Theme } from "../base/theme.js";
import { savePng, saveSvg } from "../draw/export_image.js";
import { commandsOf } from "../input/commands.js";
import { listen } from "../input/gestures.js";
import { listenKeys } from "../input/keys.js";
import { listenReorder } from "../input/lane_drag.js";
import { LaneFilter } from "../input/lane_filter.js";
import { Details } from "../model/span_panel.js";
import { CommandBar } from "../panels/command_bar.js";
import { Dock, Tabs } from "../panels/dock.js";
import { helpDialog } from "../panels/help.js";
import { Notes, notesTitle } from "../panels/notes.js";
import { OverlapField } from "../panels/overlap_field.js";
import { match, Search } from "../panels/search.js";
import { SliceTable } from "../panels/span_table.js";
import { listenChartPictures } from "./chart_pictures.js";
import { listenAbsence } from "./connection_notice.js";
import { startDash } from "./dash_scripts.js";
import { Follow } from "./live_run.js";
import { Timeline } from "./timeline.js";
import { buildStage } from "./timeline_dom.js";

const PATHS = new Set(["/", "/timeline"]);
/** Dash waits so long for the lanes to be drawn, ms. */
const PATIENCE = 1500;
const idle = new Idle(dashBusy);
const booted = idle.begin("boot");
const onTimeline = () => PATHS.has(location.pathname);
let timeline = null;
let written = location.search;

const theme = new Theme(parse(location.search).theme, (name) => {
  timeline?.retheme();
  tell(THEME_STORE, name);
  writeAddress();
});

globalThis.lanescope = {
  idle: () => idle.settled(),
  debugState: () => (timeline ? debugState(timeline) : { busy: idle.busy }),
  hit: (x, y) => timeline?.hit(x, y) ?? null,
  shown: (address) => show(address),
  answered: (number) => answered(number),
};

// ---- the address ----

function writeAddress() {
  if (!timeline || !onTimeline()) return;
  const { view, duration, selection, range, collapsed, expanded, query, scrollY, overlaps, arrangement } = timeline;
  const all = view.t0 <= 0.5 && view.t1 >= duration - 0.5;
  const { current } = selection;
  const search = format({
    window: all ? null : view,
    selected: current,
    range,
    collapsed: [...collapsed],
    expanded: [...expanded],
    query,
    scrollY,
    theme: theme.chosen,
    overlaps: overlaps.on,
    of: overlaps.of,
    lanes: arrangement,
  });
  written = search;
  if (search !== location.search)
    history.replaceState(history.state, "", `${location.pathname}${search}${location.hash}`);
}

function applyAddress(search) {
  const state = parse(search);
  timeline.collapsed = new Set(state.collapsed);
  timeline.expanded = new Set(state.expanded);
  timeline.arrangement = state.lanes;
  timeline.relayout();
  timeline.setView(state.window ?? { t0: 0, t1: timeline.duration });
  timeline.scrollBy(state.scrollY - timeline.scrollY);
  timeline.range = state.range;
  find(state.query);
  // An address that says where a slice is and not what to show of the lanes: a finding's.
  const kept = state.scrollY || state.collapsed.length;
  if (state.selected && !kept) timeline.revealRow(state.selected.lane, state.selected.row);
  if (state.selected) timeline.selection.select(state.selected);
  else if (timeline.selection.current) timeline.selection.clear();
  timeline.overlaps.choose(state.of);
  if (state.overlaps) timeline.overlaps.show();
}

/** Dash shows another page or another address of this one. @param {string} href */
function show(href) {
  const { pathname, search } = new URL(href, location.href);
  document.body.dataset.page = PATHS.has(pathname) ? "timeline" : pathname.slice(1);
  if (!timeline || !PATHS.has(pathname)) return;
  timeline.resize();
  if (search && search !== written) applyAddress(search);
  else writeAddress();
}

// ---- what Dash computes for the window or the range ----

let dock = null;
let asked = 0;
const waiting = new Map();

function tellView() {
  // Nobody sees the answer while the dock is closed; opening it asks for the window of then.
  if (!dock || dock.closed || !onTimeline()) return;
  const { view, range } = timeline;
  const window = range ?? view;
  const data = {
    t0: Math.floor(window.t0),
    t1: Math.ceil(window.t1),
    range: Boolean(range),
    of: timeline.overlaps.of,
    number: asked + 1,
  };
  const text = JSON.stringify([data.t0, data.t1, data.range, data.of]);
  if (text === tellView.last) return;
  tellView.last = text;
  asked += 1;
  waiting.set(asked, idle.begin("dock"));
  if (!tell(VIEW_STORE, data)) answered(asked);
}

function answered(number) {
  for (const [n, end] of waiting) {
    if (n > number) continue;
    waiting.delete(n);
    end();
  }
}

// ---- search ----

let search = null;

function find(query) {
  const found = match(timeline.names, query, search?.modules);
  timeline.setSearch(query, found);
  search?.set(query, found);
  if (query) loadModules();
}

/** Names of modules are only needed for searching, and there may be many. */
async function loadModules() {
  if (!search || loadModules.begun) return;
  loadModules.begun = true;
  try {
    const answer = await idle.track("modules", getJson(`/api/modules/${timeline.run.etag}`));
    search.modules = answer.modules;
    if (timeline.query) find(timeline.query);
  } catch (error) {
    timeline.toast(error.message);
  }
}

// ---- what the command palette offers beside commands ----

function pagesOf() {
  return [...document.querySelectorAll(".rail a")].map((link) => ({
    title: link.textContent,
    group: "Pages",
    keys: [],
    run: () => link.click(),
  }));
}

function lanesOf(lanes) {
  return lanes.map((lane) => ({
    title: `rank ${lane.rank} · ${lane.label}`,
    group: "Lanes",
    keys: [],
    run: () => timeline.revealRow(lane.id, 0),
  }));
}

// ---- start ----

function failed(host, error) {
  const box = element("div", "", "tl-message");
  box.append(element("b", "The run could not be loaded"), element("p", error.message));
  host.replaceChildren(box);
}

async function start() {
  listenAbsence();
  listenChartPictures();
  const description = getJson("/api/run");
  description.catch(() => {});
  // The lanes do not wait for Dash, which takes longer to load than they take to be drawn.
  const host = element("div", "", "timeline-host tl-mount");
  let lanesDrawn = () => {};
  if (onTimeline()) {
    host.classList.add("early");
    document.body.append(host);
    const drawn = new Promise((resolve) => {
      lanesDrawn = resolve;
    });
    setTimeout(lanesDrawn, PATIENCE);
    drawn.then(startDash);
  } else {
    startDash();
    (await appears("timeline-host")).append(host);
  }
  let run;
  try {
    run = await description;
  } catch (error) {
    failed(host, error);
    lanesDrawn();
    return;
  }
  const dom = buildStage(host);
  const details = new Details(element("div", ""), ({ lane, row, ref }) =>
    timeline.selection.select({ lane, row, ref }, true),
  );
  const settled = () => {
    timeline.onRest?.();
    writeAddress();
    tellView();
  };
  // The frame is painted before what is put off runs.
  timeline = new Timeline(dom, run, idle, details, { settled, drawn: () => setTimeout(lanesDrawn) });
  if (!run.lanes.length)
    failed(host, new Error("The run holds no events. Record one with `lanescope record -- COMMAND`."));
  if (onTimeline()) applyAddress(location.search);

  const place = await appears("timeline-host");
  host.classList.remove("early");
  place.append(host);
  details.adopt(await appears("slice-panel"));
  timeline.onSearchCleared = () => find("");
  timeline.onHits = () => search?.tell(timeline.hits.position, timeline.hits.whole?.total ?? null);
  dock = new Dock(document.getElementById("dock"), document.getElementById("dock-bar"), tellView);
  listen(timeline);
  search = new Search(document.getElementById("search-host"), timeline.names, {
    begun: loadModules,
    changed: find,
    step: (direction) => timeline.selection.match(direction),
    leave: () => host.focus(),
  });
  listenReorder(timeline);
  const filter = new LaneFilter(dom.corner.filter, timeline, () => host.focus());
  const panel = (name) => document.getElementById(`${name}-panel`);
  const slices = new SliceTable(panel("slices"), timeline);
  timeline.onRest = () => slices.refresh();
  const tabs = new Tabs(document.getElementById("dock-tabs"), [
    { id: "ops", title: "Ops", panel: panel("ops") },
    {
      id: "slices",
      title: "Slices",
      panel: panel("slices"),
      shown: (on) => {
        slices.shown = on;
        slices.refresh();
      },
    },
    { id: "notes", title: notesTitle(0), panel: panel("notes") },
  ]);
  const notes = new Notes(panel("notes"), timeline, {
    visit: applyAddress,
    open: () => tabs.choose("notes"),
    counted: (n) => tabs.rename("notes", notesTitle(n)),
  });
  timeline.notes = notes;
  const hunted = new OverlapField(await appears("overlap-of"), timeline, () => host.focus());
  timeline.onOverlapsChosen = () => hunted.show();
  const commands = commandsOf(timeline, {
    overlapOf: () => hunted.focus(),
    dock: () => dock.toggle(),
    note: () => notes.begin(),
    saveView: () => notes.beginView(),
    table: () => {
      tabs.choose("slices");
      tabs.buttons[1].focus();
    },
    png: () => savePng(timeline),
    svg: () => saveSvg(timeline),
    search: () => search.focus(),
    filter: () => filter.focus(),
    theme: () => theme.toggle(),
    help: () => help.showModal(),
    commands: () => bar.open(),
  });
  const help = document.body.appendChild(helpDialog(commands));
  const bar = new CommandBar(() => [
    ...commands.filter((command) => command.id !== "commands" && (command.anywhere || onTimeline())),
    ...pagesOf(),
    ...(onTimeline() ? lanesOf(run.lanes) : []),
  ]);
  listenKeys(commands, onTimeline);
  document.addEventListener("click", (event) => {
    const action = event.target instanceof Element ? event.target.closest("[data-action]")?.dataset.action : "";
    if (action === "help") help.showModal();
    if (action === "theme") theme.toggle();
    const region = event.target instanceof Element ? event.target.closest("[data-region]")?.dataset.region : "";
    if (region) timeline.overlaps.visit(region);
  });
  if (timeline.query) find(timeline.query);
  tellView();
  timeline.onNames = (query) => find(query);
  if (run.live) {
    const replaced = () => {
      search.names = timeline.names;
      tellView.last = "";
      loadModules.begun = false;
    };
    timeline.follow = new Follow(timeline, await appears("live-host"), { replaced, store: LIVE_STORE });
  }
  tell(THEME_STORE, theme.name);
}

start().finally(booted);
