/**
 * Decoding of the tile payload, version 1. The arrays are views of the received buffer: no copy.
 * The layout is described where it is written, in webapp/tiles.py.
 * @module
 */
import { TILE_BUCKETS } from "./viewport.js";

export const MAGIC = 0x4c54534c;
export const VERSION = 1;
/** Flags of a slice. */
export const UNFINISHED = 1;
export const FROM_BEFORE = 2;
export const GOES_ON = 4;

/**
 * @typedef {object} Slices wide slices of one row, in units of the tile from its start
 * @property {number} n
 * @property {Int32Array} start
 * @property {Int32Array} end
 * @property {Uint32Array} name
 * @property {Uint32Array} ref
 * @property {Uint8Array} style
 * @property {Uint8Array} flags
 *
 * @typedef {object} Dense buckets holding slices shorter than a bucket
 * @property {number} n
 * @property {Uint16Array} bucket
 * @property {Uint16Array} covered share of the bucket, 65535 is all of it
 * @property {Uint32Array} count
 * @property {Uint32Array} name of the longest
 * @property {Uint32Array} ref of the longest
 * @property {Uint8Array} style of the longest
 *
 * @typedef {object} Samples of a counter
 * @property {number} n
 * @property {boolean} leading entry 0 is not of this tile but the value in force as it begins
 * @property {Uint16Array} bucket
 * @property {Float32Array} min
 * @property {Float32Array} max
 * @property {Float32Array} last
 *
 * @typedef {object} Block
 * @property {number} lane
 * @property {number} row
 * @property {Slices|null} slices
 * @property {Dense|null} dense
 * @property {Samples|null} samples
 */

/** One decoded tile. */
export class Tile {
  /**
   * @param {number} level
   * @param {number} index
   * @param {number} unit ns per unit of slice times
   * @param {number} byteLength of the payload
   * @param {Map<number, Block[]>} lanes blocks by lane, indexed by row
   */
  constructor(level, index, unit, byteLength, lanes) {
    this.level = level;
    this.index = index;
    this.unit = unit;
    this.byteLength = byteLength;
    this.lanes = lanes;
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
 * @returns {Tile}
 * @throws {Error} when the payload is not a tile of this version or is cut short
 */
export function decode(buffer) {
  const view = new DataView(buffer);
  if (buffer.byteLength < 32 || view.getUint32(0, true) !== MAGIC) throw new Error("not a LaneScope tile");
  const version = view.getUint16(4, true);
  if (version !== VERSION) throw new Error(`tile of version ${version}, this page reads ${VERSION}: reload the page`);
  let at = view.getUint16(6, true);
  const level = view.getInt32(8, true);
  const index = view.getUint32(12, true) + view.getUint32(24, true) * 2 ** 32;
  const blocks = view.getUint32(16, true);
  const unit = 2 ** view.getUint32(20, true);
  const lanes = new Map();
  for (let i = 0; i < blocks; i += 1) {
    if (at + 24 > buffer.byteLength) throw new Error("tile cut short");
    const lane = view.getUint32(at, true);
    const row = view.getUint16(at + 4, true);
    const kind = view.getUint8(at + 6);
    const nSlices = view.getUint32(at + 8, true);
    const nDense = view.getUint32(at + 12, true);
    const size = view.getUint32(at + 16, true);
    at += 24;
    if (at + size > buffer.byteLength) throw new Error("tile cut short");
    const reader = new Reader(buffer, at);
    const block = { lane, row, slices: null, dense: null, samples: null };
    if (kind === 1) block.samples = nSlices ? readSamples(reader, nSlices, nDense === 1) : null;
    else {
      block.slices = nSlices ? readSlices(reader, nSlices) : null;
      block.dense = nDense ? readDense(reader, nDense) : null;
    }
    if (!lanes.has(lane)) lanes.set(lane, []);
    lanes.get(lane)[row] = block;
    at += size;
  }
  return new Tile(level, index, unit, buffer.byteLength, lanes);
}

/** Takes arrays one after another, each padded to four bytes. */
class Reader {
  constructor(buffer, at) {
    this.buffer = buffer;
    this.at = at;
  }

  take(Type, n) {
    const array = new Type(this.buffer, this.at, n);
    this.at += (n * Type.BYTES_PER_ELEMENT + 3) & ~3;
    return array;
  }
}

/** @returns {Slices} */
function readSlices(r, n) {
  return {
    n,
    start: r.take(Int32Array, n),
    end: r.take(Int32Array, n),
    name: r.take(Uint32Array, n),
    ref: r.take(Uint32Array, n),
    style: r.take(Uint8Array, n),
    flags: r.take(Uint8Array, n),
  };
}

/** @returns {Dense} */
function readDense(r, n) {
  return {
    n,
    bucket: r.take(Uint16Array, n),
    covered: r.take(Uint16Array, n),
    count: r.take(Uint32Array, n),
    name: r.take(Uint32Array, n),
    ref: r.take(Uint32Array, n),
    style: r.take(Uint8Array, n),
  };
}

/** @returns {Samples} */
function readSamples(r, n, leading) {
  return {
    n,
    leading,
    bucket: r.take(Uint16Array, n),
    min: r.take(Float32Array, n),
    max: r.take(Float32Array, n),
    last: r.take(Float32Array, n),
  };
}
