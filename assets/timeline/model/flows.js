/**
 * Arrows from the selected slice to what it belongs to: its forward or backward partner, the same
 * collective on the other ranks, threads that it starts or waits for, kernels that it launches,
 * what it races with. Pure, but for the drawing.
 * @module
 */

/** Half the opening of an arrow's head and its length, px. */
const HEAD = [3.5, 7];
/** How far an arrow swings out before it turns, px. */
const BEND = [18, 90];
/** What belongs together; other arrows are of threads that meet. */
const TIES = new Set(["autograd", "collective", "launch"]);

/**
 * @typedef {{lane: number, row: number, ref: number, t: number}} End of which slice, and when
 * @typedef {{kind: string, from: End, to: End}} Flow autograd, collective, launch, race, or how threads meet: start, join, lock, queue ...
 */

const placeOf = ({ lane, row, ref }) => ({ lane, row, ref });

/**
 * @param {Record<string, any>} slice as the server describes it
 * @returns {Flow[]}
 */
export function flowsOf(slice) {
  const [start, end] = slice.drawn ?? [];
  if (start === undefined) return [];
  const here = (t) => ({ lane: slice.lane, row: slice.row, ref: slice.ref, t });
  const flows = [];
  const { partner, peers = [], threads = [], launches = [], races = [] } = slice;
  if (partner) {
    const there = placeOf(partner);
    if (partner.start_ns >= start)
      flows.push({ kind: "autograd", from: here(end), to: { ...there, t: partner.start_ns } });
    else flows.push({ kind: "autograd", from: { ...there, t: partner.end_ns }, to: here(start) });
  }
  if (peers.length) {
    // One thread through all ranks, in their order: where it leans is who came late.
    const calls = [...peers, { rank: slice.rank, lane: slice.lane, row: slice.row, ref: slice.ref, start_ns: start }];
    calls.sort((a, b) => a.rank - b.rank);
    const ends = calls.map((call) => ({ ...placeOf(call), t: call.start_ns }));
    for (let i = 1; i < ends.length; i += 1) flows.push({ kind: "collective", from: ends[i - 1], to: ends[i] });
  }
  for (const one of threads) {
    const there = placeOf(one);
    const [from, to] = one.outgoing
      ? [here(one.sent_ns), { ...there, t: one.came_ns }]
      : [{ ...there, t: one.sent_ns }, here(one.came_ns)];
    flows.push({ kind: one.kind, from, to });
  }
  for (const one of launches) {
    const there = placeOf(one);
    const [from, to] = one.outgoing
      ? [here(one.launch_ns), { ...there, t: one.start_ns }]
      : [{ ...there, t: one.launch_ns }, here(start)];
    flows.push({ kind: "launch", from, to });
  }
  for (const one of races) {
    const there = { ...placeOf(one), t: one.start_ns };
    const [from, to] = one.outgoing ? [here(start), there] : [there, here(start)];
    flows.push({ kind: "race", from, to });
  }
  return flows;
}

/**
 * @param {CanvasRenderingContext2D} c
 * @param {Flow[]} flows
 * @param {(end: End) => {x: number, y: number}|null} place where an end is on the canvas
 * @param {{width: number, height: number, colours: {ties: string, threads: string, races: string}, ground: string}} look
 * @returns {number} how many were drawn
 */
export function drawFlows(c, flows, place, { width, height, colours, ground }) {
  let drawn = 0;
  for (const { kind, from, to } of flows) {
    const [a, b] = [place(from), place(to)];
    if (!a || !b) continue;
    if (Math.max(a.x, b.x) < -BEND[1] || Math.min(a.x, b.x) > width + BEND[1]) continue;
    if (Math.max(a.y, b.y) < 0 || Math.min(a.y, b.y) > height) continue;
    drawn += 1;
    const ink = kind === "race" ? colours.races : TIES.has(kind) ? colours.ties : colours.threads;
    for (const [colour, weight] of [
      [ground, 4],
      [ink, 1.5],
    ]) {
      c.strokeStyle = colour;
      c.fillStyle = colour;
      c.lineWidth = weight;
      if (kind === "collective") thread(c, a, b);
      else arrow(c, a, b);
    }
  }
  return drawn;
}

/** An arrow leaves to the right and arrives from the left, as time runs. */
function arrow(c, a, b) {
  const swing = Math.min(Math.max(Math.abs(b.x - a.x) / 2, BEND[0]), BEND[1]);
  c.beginPath();
  c.moveTo(a.x, a.y);
  c.bezierCurveTo(a.x + swing, a.y, b.x - swing, b.y, b.x - HEAD[1], b.y);
  c.stroke();
  c.beginPath();
  c.moveTo(b.x, b.y);
  c.lineTo(b.x - HEAD[1], b.y - HEAD[0]);
  c.lineTo(b.x - HEAD[1], b.y + HEAD[0]);
  c.closePath();
  c.fill();
}

/** Calls of one collective have no direction: dots on a line. */
function thread(c, a, b) {
  const middle = (a.y + b.y) / 2;
  c.beginPath();
  c.moveTo(a.x, a.y);
  c.bezierCurveTo(a.x, middle, b.x, middle, b.x, b.y);
  c.stroke();
  for (const { x, y } of [a, b]) {
    c.beginPath();
    c.arc(x, y, 3, 0, 2 * Math.PI);
    c.fill();
  }
}
