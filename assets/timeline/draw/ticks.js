/**
 * Computes the ruler's ticks and their labels.
 * @module
 */

import { duration as formatDuration } from "../base/format.js";

const UNITS = [
  ["s", 1e9],
  ["ms", 1e6],
  ["µs", 1e3],
  ["ns", 1],
];

/** Rounds up to 1, 2 or 5 times a power of ten, at least 1. */
export function niceStep(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  for (const factor of [1, 2, 5, 10]) {
    if (factor * power >= value * (1 - 1e-9)) return Math.max(1, factor * power);
  }
  return 10 * power;
}

/**
 * Returns the ticks of a window. Far from the origin labels would need too many digits, so they count
 * from a base that is shown once beside the ruler.
 * @param {number} t0 ns
 * @param {number} t1 ns
 * @param {number} width px
 * @param {number} apart least distance between labels, px
 * @returns {{step: number, base: number, baseLabel: string, ticks: {t: number, label: string}[]}}
 */
export function ticksFor(t0, t1, width, apart = 104) {
  const span = Math.max(t1 - t0, 1);
  const step = niceStep((span / Math.max(width, 1)) * apart);
  let base = 0;
  if (t1 / step >= 1e4) {
    const grain = step * 1000;
    base = Math.floor(t0 / grain) * grain;
  }
  const largest = Math.max(t1 - base, step);
  const [unit, size] = UNITS.find(([, s]) => largest >= s) ?? UNITS[3];
  const decimals = Math.max(0, -Math.floor(Math.log10(step / size) + 1e-9));
  const ticks = [];
  for (let k = Math.ceil((t0 - base) / step); ; k += 1) {
    const t = base + k * step;
    if (t > t1) break;
    ticks.push({ t, label: `${((k * step) / size).toFixed(decimals)} ${unit}` });
  }
  return { step, base, baseLabel: base ? `${exactDuration(base)} +` : "", ticks };
}

/** Formats a base, a round number, with all its digits in the largest readable unit. */
function exactDuration(ns) {
  const [unit, size] = UNITS.find(([, s]) => ns >= s) ?? UNITS[3];
  const text = String(Number((ns / size).toPrecision(15)));
  return text.length > 16 ? formatDuration(ns) : `${text} ${unit}`;
}
