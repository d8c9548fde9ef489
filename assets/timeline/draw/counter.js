/**
 * Counter lanes: a line through the samples, as high as the largest value of the whole run, so that
 * zooming never rescales it.
 * @module
 */

/** @typedef {{t: number, min: number, max: number, last: number}} Sample */

/**
 * Samples of one counter from sources, in order of time. The value in force at the left edge comes
 * first, at the edge itself.
 * @param {import("../tiles/tile_plan.js").Source[]} sources
 * @param {number} lane
 * @returns {Sample[]}
 */
export function samplesOf(sources, lane) {
  const out = [];
  for (const [number, { tile, from, to }] of sources.entries()) {
    const samples = tile.block(lane, 0)?.samples;
    if (!samples) continue;
    const low = number ? from : tile.start; // what is in force at the left edge began before it
    for (let i = 0; i < samples.n; i += 1) {
      const leading = i === 0 && samples.leading;
      if (leading && out.length) continue;
      const t = leading ? tile.start : tile.start + (samples.bucket[i] + 0.5) * tile.bucket;
      if (t >= low && t < to) out.push({ t, min: samples.min[i], max: samples.max[i], last: samples.last[i], leading });
    }
  }
  return out;
}

/**
 * The visible samples with one neighbour on each side, so that the line enters and leaves.
 * @param {Sample[]} fine of the window
 * @param {Sample[]} coarse of the whole run
 */
export function withNeighbours(fine, coarse, t0, t1) {
  const real = fine.filter((s) => !s.leading);
  const before = coarse.findLast((s) => s.t < Math.min(t0, real[0]?.t ?? t0));
  const after = coarse.find((s) => s.t > Math.max(t1, real.at(-1)?.t ?? t1));
  return [before, ...real, after].filter(Boolean);
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Sample[]} samples
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
      wrong.push(x); // NaN and infinity have no height: the line breaks, a red cross says where
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

/** The sample nearest to an instant, within reach. @param {Sample[]} samples @returns {Sample|null} */
export function sampleAt(samples, t, reach) {
  let best = null;
  for (const sample of samples) {
    if (sample.leading || Math.abs(sample.t - t) > reach) continue;
    if (!best || Math.abs(sample.t - t) < Math.abs(best.t - t)) best = sample;
  }
  return best;
}
