/**
 * State of the timeline for tests and for the console: window.lanescope.
 * @module
 */

/** @param {import("../page/timeline.js").Timeline} timeline */
export function debugState(timeline) {
  const { view, width, height, scrollY, tileSource, painter, frames, layout } = timeline;
  const box = timeline.dom.lanes.getBoundingClientRect();
  const { length } = frames.times;
  const recent = Array.from(
    { length: Math.min(frames.count, length) },
    (_, i) => frames.times[(frames.count - 1 - i) % length],
  ).reverse();
  const times = [...recent].sort((a, b) => a - b);
  return {
    viewport: {
      t0: view.t0,
      t1: view.t1,
      width,
      height,
      scrollY,
      level: tileSource.level,
      duration: timeline.duration,
    },
    canvas: { x: box.x, y: box.y, width: box.width, height: box.height },
    drawn: { ...painter.stats },
    sharp: Boolean(timeline.sharp) && !painter.unfinished,
    labels: painter.labels.map((label) => ({ ...label, name: timeline.names[label.name] })),
    lanes: lanesOf(timeline),
    layout: { height: layout.height, groups: timeline.groups.length },
    selection: timeline.selection.current && { ...timeline.selection.current },
    range: timeline.range && { ...timeline.range },
    stepBounds: timeline.steps,
    marks: timeline.marks,
    query: timeline.query,
    shifts: Object.fromEntries(timeline.alignment.shifts),
    hits: hitsOf(timeline.hits),
    arrangement: { ...timeline.arrangement },
    arrows: timeline.arrows ?? 0,
    flows: timeline.selection.flows,
    overlaps: { on: timeline.overlaps.on, shaded: timeline.shaded?.length ?? 0 },
    requests: { ...tileSource.cache.stats },
    cache: { tiles: tileSource.cache.size, bytes: tileSource.cache.bytes },
    frames: { count: frames.count, last: frames.last, recent, p95: times[Math.floor(times.length * 0.95)] ?? 0 },
    live: timeline.liveRun
      ? { state: timeline.liveRun.state, states: timeline.liveRun.states, on: timeline.liveRun.on }
      : null,
    etag: timeline.run.etag,
    steps: timeline.steps.length,
    busy: timeline.idle.busy,
  };
}

/** Returns of every lane its place, whether it is visible, and whether its tiles have the window's level. */
function lanesOf({ layout, scrollY, height, tileSource }) {
  const place = ({ lane, y, h }, shift, top) => ({
    id: lane.id,
    label: lane.label,
    rank: lane.rank,
    kind: lane.kind,
    y: y - shift,
    h,
    visible: y + h > shift + top && y < shift + height,
    loaded: tileSource.loaded(lane.id),
    pinned: shift === 0 && top === 0 && y < layout.pinnedHeight,
  });
  return [
    ...layout.pinned.map((item) => place(item, 0, 0)),
    ...layout.items.filter((item) => item.type === "lane").map((item) => place(item, scrollY, layout.pinnedHeight)),
  ];
}

/** Returns the number of search hits and of their marks on strip and ruler. */
function hitsOf({ whole, window, position }) {
  const ones = (marks) =>
    marks && [...marks.bits].reduce((n, byte) => n + byte.toString(2).replaceAll("0", "").length, 0);
  return {
    total: whole?.total ?? null,
    position,
    strip: ones(whole),
    ruler: ones(window),
    lanes: window ? [...window.lanes.keys()] : [],
  };
}
