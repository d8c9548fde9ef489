/**
 * Shades regions where threads overlap, over their rank, with edges that need no colour.
 * @module
 */

/**
 * Computes the shaded ranges, px, of each rank and of each pinned lane.
 * @param {import("./painter.js").Frame} frame
 * @param {number} scale px per ns
 * @param {number} width px
 * @returns {Map<object, [number, number][]>} by group, or by lane if pinned
 */
export function overlapShading({ shaded, view, layout }, scale, width) {
  const shading = new Map();
  if (!shaded.length) return shading;
  const places = new Map();
  for (const { group } of layout.items) for (const lane of group.lanes) places.set(lane.id, [group]);
  for (const { lane } of layout.pinned) places.set(lane.id, [...(places.get(lane.id) ?? []), lane]);
  for (const [from, to, lanes] of shaded) {
    const [x0, x1] = [from, to].map((t) => (t - view.t0) * scale);
    if (x1 < 0 || x0 > width) continue;
    for (const place of new Set(lanes.flatMap((lane) => places.get(lane) ?? []))) {
      if (!shading.has(place)) shading.set(place, []);
      shading.get(place).push([x0, x1]);
    }
  }
  return shading;
}

/**
 * @param {CanvasRenderingContext2D} c
 * @param {Map<object, [number, number][]>} washes
 * @param {{part: any, item: import("../model/layout.js").Item|null, top: number, bottom: number}} strip the visible part of an item
 * @param {import("../base/palette.js").Palette} palette
 * @param {(x: number) => number} snap to whole pixels of the screen
 * @param {number} hair width of the thinnest line, px
 */
export function drawOverlapShading(c, shading, { part, item, top, bottom }, palette, snap, hair) {
  const end = item ? Math.min(bottom, item.y + item.h - part.shift) : top;
  for (const [x0, x1] of shading.get(item?.group ?? item?.lane) ?? []) {
    c.fillStyle = palette.token("bad", 0.16);
    c.fillRect(x0, top, Math.max(x1 - x0, 1), end - top);
    if (x1 - x0 < 3) continue;
    c.fillStyle = palette.token("bad", 0.7);
    c.fillRect(snap(x0), top, hair, end - top);
    c.fillRect(snap(x1), top, hair, end - top);
  }
}
