/**
 * What of an address cannot be used, in words. Pure.
 * @module
 */

const TIMES = "two times in ns, as in 0-1000";
const NUMBERS = "numbers, as in 0-3.7";
const LIST = /^(\d+(-\d+)?(\.\d+(-\d+)?)*)?$/;
const span = (text) => {
  const [t0, t1] = (/^\d+-\d+$/.test(text) ? text : "0-0").split("-").map(Number);
  return t1 > t0;
};
const is = (pattern) => (text) => pattern.test(text);

/** Parts of the address of each page, and of the timeline alone: the test of a value, and its form in words. */
const SHARED = {
  rank: [is(/^\d{1,15}$/), "a number"],
  step: [is(/^\d{1,15}$/), "a number"],
  t: [span, TIMES],
  theme: [is(/^(light|dark)$/), "light or dark"],
};
const OF_LANES = {
  range: [span, TIMES],
  sel: [is(/^\d+\.\d+\.\d+$/), "lane, row and slice, as in 3.0.12"],
  finding: [is(/^\d{1,6}$/), "a number"],
  overlaps: [is(/^1$/), "1"],
  y: [is(/^\d+$/), "a number"],
  ...Object.fromEntries(["closed", "open", "pin", "ranks", "order"].map((name) => [name, [is(LIST), NUMBERS]])),
};
const MOST = 40; // characters of a value that are quoted

/**
 * Returns the parts that cannot be used, each with the reason.
 * @param {string} search of the address, with or without `?`
 * @param {{ranks: number[], steps: number[], lanes: {rank: number, thread?: string}[], duration: number}} run
 *   `lanes`: none where they come in pages
 * @param {boolean} onTimeline
 * @returns {string[]}
 */
export function faultsOf(search, run, onTimeline) {
  const get = new URLSearchParams(search);
  const faults = [];
  const fault = (name, why) => {
    const value = get.get(name);
    faults.push(`${name}=${value.length > MOST ? `${value.slice(0, MOST)}…` : value} (${why})`);
  };
  for (const [name, [fits, expected]] of Object.entries(onTimeline ? { ...SHARED, ...OF_LANES } : SHARED)) {
    if (!get.has(name)) continue;
    const value = get.get(name);
    const why = fits(value) ? absent(name, value, run) : `expected ${expected}`;
    if (why) fault(name, why);
  }
  const { rank, thread } = Object.fromEntries(get);
  if (thread && rank === undefined) fault("thread", "expected with its rank");
  const known = run.lanes.filter((lane) => lane.rank === Number(rank));
  if (thread && known.length && !known.some((lane) => lane.thread === thread)) fault("thread", `not of rank ${rank}`);
  if (onTimeline && get.has("at")) fault("at", "no slice begins there");
  return faults;
}

/** Why a value of the right form is not of the run; empty: it is. */
function absent(name, value, { ranks, steps, duration }) {
  const [first] = value.split("-").map(Number);
  if (name === "rank" && !ranks.includes(first)) return `the run has ${among("rank", ranks)}`;
  if (name === "step" && !steps.includes(first)) return `the run has ${among("step", steps)}`;
  return ["t", "range"].includes(name) && first >= duration ? "after the end of the run" : "";
}

/** Returns `ranks 0–3`. @param {string} word @param {number[]} numbers ascending */
function among(word, numbers) {
  if (numbers.length < 2) return numbers.length ? `${word} ${numbers[0]} only` : `no ${word}s`;
  const gaps = numbers.at(-1) - numbers[0] >= numbers.length;
  return `${word}s ${numbers[0]}–${numbers.at(-1)}${gaps ? ", with gaps" : ""}`;
}
