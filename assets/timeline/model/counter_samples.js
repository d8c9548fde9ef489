/**
 * Reads samples of a counter from tiles.
 * @module
 */

/** @typedef {{t: number, min: number, max: number, last: number}} Sample */

/**
 * Returns the samples of one counter in order of time. The value in force at the left edge comes
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
    const low = number ? from : tile.start; // the value in force at the left edge began before it
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
 * Returns the visible samples with one neighbour on each side, so that the line crosses both edges.
 * @param {Sample[]} fine of the window
 * @param {Sample[]} coarse of the whole run
 */
export function withNeighbours(fine, coarse, t0, t1) {
  const real = fine.filter((s) => !s.leading);
  const before = coarse.findLast((s) => s.t < Math.min(t0, real[0]?.t ?? t0));
  const after = coarse.find((s) => s.t > Math.max(t1, real.at(-1)?.t ?? t1));
  return [before, ...real, after].filter(Boolean);
}

/** Returns the sample nearest to an instant, within reach. @param {Sample[]} samples @returns {Sample|null} */
export function sampleAt(samples, t, reach) {
  let best = null;
  for (const sample of samples) {
    if (sample.leading || Math.abs(sample.t - t) > reach) continue;
    if (!best || Math.abs(sample.t - t) < Math.abs(best.t - t)) best = sample;
  }
  return best;
}
