/**
 * The visible window of the time axis. Pure arithmetic: no DOM, no drawing.
 * Times are float64 nanoseconds from the start of the run; exact for 104 days.
 * @module
 */

/** Buckets in one tile, the same as in the server. */
export const TILE_BUCKETS = 1024;
/** Parts of a tile that can be requested separately. */
export const TILE_PARTS = 8;
/** The narrowest window, ns. */
export const MIN_SPAN = 20;

/** @typedef {{t0: number, t1: number}} Window */

/**
 * Moves and resizes a window so that it is inside the run.
 * @param {Window} view
 * @param {number} duration of the run, ns
 * @returns {Window}
 */
export function clamp({ t0, t1 }, duration) {
  const limit = Math.max(duration, MIN_SPAN);
  const span = Math.min(Math.max(t1 - t0, Math.min(MIN_SPAN, limit)), limit);
  const middle = (t0 + t1) / 2;
  const start = Math.min(Math.max(middle - span / 2, 0), limit - span);
  return { t0: start, t1: start + span };
}

/**
 * Zooms by `factor` (below 1: closer) so that the instant at `anchor` stays where it is.
 * @param {Window} view
 * @param {number} factor
 * @param {number} anchor ns
 * @param {number} duration ns
 * @returns {Window}
 */
export function zoom(view, factor, anchor, duration) {
  const span = view.t1 - view.t0;
  const next = Math.min(Math.max(span * factor, MIN_SPAN), Math.max(duration, MIN_SPAN));
  const share = (anchor - view.t0) / span;
  const t0 = anchor - share * next;
  return clamp({ t0, t1: t0 + next }, duration);
}

/**
 * Moves by a number of nanoseconds, keeping the span.
 * @param {Window} view
 * @param {number} delta ns
 * @param {number} duration ns
 * @returns {Window}
 */
export function pan(view, delta, duration) {
  return clamp({ t0: view.t0 + delta, t1: view.t1 + delta }, duration);
}

/**
 * Returns a window that shows [start, end] with a margin.
 * @param {number} start ns
 * @param {number} end ns
 * @param {number} margin share of the interval left free on each side
 * @param {number} duration ns
 * @returns {Window}
 */
export function around(start, end, margin, duration) {
  const pad = Math.max(end - start, MIN_SPAN / 4) * margin;
  return clamp({ t0: start - pad, t1: end + pad }, duration);
}

/**
 * Returns the level at which a bucket is at least one pixel wide and less than two.
 * @param {number} span ns
 * @param {number} width px
 * @param {number} top coarsest level
 * @returns {number}
 */
export function levelFor(span, width, top) {
  const level = Math.ceil(Math.log2(Math.max(span / Math.max(width, 1), 1)));
  return Math.min(level, top);
}

/**
 * Returns the level at which one tile holds the whole run.
 * @param {number} duration ns
 * @returns {number}
 */
export function topLevel(duration) {
  return Math.max(0, Math.ceil(Math.log2(Math.max(duration, 1) / TILE_BUCKETS)));
}

/**
 * Takes one animation step from `view` towards `target`, or returns the target once the rest is
 * invisible.
 * @param {Window} view
 * @param {Window} target
 * @param {number} share of the distance to cover
 * @returns {{view: Window, done: boolean}}
 */
export function approach(view, target, share) {
  const t0 = view.t0 + (target.t0 - view.t0) * share;
  const t1 = view.t1 + (target.t1 - view.t1) * share;
  const rest = Math.abs(target.t0 - t0) + Math.abs(target.t1 - t1);
  if (rest < (target.t1 - target.t0) / 1000) return { view: { ...target }, done: true };
  return { view: { t0, t1 }, done: false };
}
