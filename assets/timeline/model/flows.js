/**
 * Arrows from the selected slice to what it belongs to: its forward or backward partner, the same
 * collective on the other ranks, threads that it starts or waits for, kernels that it launches, and
 * what plugins add. The server says which there are.
 * @module
 */

/** Half the opening of an arrow's head and its length, px. */
const HEAD = [3.5, 7];
/** A dot stands this far before its slice begins, so that it covers no letter of the name, px. */
const DOT_BEFORE = 2;
/** How far an arrow swings out before it turns, px. */
const BEND = [18, 90];

/**
 * @typedef {{lane: number, row: number, ref: number, t: number}} End a slice and a time
 * @typedef {{kind: string, from: End, to: End, tone: string}} Flow as the server describes it: autograd, collective, launch, race, or how threads meet: start, join, lock, queue ...
 */

/**
 * Draws arrows, none of them through a name.
 * @param {CanvasRenderingContext2D} c
 * @param {Flow[]} flows
 * @param {(end: End) => {x: number, y: number}|null} place where an end is on the canvas
 * @param {object} look
 * @param {number} look.width
 * @param {number} look.height
 * @param {Record<string, string>} look.colours by tone
 * @param {string} look.ground
 * @param {() => {x: number, y: number, w: number, h: number}[]} look.names where names are
 * @returns {number} how many were drawn
 */
export function drawFlows(c, flows, place, { width, height, colours, ground, names }) {
  const shown = flows
    .map(({ kind, from, to, tone }) => ({ kind, a: place(from), b: place(to), colour: colours[tone] }))
    .filter(
      ({ a, b }) =>
        a &&
        b &&
        Math.max(a.x, b.x) >= -BEND[1] &&
        Math.min(a.x, b.x) <= width + BEND[1] &&
        Math.max(a.y, b.y) >= 0 &&
        Math.min(a.y, b.y) <= height,
    );
  if (!shown.length) return 0;
  c.save();
  c.beginPath();
  c.rect(0, 0, width, height);
  for (const { x, y, w, h } of names()) c.rect(x, y, w, h);
  c.clip("evenodd");
  for (const { kind, a, b, colour } of shown) {
    c.beginPath();
    if (kind === "collective") thread(c, a, b);
    else arrow(c, a, b);
    stroke(c, ground, 4);
    stroke(c, colour, 1.5);
  }
  c.restore();
  for (const { kind, a, b, colour } of shown) {
    c.beginPath();
    if (kind === "collective") dots(c, a, b);
    else head(c, b);
    c.fillStyle = colour;
    stroke(c, ground, 2);
    c.fill();
  }
  return shown.length;
}

function stroke(c, colour, weight) {
  c.strokeStyle = colour;
  c.lineWidth = weight;
  c.stroke();
}

/** An arrow leaves to the right and arrives from the left, as time runs. */
function arrow(c, a, b) {
  c.moveTo(a.x, a.y);
  const swing = Math.min(Math.max(Math.abs(b.x - a.x) / 2, BEND[0]), BEND[1]);
  c.bezierCurveTo(a.x + swing, a.y, b.x - swing, b.y, b.x - HEAD[1], b.y);
}

function head(c, { x, y }) {
  c.moveTo(x, y);
  c.lineTo(x - HEAD[1], y - HEAD[0]);
  c.lineTo(x - HEAD[1], y + HEAD[0]);
  c.closePath();
}

/** Calls of one collective have no direction: dots on a line. */
function thread(c, a, b) {
  const middle = (a.y + b.y) / 2;
  const [from, to] = [a.x - DOT_BEFORE, b.x - DOT_BEFORE];
  c.moveTo(from, a.y);
  c.bezierCurveTo(from, middle, to, middle, to, b.y);
}

function dots(c, a, b) {
  for (const { x, y } of [a, b]) {
    c.moveTo(x - DOT_BEFORE + 3, y);
    c.arc(x - DOT_BEFORE, y, 3, 0, 2 * Math.PI);
  }
}
