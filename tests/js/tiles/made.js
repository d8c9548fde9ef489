import { Tile } from "/assets/timeline/tiles/tile.js";

// Tiles made by hand: rows of spans and of buckets.

export const PAINTS = { name: Uint32Array.from([0, 1, 2, 3]), style: Uint8Array.from([1, 2, 3, 0x81]) };
export const spans = (rows) => ({
  n: rows.length,
  start: Float64Array.from(rows, (r) => r[0]),
  end: Float64Array.from(rows, (r) => r[1]),
  paint: Uint8Array.from(rows, (r) => r[2] ?? 0),
  before: false,
  after: false,
});
export const dense = (rows) => ({
  n: rows.length,
  bucket: Uint16Array.from(rows, (r) => r[0]),
  covered: Uint8Array.from(rows, (r) => r[1]),
  paint: Uint8Array.from(rows, () => 1),
});
export const tileOf = (block, level = 0) =>
  new Tile(
    level,
    0,
    1,
    PAINTS,
    new Map([[0, [{ lane: 0, row: 0, spans: null, dense: null, samples: null, ...block }]]]),
  );
