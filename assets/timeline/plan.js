/**
 * Which tiles a view needs, in what order, and what to draw while some are missing. Pure.
 * @module
 */
import { TILE_BUCKETS } from "./viewport.js";

/** One number for a tile's place: levels are below 64, indices below 2^43. */
export const placeOf = (level, index) => index * 64 + level;

/** Nanoseconds covered by a tile. @param {number} level */
export const tileSpan = (level) => TILE_BUCKETS * 2 ** level;

/** First and last tile index that touch [t0, t1) within the run. */
export function indices(level, t0, t1, duration) {
  const span = tileSpan(level);
  const last = Math.max(0, Math.ceil(duration / span) - 1);
  const from = Math.min(Math.max(Math.floor(t0 / span), 0), last);
  const to = Math.min(Math.max(Math.ceil(t1 / span) - 1, from), last);
  return [from, to];
}

/**
 * The tiles of a window, those nearest to the middle of the view first.
 * @param {{t0: number, t1: number}} window
 * @param {{t0: number, t1: number}} view
 * @param {number} level
 * @param {number} duration ns
 * @returns {{level: number, index: number}[]}
 */
export function wanted(window, view, level, duration) {
  const [from, to] = indices(level, window.t0, window.t1, duration);
  const middle = (view.t0 + view.t1) / 2 / tileSpan(level) - 0.5;
  const out = [];
  for (let index = from; index <= to; index += 1) out.push({ level, index });
  return out.sort((a, b) => Math.abs(a.index - middle) - Math.abs(b.index - middle));
}

/**
 * @typedef {{tile: import("./tile.js").Tile, from: number, to: number}} Source
 */

/**
 * What to draw for [t0, t1): the tiles of `level` where they are here, else finer ones that are,
 * else the nearest coarser one.
 * @param {(level: number, index: number) => import("./tile.js").Tile|undefined} get
 * @param {number} level
 * @param {number} t0 ns
 * @param {number} t1 ns
 * @param {number} duration ns
 * @param {number} top coarsest level
 * @returns {{sources: Source[], complete: boolean}} from left to right; complete: all at `level`
 */
export function cover(get, level, t0, t1, duration, top) {
  const sources = [];
  let complete = true;
  const [from, to] = indices(level, t0, t1, duration);
  for (let index = from; index <= to; index += 1) {
    const tile = get(level, index);
    if (tile) {
      sources.push({ tile, from: tile.start, to: tile.end });
      continue;
    }
    complete = false;
    const start = index * tileSpan(level);
    substitute(get, level, index, start, start + tileSpan(level), top, sources);
  }
  return { sources: joined(sources), complete };
}

function substitute(get, level, index, from, to, top, sources) {
  const children = level > 0 ? [get(level - 1, index * 2), get(level - 1, index * 2 + 1)] : [];
  if (children.some(Boolean)) {
    const middle = (from + to) / 2;
    children.forEach((child, i) => {
      const [a, b] = i === 0 ? [from, middle] : [middle, to];
      if (child) sources.push({ tile: child, from: a, to: b });
      else coarser(get, level, index, a, b, top, sources);
    });
    return;
  }
  coarser(get, level, index, from, to, top, sources);
}

function coarser(get, level, index, from, to, top, sources) {
  for (let up = level + 1; up <= top; up += 1) {
    const tile = get(up, Math.floor(index / 2 ** (up - level)));
    if (tile) {
      sources.push({ tile, from, to });
      return;
    }
  }
}

/** Neighbouring parts of one tile become one source, so that nothing is drawn twice. */
function joined(sources) {
  const out = [];
  for (const source of sources) {
    const last = out.at(-1);
    if (last && last.tile === source.tile && last.to === source.from) last.to = source.to;
    else out.push({ ...source });
  }
  return out;
}
