/**
 * What tests and the curious may ask: window.lanescope.
 * @module
 */

/** @param {import("./timeline.js").Timeline} timeline */
export function debugState(timeline) {
  const { view, width, height, scrollY, feed, painter, frames, layout } = timeline;
  const box = timeline.dom.lanes.getBoundingClientRect();
  const times = [...frames.times.slice(0, Math.min(frames.count, frames.times.length))].sort((a, b) => a - b);
  return {
    viewport: { t0: view.t0, t1: view.t1, width, height, scrollY, level: feed.level, duration: timeline.duration },
    canvas: { x: box.x, y: box.y, width: box.width, height: box.height },
    drawn: { ...painter.stats },
    labels: painter.labels.map((label) => ({ ...label, name: timeline.names[label.name] })),
    lanes: lanesOf(timeline),
    layout: { height: layout.height, groups: timeline.groups.length },
    selection: timeline.selection.current && { ...timeline.selection.current },
    range: timeline.range && { ...timeline.range },
    query: timeline.query,
    overlaps: { on: timeline.overlaps.on, shaded: timeline.shaded?.length ?? 0 },
    requests: { ...feed.cache.stats },
    cache: { tiles: feed.cache.size, bytes: feed.cache.bytes },
    frames: { count: frames.count, last: frames.last, p95: times[Math.floor(times.length * 0.95)] ?? 0 },
    busy: timeline.idle.busy,
  };
}

/** Every lane: where it is, whether it is in sight, whether its tiles are those of the window. */
function lanesOf({ layout, scrollY, height, feed }) {
  return layout.items.filter((item) => item.type === "lane").map(({ lane, y, h }) => ({
    id: lane.id, label: lane.label, rank: lane.rank, kind: lane.kind, y: y - scrollY, h,
    visible: y + h > scrollY && y < scrollY + height, loaded: feed.loaded(lane.id),
  }));
}
