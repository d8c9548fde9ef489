/**
 * Answers requests for single spans, in place of the server, from those that an exported page holds.
 * `webapp/exporters/offline_answers.py` writes them and describes their form. Pure.
 * @module
 */

import { STYLE_NAMES, UNFINISHED } from "../base/palette.js";

const MAX_SPANS = 2000;

/** Reads numbers stored as byte planes: the lowest bytes of all numbers, then the next higher ones. */
function column(block, at, planes, count) {
  const values = new Float64Array(count);
  for (let k = 0, unit = 1; k < planes; k += 1, unit *= 256) {
    for (let i = 0; i < count; i += 1) values[i] += block[at + k * count + i] * unit;
  }
  return values;
}

export class OfflineRun {
  /**
   * @param {{shortest: number, rows: [number, number, number, number][], planes: number[], modules: string[]}} description
   * @param {Uint8Array} block
   * @param {any} run as /api/run describes it
   */
  constructor(description, block, run) {
    Object.assign(this, { run, modules: description.modules, shortest: description.shortest });
    const count = description.rows.reduce((sum, row) => sum + row[2], 0);
    let at = 0;
    const [start, length, paint, module] = description.planes.map((planes) => {
      const values = column(block, at, planes, count);
      at += planes * count;
      return values;
    });
    Object.assign(this, { count, start, paint, module, end: length });
    /** @type {Map<string, {lane: number, row: number, low: number, high: number, ops: boolean}>} */
    this.rows = new Map();
    this.laneAt = new Map();
    this.rowOf = new Uint32Array(count);
    this.listed = [];
    let low = 0;
    for (const [lane, row, size, ops] of description.rows) {
      const high = low + size;
      if (!this.laneAt.has(lane)) this.laneAt.set(lane, low);
      const one = { lane, row, low, high, ops: Boolean(ops) };
      this.rows.set(`${lane}/${row}`, one);
      this.rowOf.fill(this.listed.length, low, high);
      this.listed.push(one);
      for (let i = low, t = 0; i < high; i += 1) {
        t += start[i];
        start[i] = t;
        this.end[i] += t;
      }
      low = high;
    }
    this.lanes = new Map(run.lanes.map((lane) => [lane.id, lane]));
  }

  /**
   * @param {string} address as for the server
   * @param {any} [body]
   * @returns {any} the answer, null if the file does not hold it
   */
  answer(address, body) {
    const { pathname, searchParams } = new URL(address, "http://file.invalid");
    const [, , what, , lane, ref] = pathname.split("/");
    const number = (name) => Number(searchParams.get(name));
    if (what === "modules") return { modules: this.modules, left_out: "" };
    if (what === "slice") return this.span(Number(lane), Number(ref));
    if (what === "look")
      return this.look(
        Number(lane),
        number("row"),
        number("t0"),
        number("t1"),
        searchParams.has("shorter") ? number("shorter") : Infinity,
      );
    if (what === "nearest")
      return this.nearest(Number(lane), number("row"), number("t"), searchParams.get("dir") === "next");
    if (what === "find") return this.find(body);
    if (what === "hits") return this.hits(body);
    return null;
  }

  style(i) {
    return this.run.paints.styles[this.paint[i]];
  }

  name(i) {
    return this.run.paints.names[this.paint[i]];
  }

  /** Returns the first index in low..high whose value is at least t (`after`: above t). */
  search(values, low, high, t, after = false) {
    let [a, b] = [low, high];
    while (a < b) {
      const middle = (a + b) >> 1;
      if (values[middle] < t || (after && values[middle] === t)) a = middle + 1;
      else b = middle;
    }
    return a;
  }

  spanAt(i) {
    const { lane, row } = this.listed[this.rowOf[i]];
    return {
      lane,
      row,
      ref: i - this.laneAt.get(lane),
      start_ns: this.start[i],
      end_ns: this.end[i],
      name: this.run.names[this.name(i)],
    };
  }

  span(lane, ref) {
    const i = (this.laneAt.get(lane) ?? NaN) + ref;
    if (!(i >= 0 && i < this.count) || this.listed[this.rowOf[i]].lane !== lane) return null;
    const style = this.style(i);
    const unfinished = Boolean(style & UNFINISHED);
    const { row, ops } = this.listed[this.rowOf[i]];
    const step = this.run.steps.rank0.find(([, start, end]) => start <= this.start[i] && this.start[i] < end);
    const of = this.lanes.get(lane);
    return {
      lane,
      row,
      ref,
      rank: of.rank,
      name: this.run.names[this.name(i)],
      style: STYLE_NAMES[style & ~UNFINISHED],
      unfinished,
      drawn: [this.start[i], this.end[i]],
      start_ns: String(this.start[i]),
      duration_ns: unfinished ? null : String(this.end[i] - this.start[i]),
      step: step && of.rank === this.run.ranks[0] ? step[0] : null,
      module: ops && this.module[i] ? this.modules[this.module[i] - 1] : "",
    };
  }

  look(lane, row, t0, t1, shorter) {
    const nothing = { lane, row, ref: null };
    const place = this.rows.get(`${lane}/${row}`);
    if (!place) return nothing;
    const { low, high } = place;
    let best = -1;
    let [count, covered] = [0, 0];
    for (let i = Math.max(low, this.search(this.start, low, high, t0) - 1); i < high && this.start[i] < t1; i += 1) {
      const length = this.end[i] - this.start[i];
      if (length >= shorter || (this.start[i] < t0 && this.end[i] <= t0)) continue;
      if (best < 0 || length > this.end[best] - this.start[best]) best = i;
      count += this.start[i] >= t0;
      covered += Math.max(0, Math.min(this.end[i], t1) - Math.max(this.start[i], t0));
    }
    if (best < 0) return nothing;
    // If the file leaves out shorter spans, their number is unknown.
    return this.shortest > 0 && shorter < Infinity
      ? this.spanAt(best)
      : { ...this.spanAt(best), count, covered_ns: covered };
  }

  nearest(lane, row, t, forward) {
    const place = this.rows.get(`${lane}/${row}`);
    if (!place) return { lane, row, ref: null };
    const at = forward
      ? this.search(this.start, place.low, place.high, t, true)
      : this.search(this.start, place.low, place.high, t) - 1;
    return at >= place.low && at < place.high ? this.spanAt(at) : { lane, row, ref: null };
  }

  wanted({ names, modules = [], within = null, ranks = null, least = 0, most = Infinity }) {
    const numbers = (ids) => new Set(ids.map((module) => module + 1)); // 0: in no module
    const [byName, byModule] = [new Set(names), numbers(modules)];
    const inside = within && numbers(within);
    const lanes = ranks && new Set(this.run.lanes.filter(({ rank }) => ranks.includes(rank)).map(({ id }) => id));
    return (i) => {
      const length = this.end[i] - this.start[i];
      return (
        (byName.has(this.name(i)) || byModule.has(this.module[i])) &&
        (!inside || inside.has(this.module[i])) &&
        (!lanes || lanes.has(this.listed[this.rowOf[i]].lane)) &&
        length >= least &&
        length <= most
      );
    };
  }

  /** Negative if span i comes before (start, lane, row) in the order of the search. */
  compare(i, [start, lane, row]) {
    const own = this.listed[this.rowOf[i]];
    return this.start[i] - start || own.lane - lane || own.row - row;
  }

  find({ t, lane, row, dir, ...asked }) {
    const wanted = this.wanted(asked);
    const forward = dir === "next";
    const key = (i) => [this.start[i], this.listed[this.rowOf[i]].lane, this.listed[this.rowOf[i]].row];
    let best = -1;
    let total = 0;
    for (let i = 0; i < this.count; i += 1) {
      if (!wanted(i)) continue;
      total += 1;
      const side = this.compare(i, [t, lane, row]);
      if ((forward ? side <= 0 : side >= 0) || (best >= 0 && this.compare(i, key(best)) > 0 === forward)) continue;
      best = i;
    }
    if (best < 0) return { ref: null };
    let position = 0;
    const place = key(best);
    for (let i = 0; i < this.count; i += 1) position += wanted(i) && this.compare(i, place) <= 0;
    return { ...this.spanAt(best), position, total };
  }

  hits({ t0, t1, lanes, buckets, ...asked }) {
    const wanted = this.wanted(asked);
    const bits = () => new Uint8Array(Math.ceil(buckets / 8));
    const all = bits();
    const byLane = new Map(lanes.map((lane) => [lane, bits()]));
    const used = new Set();
    const spans = {};
    let total = 0;
    for (let i = 0; i < this.count; i += 1) {
      if (this.start[i] < t0 || this.start[i] >= t1 || !wanted(i)) continue;
      total += 1;
      const part = Math.floor(((this.start[i] - t0) * buckets) / (t1 - t0));
      const { lane, row } = this.listed[this.rowOf[i]];
      all[part >> 3] |= 1 << (part & 7);
      const own = byLane.get(lane);
      if (!own) continue;
      own[part >> 3] |= 1 << (part & 7);
      used.add(lane);
      if (total > MAX_SPANS) continue;
      spans[lane] ??= [];
      spans[lane].push([row, this.start[i], this.end[i]]);
    }
    const text = (bytes) => btoa(String.fromCharCode(...bytes));
    return {
      total,
      marks: text(all),
      lanes: Object.fromEntries([...used].map((lane) => [lane, text(byLane.get(lane))])),
      slices: total <= MAX_SPANS ? spans : null,
    };
  }
}
