/**
 * Draws counter lanes: a line through the samples, scaled to the largest value of the whole run, so
 * that zooming never rescales it.
 * @module
 */

/**
 * @param {CanvasRenderingContext2D} context
 * @param {import("../model/counter_samples.js").Sample[]} samples
 * @param {{low: number, high: number, y: number, h: number, t0: number, scale: number, colour: string, bad: string}} place
 */
export function drawCounter(context, samples, { low, high, y, h, t0, scale, colour, bad }) {
  const range = high - low || 1;
  const top = y + 3;
  const height = h - 6;
  const at = (value) => top + height - ((value - low) / range) * height;
  context.strokeStyle = colour;
  context.lineWidth = 1.25;
  context.lineJoin = "round";
  context.beginPath();
  let previous = -Infinity;
  let sparse = true;
  const wrong = [];
  let broken = true;
  for (const sample of samples) {
    const x = (sample.t - t0) * scale;
    if (x - previous < 8) sparse = false;
    previous = x;
    if (!Number.isFinite(sample.last)) {
      wrong.push(x); // NaN and infinity have no height: the line breaks there, at a red cross
      broken = true;
      continue;
    }
    if (broken) context.moveTo(x, at(sample.last));
    else context.lineTo(x, at(sample.last));
    broken = false;
    if (sample.max !== sample.min && Number.isFinite(sample.max) && Number.isFinite(sample.min)) {
      context.moveTo(x, at(sample.min));
      context.lineTo(x, at(sample.max));
      context.moveTo(x, at(sample.last));
    }
  }
  context.stroke();
  cross(context, wrong, y + h / 2, bad);
  if (!sparse) return;
  context.fillStyle = colour;
  for (const sample of samples) {
    if (!Number.isFinite(sample.last)) continue;
    context.beginPath();
    context.arc((sample.t - t0) * scale, at(sample.last), 2, 0, 2 * Math.PI);
    context.fill();
  }
}

function cross(context, places, y, colour) {
  context.strokeStyle = colour;
  context.lineWidth = 1.5;
  context.beginPath();
  for (const x of places) {
    context.moveTo(x - 4, y - 4);
    context.lineTo(x + 4, y + 4);
    context.moveTo(x + 4, y - 4);
    context.lineTo(x - 4, y + 4);
  }
  context.stroke();
}
