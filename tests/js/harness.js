/**
 * As much of a test framework as these tests need: named tests, deep comparison, one report.
 * @module
 */

const tests = [];

/** @param {string} name @param {() => void|Promise<void>} run */
export const test = (name, run) => tests.push({ name, run });

const text = (value) =>
  JSON.stringify(value, (_, v) => {
    if (ArrayBuffer.isView(v)) return [...v].map(plain);
    if (v instanceof Map) return { map: [...v] };
    if (v instanceof Set) return { set: [...v] };
    return plain(v);
  });
const plain = (v) => (typeof v === "number" && !Number.isFinite(v) ? String(v) : v);

export function equal(found, expected, what = "") {
  const [a, b] = [text(found), text(expected)];
  if (a !== b) throw new Error(`${what || "values"} differ\n  found    ${a}\n  expected ${b}`);
}

export function near(found, expected, tolerance = 1e-6) {
  if (!(Math.abs(found - expected) <= tolerance))
    throw new Error(`found ${found}, expected ${expected} ± ${tolerance}`);
}

export function ok(condition, what = "condition") {
  if (!condition) throw new Error(`${what} does not hold`);
}

export function throws(run, pattern) {
  try {
    run();
  } catch (error) {
    if (!pattern.test(error.message))
      throw new Error(`message ${JSON.stringify(error.message)} does not match ${pattern}`);
    return;
  }
  throw new Error("nothing was thrown");
}

/** Runs a file of tests. @param {string} address @returns {Promise<{name: string, error: string}[]>} */
export async function report(address) {
  await import(address);
  const results = [];
  for (const { name, run } of tests) {
    let error = "";
    try {
      await run();
    } catch (thrown) {
      error = `${thrown.message}\n${thrown.stack}`;
    }
    results.push({ name, error });
  }
  return results;
}
