/**
 * Arrows from the selected slice to what it belongs to: its forward or backward partner, the same
 * collective on the other ranks, threads that it starts or waits for, kernels that it launches, and
 * what plugins add. The server says which there are.
 * @module
 */

/** Half the opening of an arrow's head and its length, px. */
const HEAD = [3.5, 7];
/** How far an arrow swings out before it turns, px. */
const BEND = [18, 90];

/**
 * @typedef {{lane: number, row: number, ref: number, t: number}} End a slice and a time
 * @typedef {{kind: string, from: End, to: End, tone: string}} Flow as the server describes it: autograd, collective, launch, race, or how threads meet: start, join, lock, queue ...
 */

/**
 * @param {CanvasRenderingContext2D} c
 * @param {Flow[]} flows
 * @param {(end: End) => {x: number, y: number}|null} place where an end is on the canvas
 * @param {{width: number, height: number, colours: Record<string, string>, ground: string}} look
 * @returns {number} how many were drawn
 */
export function drawFlows(c, flows, place, { width, height, colours, ground }) {
  let drawn = 0;
  for (const { kind, from, to, tone } of flows) {
    const [a, b] = [place(from), place(to)];
    if (!a || !b) continue;
    if (Math.max(a.x, b.x) < -BEND[1] || Math.min(a.x, b.x) > width + BEND[1]) continue;
    if (Math.max(a.y, b.y) < 0 || Math.min(a.y, b.y) > height) continue;
    drawn += 1;
    for (const [colour, weight] of [
      [ground, 4],
      [colours[tone], 1.5],
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
