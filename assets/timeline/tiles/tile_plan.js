/**
 * Decides which parts of tiles a view needs, in what order, and what to draw while some are missing.
 * Pure.
 *
 * A tile has TILE_PARTS parts, numbered continuously across tiles.
 * @module
 */

import { TILE_BUCKETS, TILE_PARTS } from "../base/viewport.js";

/** Encodes level and part as one number: levels are below 64, parts below 2^46. */
export const placeOf = (level, part) => part * 64 + level;

/** Nanoseconds covered by a part of a tile. @param {number} level */
const partSpan = (level) => (TILE_BUCKETS / TILE_PARTS) * 2 ** level;

/** Returns the first and last part that touch [t0, t1) within the run. */
export function indices(level, t0, t1, duration) {
  const span = partSpan(level);
  const last = Math.max(0, Math.ceil(duration / span) - 1);
  const from = Math.min(Math.max(Math.floor(t0 / span), 0), last);
  const to = Math.min(Math.max(Math.ceil(t1 / span) - 1, from), last);
  return [from, to];
}

/**
 * Returns the parts of tiles in a window, tile by tile, those nearest to the middle of the view first.
 * @param {{t0: number, t1: number}} window
 * @param {{t0: number, t1: number}} view
 * @param {number} level
 * @param {number} duration ns
 * @param {boolean} [whole] all parts of each tile
 * @returns {{level: number, from: number, to: number}[]} parts from `from` up to `to`
 */
export function wanted(window, view, level, duration, whole = false) {
  const [first, last] = indices(level, window.t0, window.t1, duration);
  const middle = (view.t0 + view.t1) / 2 / partSpan(level);
  const out = [];
  for (let tile = Math.floor(first / TILE_PARTS); tile * TILE_PARTS <= last; tile += 1) {
    const [from, to] = [tile * TILE_PARTS, (tile + 1) * TILE_PARTS];
    out.push(whole ? { level, from, to } : { level, from: Math.max(from, first), to: Math.min(to, last + 1) });
  }
  return out.sort((a, b) => Math.abs((a.from + a.to) / 2 - middle) - Math.abs((b.from + b.to) / 2 - middle));
}

/**
 * @typedef {{tile: import("./tile.js").Tile, from: number, to: number}} Source
 */

/**
 * Decides what to draw for [t0, t1): tiles of `level` if cached, else finer ones, else the nearest
 * coarser one.
 * @param {(level: number, part: number) => import("./tile.js").Tile|undefined} get the tile that holds a part
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
    const start = index * partSpan(level);
    const end = start + partSpan(level);
    if (tile) {
      sources.push({ tile, from: start, to: end });
      continue;
    }
    complete = false;
    substitute(get, level, index, start, end, top, sources);
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

/** Joins adjacent parts of one tile into one source, so that no span is drawn twice. */
function joined(sources) {
  const out = [];
  for (const source of sources) {
    const last = out.at(-1);
    if (last && last.tile === source.tile && last.to === source.from) last.to = source.to;
    else out.push({ ...source });
  }
  return out;
}
