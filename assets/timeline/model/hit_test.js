/**
 * Finds the drawing at a point, in the same tiles.
 * @module
 */

import { UNFINISHED } from "../base/palette.js";
import { SHARE_OF } from "../tiles/tile.js";
import { sampleAt, samplesOf } from "./counter_samples.js";

/** Distance up to which a narrow span is still hit, px. */
const REACH = 3;

/**
 * @typedef {object} Hit
 * @property {"span"|"dense"|"sample"} kind
 * @property {number} lane
 * @property {number} row
 * @property {number} name id
 * @property {number} ref -1: not yet requested, see `Picker`
 * @property {boolean} exact true if times, count and share are exact, not rounded to the drawing
 * @property {boolean} [near] they are as drawn, and no more can be requested
 * @property {number} style
 * @property {boolean} unfinished
 * @property {number} start ns; of the bucket where dense
 * @property {number} end ns
 * @property {number} [count] spans that begin in the bucket, once known
 * @property {number} [covered] share of the bucket
 * @property {number} [value] of a counter
 */

/**
 * @param {import("../tiles/tile_plan.js").Source[]} sources of the lane
 * @param {import("./layout.js").Row} row
 * @param {number} t instant, ns
 * @param {number} perPixel ns per pixel
 * @returns {Hit|null}
 */
export function hitRow(sources, row, t, perPixel) {
  if (row.lane.kind === "counter") return hitCounter(sources, row, t, perPixel);
  let near = null;
  let distance = REACH * perPixel;
  for (const { tile, from, to } of sources) {
    if (t < from - distance || t > to + distance) continue;
    const block = tile.block(row.lane.id, row.row);
    const span = block?.spans && nearestSpan(block.spans, tile, t, distance);
    if (span?.distance === 0) return found(span.i, block.spans, tile, row);
    if (span) {
      near = found(span.i, block.spans, tile, row);
      distance = span.distance;
    }
    const bucket = block?.dense && bucketAt(block.dense, tile, t);
    if (bucket) return { ...bucket, lane: row.lane.id, row: row.row };
  }
  return near;
}

function nearestSpan(s, tile, t, reach) {
  const at = t - tile.start;
  let best = null;
  for (let i = 0; i < s.n; i += 1) {
    const gap = Math.max(s.start[i] - at, at - s.end[i], 0);
    if (gap === 0 && at < s.end[i]) return { i, distance: 0 };
    if (gap <= reach && (!best || gap < best.distance)) best = { i, distance: Math.max(gap, 1e-9) };
  }
  return best;
}

function found(i, s, tile, row) {
  return {
    kind: "span",
    lane: row.lane.id,
    row: row.row,
    ref: -1,
    exact: tile.unit === 1,
    start: tile.start + s.start[i],
    end: tile.start + s.end[i],
    ...looks(tile.paints, s.paint[i]),
  };
}

/** Returns name and style of a paint. */
function looks(paints, paint) {
  const style = paints.style[paint];
  return { name: paints.name[paint], style: style & ~UNFINISHED, unfinished: Boolean(style & UNFINISHED) };
}

function bucketAt(d, tile, t) {
  const bucket = Math.floor((t - tile.start) / tile.bucket);
  for (let i = 0; i < d.n; i += 1) {
    if (d.bucket[i] !== bucket) continue;
    const start = tile.start + bucket * tile.bucket;
    return {
      kind: "dense",
      ref: -1,
      exact: false,
      start,
      end: start + tile.bucket,
      covered: SHARE_OF[d.covered[i]],
      ...looks(tile.paints, d.paint[i]),
    };
  }
  return null;
}

function hitCounter(sources, row, t, perPixel) {
  const sample = sampleAt(samplesOf(sources, row.lane.id), t, 12 * perPixel);
  if (!sample) return null;
  const { t: start, last, min, max } = sample;
  return {
    kind: "sample",
    lane: row.lane.id,
    row: 0,
    name: -1,
    ref: -1,
    exact: true,
    style: 0,
    unfinished: false,
    start,
    end: start,
    value: last,
    min,
    max,
  };
}
