/**
 * Formats numbers: 3 to 4 significant digits, always a unit, ns to s by size, a thin space between
 * thousands.
 * @module
 */

const THIN = "\u2009";
const TIME_UNITS = [
  ["ns", 1],
  ["µs", 1e3],
  ["ms", 1e6],
  ["s", 1e9],
];
const BYTE_UNITS = [
  ["B", 1],
  ["kB", 1e3],
  ["MB", 1e6],
  ["GB", 1e9],
  ["TB", 1e12],
];

/**
 * Formats an integer with a thin space every three digits.
 * @param {number|string} value integer, or its decimal digits if it exceeds 2^53
 * @returns {string}
 */
export function count(value) {
  const digits = String(typeof value === "number" ? Math.round(value) : value);
  return digits.replace("-", "−").replace(/\B(?=(\d{3})+(?!\d))/g, THIN);
}

/** Returns `digits` significant digits, at least all before the point, without padding zeros. */
function significant(value, digits) {
  const magnitude = Math.abs(value);
  if (magnitude >= 10 ** digits) return count(value);
  const text = value.toPrecision(digits);
  const exact = String(Number(text));
  return Number(text) === value && exact.length < text.length ? exact : text;
}

/** Scales to the largest unit whose rounded value is at least 1. */
function scaled(value, units, digits) {
  const magnitude = Math.abs(value);
  let i = 0;
  while (i + 1 < units.length && Number((magnitude / units[i][1]).toPrecision(digits)) >= units[i + 1][1] / units[i][1])
    i += 1;
  return `${significant(value / units[i][1], digits).replace("-", "−")} ${units[i][0]}`;
}

/**
 * Formats a duration: `413 µs`, `3.91 ms`, `0 ns`.
 * @param {number} ns nanoseconds
 * @param {number} [digits] significant digits
 * @returns {string}
 */
export function duration(ns, digits = 3) {
  return ns === 0 ? "0 ns" : scaled(ns, TIME_UNITS, digits);
}

/**
 * Formats a size: `1.5 MB`; powers of ten, as storage is sold and Parquet reported.
 * @param {number} value bytes
 * @returns {string}
 */
export function bytes(value) {
  return scaled(value, BYTE_UNITS, 3);
}

/**
 * Formats a share as percent with three significant digits: `7.8 %`, `100 %`, `0.052 %`.
 * @param {number} share 0..1
 * @returns {string}
 */
export function percent(share) {
  const value = share * 100;
  if (value === 0) return "0 %";
  if (value < 0.001) return "< 0.001 %";
  return `${Number(value.toPrecision(3))} %`;
}

/**
 * Formats an instant to the nanosecond: `1.204 381 620 s`. Takes digits, so that no bit is lost.
 * @param {number|string} ns integer nanoseconds
 * @returns {string}
 */
export function instant(ns) {
  const text = typeof ns === "number" ? String(Math.round(ns)) : ns;
  const negative = text.startsWith("-");
  const digits = text.replace("-", "").padStart(10, "0");
  const whole = count(digits.slice(0, -9));
  const parts = digits.slice(-9).match(/\d{3}/g).join(THIN);
  return `${negative ? "−" : ""}${whole}.${parts} s`;
}

/**
 * Formats a number without unit, such as a gradient norm or a ratio.
 * @param {number} value
 * @param {number} [digits] significant digits
 * @returns {string}
 */
export function number(value, digits = 4) {
  if (value === 0) return "0";
  if (!Number.isFinite(value)) return String(value);
  const magnitude = Math.abs(value);
  if (magnitude >= 1e6 || magnitude < 1e-3) {
    const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
    return `${Number(mantissa)}e${Number(exponent)}`.replaceAll("-", "−");
  }
  return significant(value, digits).replace("-", "−");
}

/** Formats a counter's value with its unit. @param {number} value @param {string} unit @param {number} [digits] */
export function measured(value, unit, digits = 4) {
  if (unit === "B") return bytes(value);
  if (unit === "ns") return duration(value, digits);
  return [number(value, digits), unit].filter(Boolean).join(" ");
}
