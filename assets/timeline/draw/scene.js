/**
 * Draws one frame: passes the timeline's state to the modules that draw.
 * @module
 */

import { duration as formatDuration, measured } from "../base/format.js";
import { drawFlows } from "../model/flows.js";
import { drawLaneHits } from "../model/search_marks.js";
import { drawMarks } from "./finding_marks.js";
import { activity } from "./header.js";
import { ticksFor } from "./ticks.js";

/** Time that one frame spends on lanes, ms; later frames draw the rest. */
export const BUDGET = 4;

/** @typedef {import("../page/timeline.js").Timeline} Timeline */

/**
 * Draws lanes, labels and what depends on the window.
 * @param {Timeline} timeline
 * @returns {boolean} true if all visible lanes are drawn from tiles of the window's level
 */
export function drawLanes(timeline) {
  const { view, layout, scrollY, tileSource, width, height } = timeline;
  const items = layout.parts(scrollY, height).flatMap((part) => part.items);
  timeline.lanePages.see(items);
  timeline.groupTimes.see(items);
  const inSight = items.flatMap((item) => item.rows.map((row) => row.lane.id));
  tileSource.frame(view, timeline.goal, width, inSight, timeline.alignment.shifts);
  timeline.ruler = ticksFor(view.t0, view.t1, width);
  timeline.shaded = timeline.overlaps.visible(view);
  timeline.painter.draw(lanesFrame(timeline), BUDGET);
  timeline.labels.draw(layout, scrollY, height, {
    collapsed: timeline.collapsed,
    expanded: timeline.expanded,
    selectedLane: timeline.selection.current?.lane ?? -1,
    aside: (lane) => aside(timeline, lane),
    times: timeline.groupTimes.of,
  });
  timeline.placeThumb(scrollY, height, layout.height);
  const { corner } = timeline.dom;
  say(corner.run, `whole run · ${formatDuration(timeline.duration)}`);
  say(corner.base, timeline.ruler.baseLabel || `window · ${formatDuration(view.t1 - view.t0)}`);
  return inSight.every((lane) => tileSource.loaded(lane));
}

/** Sets a text only if it changed: setting it causes a layout. */
function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Returns what the painter is to draw. @param {Timeline} timeline @returns {import("./painter.js").Frame} */
export function lanesFrame(timeline) {
  const { view, layout, scrollY, palette, matches, ruler, shaded, tileSource, alignment } = timeline;
  return {
    view,
    layout,
    scrollY,
    palette,
    matches,
    ticks: ruler.ticks,
    shaded,
    sources: (lane) => tileSource.sources(lane),
    whole: (lane) => tileSource.whole(lane),
    shifts: alignment.shifts,
    times: timeline.groupTimes.of,
  };
}

/** Returns what the header is to draw. @param {Timeline} timeline */
export function headFrame(timeline) {
  const {
    view,
    duration,
    palette,
    ruler,
    steps,
    range,
    shaded,
    tileSource,
    pointer: { x },
  } = timeline;
  return {
    view,
    duration,
    palette,
    ruler,
    steps,
    range,
    shaded,
    hits: timeline.hits,
    notes: timeline.notes?.notes ?? [],
    hover: x === null ? null : timeline.timeAt(x),
    activityKey: `${timeline.run.etag} ${tileSource.stripTiles().length}`,
    activity: () => activity(tileSource.stripTiles(), Math.ceil(timeline.width), duration),
  };
}

/** Returns the text behind a label: a counter's range, or the process if it is not the rank's own. */
function aside(timeline, lane) {
  if (lane.kind === "counter") {
    if (lane.min === null) return "";
    const [low, high] = [lane.min, lane.max].map((v) => measured(v, lane.unit, 3));
    return low === high ? `about ${low}` : `${low} … ${high}`;
  }
  if (lane.kind === "baseline") return timeline.alignment.words(lane.id);
  const own = timeline.groupOf(lane.id)?.lanes.find(({ kind }) => kind !== "baseline")?.pid;
  return lane.pid === null || lane.pid === own ? "" : `pid ${lane.pid}`;
}

/** Draws pointer, range, outlines and arrows, which change without the lanes. @param {Timeline} timeline */
export function drawOverlay(timeline) {
  const { x, y } = timeline.pointer;
  const { view, palette, layout, scrollY, selection, alignment, width, height } = timeline;
  const hit = x !== null && y !== null ? timeline.hit(x, y) : null;
  const place = (span) => {
    const row = span && layout.onScreen(span.lane, span.row, scrollY);
    if (!row) return null;
    const { start, end } = alignment.drawn(span);
    return { start, end, ...row };
  };
  timeline.overlay.draw({
    view,
    palette,
    cursor: x === null ? null : timeline.timeAt(x),
    range: timeline.range,
    hover: hit && hit.kind !== "sample" ? place(hit) : null,
    selected: place(selection.current),
  });
  if (timeline.hits.window) drawLaneHits(timeline.overlay.context, timeline.hits.window, timeline);
  if (timeline.marks.length) drawMarks(timeline.overlay.context, timeline.marks, timeline);
  const scale = width / (view.t1 - view.t0);
  timeline.arrows = drawFlows(
    timeline.overlay.context,
    selection.flows,
    ({ lane, row, t }) => {
      const at = layout.onScreen(lane, row, scrollY);
      return at && { x: (t + alignment.of(lane) - view.t0) * scale, y: at.y + at.h / 2 };
    },
    {
      width,
      height,
      ground: palette.token("ground", 0.8),
      names: () => timeline.painter.labels.map((label) => timeline.painter.labeller.rectangle(label)),
      colours: { ties: palette.token("ink"), threads: palette.token("accent"), races: palette.token("bad") },
    },
  );
  const pointed = x === null || hit ? null : timeline.groupTimes.at(x, y);
  timeline.tooltip.show(hit, pointed, timeline, { x, y, width, height });
  timeline.header.draw(headFrame(timeline));
}
