/**
 * Starts the timeline: fetches the run's description while Dash is still loading, mounts the lanes
 * once the page has a place for them, and connects address, keys, search and theme.
 * @module
 */

import { format, parse } from "../base/address.js";
import {
  appears,
  dashBusy,
  emptyDock,
  getJson,
  LIVE_STORE,
  setStore,
  THEME_STORE,
  VIEW_STORE,
} from "../base/bridge.js";
import { debugState } from "../base/debug.js";
import { element } from "../base/dom.js";
import { Idle } from "../base/idle.js";
import { onlySelection } from "../base/page_selection.js";
import { Theme } from "../base/theme.js";
import { savePng, saveSvg } from "../draw/export_image.js";
import { commandsOf } from "../input/commands.js";
import { listen } from "../input/gestures.js";
import { listenKeys } from "../input/keys.js";
import { listenLaneDrag } from "../input/lane_drag.js";
import { LaneFilter } from "../input/lane_filter.js";
import { withFirstLanes } from "../model/lane_pages.js";
import { SpanPanel } from "../model/span_panel.js";
import { CommandBar, lanesOf, pagesOf } from "../panels/command_bar.js";
import { Dock, Tabs } from "../panels/dock.js";
import { FindingStrip } from "../panels/finding_strip.js";
import { FlameTab } from "../panels/flame_tab.js";
import { GroupChoice } from "../panels/group_choice.js";
import { GroupLegend } from "../panels/group_legend.js";
import { helpDialog } from "../panels/help.js";
import { Notes, notesTitle } from "../panels/notes.js";
import { OverlapField } from "../panels/overlap_field.js";
import { match, Search, stepAsked } from "../panels/search.js";
import { SpanTable } from "../panels/span_table.js";
import { AddressNotice } from "./address_notice.js";
import { listenChartPictures } from "./chart_pictures.js";
import { listenConnection } from "./connection_notice.js";
import { startDash } from "./dash_scripts.js";
import { LiveRun } from "./live_run.js";
import { choosePart, listenLinks, listenRows } from "./page_links.js";
import { Timeline } from "./timeline.js";
import { buildDom } from "./timeline_dom.js";

const PATH = "/timeline";
/** Dash starts after the lanes are drawn, or after this time, ms. */
const TIMEOUT_MS = 1500;
const idle = new Idle(dashBusy);
const booted = idle.begin("boot");
/** Returns the name of the page at an address; the bare one is the first. @param {string} path */
const pageOf = (path) => path.slice(1) || "overview";
const onTimeline = () => location.pathname === PATH;
let timeline = null;
let written = onTimeline() ? location.search : "";
const opened = new URL(location.href); // the timeline writes what it uses of it
const addressNotice = new AddressNotice(PATH);
/** @type {FindingStrip|null} */
let strip = null;

const theme = new Theme(parse(location.search).theme, (name) => {
  timeline?.retheme();
  setStore(THEME_STORE, name);
  writeAddress();
});

globalThis.lanescope = {
  idle: () => idle.settled(),
  debugState: () => (timeline ? debugState(timeline) : { busy: idle.busy }),
  hit: (x, y) => timeline?.hit(x, y) ?? null,
  shown,
  answered: (number) => answered(number),
  choose: choosePart,
};

// ---- the address ----

function writeAddress() {
  if (!timeline || !onTimeline()) return;
  const { view, selection, range, expanded, query, scrollY, overlaps, arrangement } = timeline;
  const { opening } = timeline;
  const opens = Math.abs(view.t0 - opening.t0) <= 0.5 && Math.abs(view.t1 - opening.t1) <= 0.5;
  const search = format({
    place: timeline.place.current,
    window: opens ? null : view,
    selected: selection.wanted ?? selection.current,
    range,
    collapsed: timeline.arranger.closed(),
    expanded: [...expanded],
    query,
    scrollY,
    theme: theme.chosen,
    finding: strip?.position ?? null,
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
  timeline.arranger.restore(state);
  timeline.setView(state.window ?? timeline.opening);
  timeline.scrollBy(state.scrollY - timeline.scrollY);
  timeline.range = state.range;
  find(state.query);
  // A finding's address names a span but not which lanes to show.
  const kept = state.scrollY || state.collapsed?.length;
  if (state.selected && !kept) timeline.revealRow(state.selected.lane, state.selected.row);
  if (state.selected) timeline.selection.select(state.selected);
  else if (timeline.selection.current) timeline.selection.clear();
  timeline.overlaps.choose(state.of);
  if (state.overlaps) timeline.overlaps.show();
  strip?.show(state.finding);
  if (!state.selected) timeline.place.goTo(state.place, state.window !== null || state.range !== null);
}

/** Call when Dash shows another address. @param {string} href as Dash read it: the timeline may have changed it since */
function show(href) {
  const { pathname, search } = onTimeline() ? location : new URL(href, location.href);
  document.body.dataset.page = pageOf(pathname);
  if (!timeline || pathname !== PATH) {
    if (timeline) addressNotice.check({ pathname, search }, timeline);
    emptyDock(); // hidden, it would only make the other pages heavier
    reportView.last = "";
    return;
  }
  addressNotice.check({ pathname, search }, timeline);
  timeline.resize();
  const handed = onlySelection(search);
  if (handed) timeline.place.take(search, written);
  if (search && search !== written && !handed) applyAddress(search);
  else writeAddress();
  reportView(); // while another page was open, nothing was asked
}

/** The same in the next frame, when Dash has drawn the page. @param {string} href */
function shown(href) {
  const done = idle.begin("address");
  requestAnimationFrame(() => {
    try {
      show(href);
    } finally {
      done();
    }
  });
}

// ---- what Dash computes for the window or the range ----

let dock = null;
/** @type {FlameTab|null} */
let flameTab = null;
let asked = 0;
const waiting = new Map();

function reportView() {
  // A closed dock does not show the answer; opening it asks again.
  if (!dock || dock.closed || !onTimeline()) return;
  const { view, range } = timeline;
  const window = range ?? view;
  const [t0, t1] = [Math.floor(window.t0), Math.ceil(window.t1)];
  flameTab?.show(t0, t1);
  const first = !document.getElementById("ops");
  const data = { t0, t1, range: Boolean(range), of: timeline.overlaps.of, number: asked + 1, first };
  const text = JSON.stringify([data.t0, data.t1, data.range, data.of]);
  if (text === reportView.last) return;
  reportView.last = text;
  asked += 1;
  waiting.set(asked, idle.begin("dock"));
  if (!setStore(VIEW_STORE, data)) answered(asked);
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
  search?.set(query, found);
  timeline.setSearch(query, stepAsked(query) ? null : found); // a step: nothing fades
  if (query) loadModules();
}

/** Loads the names of modules, which only a search needs: there may be many. */
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

// ---- start ----

function failed(host, error) {
  const box = element("div", "", "tl-message");
  box.append(element("b", "The run could not be loaded"), element("p", error.message));
  host.replaceChildren(box);
}

async function start() {
  listenConnection();
  listenLinks(writeAddress);
  listenRows((op, direction) => search?.showCalls(op, direction));
  listenChartPictures();
  const description = getJson("/api/run");
  description.catch(() => {});
  const host = element("div", "", "timeline-host tl-mount");
  const lanesDrawn = await placeEarly(host);
  let run;
  try {
    run = withFirstLanes(await description);
  } catch (error) {
    failed(host, error);
    lanesDrawn();
    return;
  }
  const details = drawTimeline(host, run, lanesDrawn);
  const place = await appears("timeline-host");
  host.classList.remove("early");
  place.append(host);
  details.adopt(await appears("slice-panel"));
  listen(timeline);
  listenLaneDrag(timeline);
  mountSearch(host);
  const parts = await mountPanels(host);
  mountCommands(run, parts);
  if (timeline.query) find(timeline.query);
  reportView();
  timeline.onNames = (query) => find(query);
  if (run.live) await mountLiveRun();
  setStore(THEME_STORE, theme.name);
}

/**
 * Shows the host before Dash has loaded, which takes longer than drawing the lanes.
 * @returns {Promise<() => void>} to be called once the lanes are drawn; then Dash starts
 */
async function placeEarly(host) {
  if (!onTimeline()) {
    startDash();
    (await appears("timeline-host")).append(host);
    return () => {};
  }
  host.classList.add("early");
  document.body.append(host);
  let lanesDrawn = () => {};
  const drawn = new Promise((resolve) => {
    lanesDrawn = resolve;
  });
  setTimeout(lanesDrawn, TIMEOUT_MS);
  drawn.then(startDash);
  return lanesDrawn;
}

/** @returns {SpanPanel} the panel of the selected span, not yet in the page */
function drawTimeline(host, run, lanesDrawn) {
  const details = new SpanPanel(element("div", ""), ({ lane, row, ref }) =>
    timeline.selection.select({ lane, row, ref }, true),
  );
  const settled = () => {
    timeline.onRest?.();
    writeAddress();
    reportView();
  };
  // The timeout lets the frame be painted first.
  timeline = new Timeline(buildDom(host), run, idle, details, { settled, drawn: () => setTimeout(lanesDrawn) });
  if (!run.lanes.length)
    failed(host, new Error("The run holds no events. Record one with `lanescope record -- COMMAND`."));
  addressNotice.check(opened, timeline);
  strip = new FindingStrip(timeline.dom.strip, timeline, applyAddress, (text) => addressNotice.say(text));
  if (onTimeline()) applyAddress(location.search);
  return details;
}

function mountSearch(host) {
  timeline.onSearchCleared = () => find("");
  timeline.onHits = () => search?.showHits(timeline.hits.position, timeline.hits.whole?.total ?? null);
  search = new Search(document.getElementById("search-host"), timeline.names, {
    begun: loadModules,
    changed: find,
    step: (direction, fresh) => {
      const asked = stepAsked(timeline.query);
      const within = fresh ? (timeline.range ?? timeline.view) : null;
      if (!asked) timeline.selection.match(direction, within);
      else if (asked.rank === null) timeline.stepping.show(asked.step);
      else timeline.place.goTo({ thread: "", ...asked }, false);
    },
    leave: () => host.focus(),
  });
}

/** Mounts the lane filter and the dock with its panels. */
async function mountPanels(host) {
  dock = new Dock(document.getElementById("dock"), document.getElementById("dock-bar"), reportView);
  const filter = new LaneFilter(timeline.dom.corner.filter, timeline, () => host.focus());
  new GroupChoice(timeline.dom.corner.grouping, timeline);
  new GroupLegend(timeline.dom.grid, timeline);
  const panel = (name) => document.getElementById(`${name}-panel`);
  const spans = new SpanTable(panel("slices"), timeline);
  timeline.onRest = () => spans.refresh();
  const shown = (on) => {
    spans.shown = on;
    spans.refresh();
  };
  flameTab = new FlameTab();
  const tabs = new Tabs(document.getElementById("dock-tabs"), [
    { id: "ops", title: "Ops", panel: panel("ops") },
    { id: "slices", title: "Slices", panel: panel("slices"), shown },
    { id: "flame", title: "Flame", panel: panel("flame"), shown: (on) => flameTab?.open(on) },
    { id: "notes", title: notesTitle(0), panel: panel("notes") },
  ]);
  const notes = new Notes(panel("notes"), timeline, {
    visit: applyAddress,
    open: () => tabs.choose("notes"),
    counted: (n) => tabs.rename("notes", notesTitle(n)),
  });
  timeline.notes = notes;
  const overlapField = new OverlapField(await appears("overlap-of"), timeline, () => host.focus());
  timeline.onOverlapsChosen = () => overlapField.show();
  return { filter, tabs, notes, overlapField };
}

/** Connects keys, command palette, help, and the page's buttons with an action. */
function mountCommands(run, { filter, tabs, notes, overlapField }) {
  const commands = commandsOf(timeline, {
    overlapOf: () => overlapField.focus(),
    dock: () => dock.toggle(),
    note: () => notes.begin(),
    saveView: () => notes.beginView(),
    table: () => {
      tabs.choose("slices");
      tabs.buttons[1].focus();
    },
    png: () => savePng(timeline),
    svg: () => saveSvg(timeline),
    search: () => {
      if (!onTimeline()) {
        document.getElementById("rail-timeline").click();
        document.body.dataset.page = pageOf(PATH); // other pages hide the field
      }
      search.focus();
    },
    submit: () => document.querySelector(".page button.run")?.click(),
    filter: () => filter.focus(),
    theme: () => theme.toggle(),
    help: () => help.showModal(),
    commands: () => bar.open(),
  });
  const help = document.body.appendChild(helpDialog(commands));
  const bar = new CommandBar(() => [
    ...commands.filter((command) => command.id !== "commands" && (command.anywhere || onTimeline())),
    ...pagesOf(),
    ...(onTimeline() ? lanesOf(run.lanes, (lane) => timeline.revealRow(lane, 0)) : []),
  ]);
  listenKeys(commands, onTimeline);
  document.addEventListener("click", (event) => {
    const action = event.target instanceof Element ? event.target.closest("[data-action]")?.dataset.action : "";
    if (action === "help") help.showModal();
    if (action === "theme") theme.toggle();
    if (action === "skip") {
      event.preventDefault();
      (onTimeline() ? timeline.dom.host : document.getElementById("page")).focus();
    }
    const region = event.target instanceof Element ? event.target.closest("[data-region]")?.dataset.region : "";
    if (region) timeline.overlaps.visit(region);
  });
}

async function mountLiveRun() {
  const replaced = () => {
    search.names = timeline.names;
    reportView.last = "";
    loadModules.begun = false;
  };
  timeline.liveRun = new LiveRun(timeline, await appears("live-host"), { replaced, store: LIVE_STORE });
}

start().finally(booted);
