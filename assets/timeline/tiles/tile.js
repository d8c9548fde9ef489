/**
 * Decodes the tile payload, version 4. Its layout is described where it is written, in
 * webapp/timeline/tile_format.py and webapp/timeline/tile_columns.py.
 * @module
 */

import { TILE_BUCKETS } from "../base/viewport.js";

const MAGIC = 0x4c54534c;
export const VERSION = 4;
const SHARES = 32;
/** Covered share of a bucket by its encoded value. */
export const SHARE_OF = Float64Array.from({ length: SHARES + 1 }, (_, root) => (root / SHARES) ** 2);
/** Marks a distance that takes two bytes. */
const ESCAPE_BYTE = 255;
/** Forms of a block. */
const BITS = 1;
const BEFORE = 2;
const AFTER = 4;
/** Columns in the order of the payload, with the bytes of an entry; 0: as many as a paint has. */
const COLUMNS = Object.entries({
  before: 8,
  after: 8,
  low: 4,
  high: 4,
  last: 4,
  far: 2,
  bucket: 2,
  paint: 0,
  short: 0,
  steps: 1,
  covered: 1,
  bits: 1,
});
const TYPES = { low: Float32Array, high: Float32Array, last: Float32Array, before: Float64Array, after: Float64Array };
const WHOLE_NUMBERS = { 1: Uint8Array, 2: Uint16Array, 4: Uint32Array };
const HEADER = 32 + 4 * COLUMNS.length;
const BLOCK = 12;
const padded = (size) => Math.ceil(size / 8) * 8;

/**
 * @typedef {object} Paints name and style by the number that tiles have for both
 * @property {Uint32Array} name id
 * @property {Uint8Array} style with UNFINISHED
 *
 * @typedef {object} Spans wide spans of one row; times in ns from the tile's start
 * @property {number} n
 * @property {Float64Array} start
 * @property {Float64Array} end
 * @property {Uint8Array|Uint16Array|Uint32Array} paint
 * @property {boolean} before the first one begins before the tile
 * @property {boolean} after the last one ends after the tile
 *
 * @typedef {object} Dense buckets holding spans shorter than a bucket
 * @property {number} n
 * @property {Uint16Array} bucket
 * @property {Uint8Array} share of the bucket, see SHARE_OF
 * @property {Uint8Array|Uint16Array|Uint32Array} paint of the longest
 *
 * @typedef {object} Samples of a counter
 * @property {number} n
 * @property {boolean} leading entry 0 is the value in force at the start, from before this tile
 * @property {Uint16Array} bucket
 * @property {Float32Array} min
 * @property {Float32Array} max
 * @property {Float32Array} last
 *
 * @typedef {object} Block
 * @property {number} lane
 * @property {number} row
 * @property {Spans|null} spans
 * @property {Dense|null} dense
 * @property {Samples|null} samples
 */

/** @param {any} run as /api/run describes it @returns {Paints} */
export const paintsOf = (run) => ({
  name: Uint32Array.from(run.paints.names),
  style: Uint8Array.from(run.paints.styles),
});

/** One decoded tile. */
export class Tile {
  /**
   * @param {number} level
   * @param {number} index
   * @param {number} unit ns; span times are rounded down to it
   * @param {Paints} paints
   * @param {Map<number, Block[]>} lanes blocks by lane, indexed by row
   * @param {Map<number, number>} [bytes] of the payload by lane
   */
  constructor(level, index, unit, paints, lanes, bytes = new Map()) {
    this.level = level;
    this.index = index;
    this.unit = unit;
    this.paints = paints;
    this.lanes = lanes;
    this.bytes = bytes;
    this.bucket = 2 ** level;
    this.start = index * TILE_BUCKETS * this.bucket;
    this.end = this.start + TILE_BUCKETS * this.bucket;
  }

  /** @returns {Block|undefined} */
  block(lane, row) {
    return this.lanes.get(lane)?.[row];
  }
}

/**
 * @param {ArrayBuffer} buffer
 * @param {Paints} paints
 * @returns {Tile}
 * @throws {Error} when the payload is not a tile of this version or is cut short
 */
export function decode(buffer, paints) {
  const view = new DataView(buffer);
  if (buffer.byteLength < HEADER || view.getUint32(0, true) !== MAGIC) throw new Error("not a LaneScope tile");
  const version = view.getUint16(4, true);
  if (version !== VERSION) throw new Error(`tile of version ${version}, this page reads ${VERSION}: reload the page`);
  const level = view.getInt32(8, true);
  const index = view.getUint32(12, true) + view.getUint32(24, true) * 2 ** 32;
  const blocks = view.getUint32(16, true);
  const unit = 2 ** view.getUint32(20, true);
  const reader = new Reader(view, HEADER + BLOCK * blocks);
  const lanes = new Map();
  const bytes = new Map();
  for (let i = 0, at = HEADER; i < blocks; i += 1, at += BLOCK) {
    const lane = view.getUint32(at, true);
    const row = view.getUint16(at + 4, true);
    const kind = view.getUint8(at + 6);
    const form = view.getUint8(at + 7);
    const n = view.getUint16(at + 8, true);
    const m = view.getUint16(at + 10, true);
    const before = reader.taken;
    const block = { lane, row, spans: null, dense: null, samples: null };
    if (kind === 1) block.samples = n ? readSamples(reader, n, m === 1) : null;
    else {
      block.spans = n ? readSpans(reader, n, unit, form) : null;
      block.dense = m ? readDense(reader, m, form) : null;
    }
    if (!lanes.has(lane)) lanes.set(lane, []);
    lanes.get(lane)[row] = block;
    bytes.set(lane, (bytes.get(lane) ?? 0) + reader.taken - before);
  }
  return new Tile(level, index, unit, paints, lanes, bytes);
}

/** Reads the columns of a payload block by block. */
class Reader {
  /** @param {DataView} view @param {number} at where the heads of the blocks end */
  constructor(view, at) {
    const { buffer } = view;
    const paint = view.getUint32(28, true);
    this.columns = {};
    /** Bytes taken so far. */
    this.taken = 0;
    let next = padded(at);
    COLUMNS.forEach(([name, bytes], i) => {
      const size = view.getUint32(32 + 4 * i, true);
      if (next + size > buffer.byteLength) throw new Error("tile cut short");
      const Type = TYPES[name] ?? WHOLE_NUMBERS[bytes || paint];
      this.columns[name] = { array: new Type(buffer, next, size / Type.BYTES_PER_ELEMENT), at: 0 };
      next += padded(size);
    });
  }

  /** Returns the next n entries of a column. @param {string} name @param {number} n */
  take(name, n) {
    const column = this.columns[name];
    if (column.at + n > column.array.length) throw new Error("tile cut short");
    column.at += n;
    this.taken += n * column.array.BYTES_PER_ELEMENT;
    return column.array.subarray(column.at - n, column.at);
  }
}

/** @returns {Spans} */
function readSpans(r, n, unit, form) {
  const start = new Float64Array(n);
  const end = new Float64Array(n);
  const steps = r.take("steps", 2 * n);
  let count = 0;
  for (let i = 0; i < steps.length; i += 1) if (steps[i] === ESCAPE_BYTE) count += 1;
  const far = r.take("far", count);
  let next = 0;
  let at = 0;
  for (let i = 0; i < n; i += 1) {
    at += steps[2 * i] === ESCAPE_BYTE ? far[next++] : steps[2 * i];
    start[i] = at * unit;
    at += steps[2 * i + 1] === ESCAPE_BYTE ? far[next++] : steps[2 * i + 1];
    end[i] = at * unit;
  }
  if (form & BEFORE) [start[0]] = r.take("before", 1);
  if (form & AFTER) [end[n - 1]] = r.take("after", 1);
  return { n, start, end, paint: r.take("paint", n), before: Boolean(form & BEFORE), after: Boolean(form & AFTER) };
}

/** @returns {Dense} */
function readDense(r, n, form) {
  const bucket = form & BITS ? setBits(r.take("bits", TILE_BUCKETS / 8), n) : r.take("bucket", n);
  return { n, bucket, covered: r.take("covered", n), paint: r.take("short", n) };
}

function setBits(bits, n) {
  const out = new Uint16Array(n);
  let found = 0;
  for (let i = 0; i < TILE_BUCKETS && found < n; i += 1) {
    if ((bits[i >> 3] >> (i & 7)) & 1) {
      out[found] = i;
      found += 1;
    }
  }
  return out;
}

/** @returns {Samples} */
function readSamples(r, n, leading) {
  return {
    n,
    leading,
    bucket: r.take("bucket", n),
    min: r.take("low", n),
    max: r.take("high", n),
    last: r.take("last", n),
  };
}
