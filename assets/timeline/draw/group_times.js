/**
 * Draws the times of a group's ranks by step: a band from the least to the greatest, a line at the
 * median, and a bar above the typical time where ranks are slow.
 * @module
 */

const MARGIN = 4;
/** Columns of at least this width leave a gap of one pixel to the next. */
const GAP_WIDTH = 4;
/** The greatest time has at least this height above the typical one where it is slow, px: it must be seen. */
const LEAST = 4;

/**
 * @param {CanvasRenderingContext2D} c
 * @param {import("../model/group_times.js").Times} times
 * @param {{y: number, h: number, view: {t0: number, t1: number}, width: number, palette: import("../base/palette.js").Palette}} place
 */
export function drawGroupTimes(c, { columns, spread, slow, scale }, { y, h, view, width, palette }) {
  const perNs = width / (view.t1 - view.t0);
  const bottom = y + h - MARGIN;
  const heightOf = (ns) => Math.min(ns / scale, 1) * (h - 2 * MARGIN);
  const slowAt = new Set(slow.map(([column]) => column));
  c.fillStyle = palette.token("line");
  c.fillRect(0, bottom, width, 1);
  for (const [i, [start, end, , , typical]] of columns.entries()) {
    const [least, median, greatest] = spread[i];
    const x0 = (start - view.t0) * perNs;
    const x1 = (end - view.t0) * perNs;
    if (x1 < 0 || x0 > width || least === null) continue;
    const w = Math.max(x1 - x0 - (x1 - x0 >= GAP_WIDTH ? 1 : 0), 1);
    const isSlow = slowAt.has(i);
    const top = Math.max(heightOf(isSlow ? typical : greatest), heightOf(median));
    c.fillStyle = palette.token("accent", 0.22);
    c.fillRect(x0, bottom - heightOf(least), w, heightOf(least));
    c.fillStyle = palette.token("accent", 0.5);
    c.fillRect(x0, bottom - top, w, Math.max(top - heightOf(least), 1));
    if (isSlow) {
      const over = Math.max(heightOf(greatest) - heightOf(typical), LEAST);
      c.fillStyle = palette.token("bad");
      c.fillRect(x0, bottom - heightOf(typical) - over, w, over);
    }
    c.fillStyle = palette.token("ink");
    c.fillRect(x0, bottom - heightOf(median), w, 1);
  }
}
