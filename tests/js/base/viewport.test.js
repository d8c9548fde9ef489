import { approach, around, clamp, levelFor, MIN_SPAN, pan, topLevel, zoom } from "/assets/timeline/base/viewport.js";
import { niceStep, ticksFor } from "/assets/timeline/draw/ticks.js";
import { equal, near, ok, test } from "../harness.js";

const RUN = 1e9;

test("a window stays within the run and above the least span", () => {
  equal(clamp({ t0: -50, t1: 50 }, RUN), { t0: 0, t1: 100 });
  equal(clamp({ t0: RUN - 10, t1: RUN + 90 }, RUN), { t0: RUN - 100, t1: RUN });
  equal(clamp({ t0: -5 * RUN, t1: 5 * RUN }, RUN), { t0: 0, t1: RUN });
  const tiny = clamp({ t0: 500, t1: 501 }, RUN);
  equal(tiny.t1 - tiny.t0, MIN_SPAN);
});

test("zoom keeps the instant under the pointer", () => {
  const next = zoom({ t0: 1000, t1: 2000 }, 0.5, 1250, RUN);
  equal(next, { t0: 1125, t1: 1625 });
  near((1250 - next.t0) / (next.t1 - next.t0), 0.25);
});

test("zooming in and out again returns exactly", () => {
  let view = { t0: 123456, t1: 223456 };
  for (let i = 0; i < 8; i += 1) view = zoom(view, 0.5, 150000, RUN);
  for (let i = 0; i < 8; i += 1) view = zoom(view, 2, 150000, RUN);
  near(view.t0, 123456, 1e-6);
  near(view.t1, 223456, 1e-6);
});

test("pan keeps the span, also at the edge", () => {
  equal(pan({ t0: 0, t1: 100 }, -30, RUN), { t0: 0, t1: 100 });
  equal(pan({ t0: 0, t1: 100 }, 30, RUN), { t0: 30, t1: 130 });
});

test("a bucket is one to two pixels wide", () => {
  for (const span of [1000, 12_345, 1e6, 7.7e8]) {
    const level = levelFor(span, 1000, 40);
    const px = (2 ** level / span) * 1000;
    ok(level === 0 || (px >= 1 && px < 2), `level ${level} at span ${span}: ${px} px`);
  }
  equal(levelFor(1e12, 1000, 20), 20);
  equal(topLevel(1024), 0);
  equal(topLevel(1025), 1);
});

test("around leaves room and gliding arrives", () => {
  equal(around(1000, 2000, 0.5, RUN), { t0: 500, t1: 2500 });
  let view = { t0: 0, t1: RUN };
  const goal = { t0: 400, t1: 800 };
  let steps = 0;
  for (let done = false; !done; steps += 1) ({ view, done } = approach(view, goal, 0.34));
  equal(view, goal);
  ok(steps < 60, "gliding ends");
});

test("ruler steps are 1, 2 or 5 times a power of ten", () => {
  equal([0.2, 1, 3, 7, 11, 230].map(niceStep), [1, 1, 5, 10, 20, 500]);
});

test("labels are short near the origin and count from a base far from it", () => {
  const near0 = ticksFor(0, 1000, 1000);
  equal(near0.base, 0);
  equal(near0.ticks[1], { t: 200, label: "0.2 µs" });
  const far = ticksFor(1_204_381_000, 1_204_381_400, 1000);
  ok(far.base > 0 && far.base <= 1_204_381_000, "a base below the window");
  ok(
    far.ticks.every(({ label }) => label.length <= 10),
    `short labels: ${far.ticks.map((t) => t.label)}`,
  );
  equal(far.baseLabel, "1.20435 s +");
});
