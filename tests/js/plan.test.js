import { cover, indices, placeOf, wanted } from "/assets/timeline/plan.js";
import { equal, ok, test } from "./harness.js";

const DURATION = 64 * 1024; // 64 tiles at level 0, one at level 6
const tile = (level, index) => ({ level, index, start: index * 1024 * 2 ** level, end: (index + 1) * 1024 * 2 ** level });
const shelf = (...keys) => {
  const tiles = new Map(keys.map(([level, index]) => [`${level}/${index}`, tile(level, index)]));
  return (level, index) => tiles.get(`${level}/${index}`);
};
const parts = ({ sources }) => sources.map(({ tile: t, from, to }) => [t.level, t.index, from, to]);

test("tiles touched by a window", () => {
  equal(indices(0, 0, 1024, DURATION), [0, 0]);
  equal(indices(0, 1023, 1025, DURATION), [0, 1]);
  equal(indices(0, -5000, 1e9, DURATION), [0, 63]);
  equal(indices(6, 0, DURATION, DURATION), [0, 0]);
});

test("the tiles of a window, from the middle of the view outwards", () => {
  const view = { t0: 10 * 1024, t1: 12 * 1024 };
  equal(wanted(view, view, 0, DURATION).map(({ index }) => index), [10, 11]);
  const around = { t0: 8 * 1024, t1: 14 * 1024 };
  equal(wanted(around, view, 0, DURATION).map(({ index }) => index), [10, 11, 9, 12, 8, 13]);
});

test("every place has a number of its own", () => {
  const places = [[0, 0], [0, 1], [1, 0], [40, 0], [0, 2 ** 43 - 1], [1, 2 ** 42]].map(([level, index]) => placeOf(level, index));
  equal(new Set(places).size, places.length);
  ok(places.every(Number.isSafeInteger), "exact");
});

test("a complete window is drawn from its own level", () => {
  const found = cover(shelf([0, 3], [0, 4]), 0, 3 * 1024 + 5, 4 * 1024 + 5, DURATION, 6);
  ok(found.complete);
  equal(parts(found), [[0, 3, 3072, 4096], [0, 4, 4096, 5120]]);
});

test("a missing tile is drawn from the nearest coarser one, and only there", () => {
  const found = cover(shelf([0, 3], [2, 1], [6, 0]), 0, 3 * 1024, 6 * 1024, DURATION, 6);
  ok(!found.complete);
  equal(parts(found), [[0, 3, 3072, 4096], [2, 1, 4096, 6144]]);
});

test("zooming out shows finer tiles that are here, coarser ones between them", () => {
  const found = cover(shelf([0, 4], [6, 0]), 1, 4 * 1024, 6 * 1024, DURATION, 6);
  equal(parts(found), [[0, 4, 4096, 5120], [6, 0, 5120, 6144]]);
});

test("nothing here, nothing drawn", () => {
  equal(parts(cover(shelf(), 0, 0, 4096, DURATION, 6)), []);
});
