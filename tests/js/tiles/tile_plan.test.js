import { cover, indices, placeOf, wanted } from "/assets/timeline/tiles/tile_plan.js";
import { equal, ok, test } from "../harness.js";

const DURATION = 64 * 1024; // 64 tiles at level 0, one at level 6
const tile = (level, index) => ({
  level,
  index,
  start: index * 1024 * 2 ** level,
  end: (index + 1) * 1024 * 2 ** level,
});
const shelf = (...keys) => {
  const tiles = new Map(keys.map(([level, index]) => [`${level}/${index}`, tile(level, index)]));
  return (level, part) => tiles.get(`${level}/${Math.floor(part / 8)}`);
};
const parts = ({ sources }) => sources.map(({ tile: t, from, to }) => [t.level, t.index, from, to]);

test("parts of tiles touched by a window", () => {
  equal(indices(0, 0, 1024, DURATION), [0, 7]);
  equal(indices(0, 1023, 1025, DURATION), [7, 8]);
  equal(indices(0, -5000, 1e9, DURATION), [0, 64 * 8 - 1]);
  equal(indices(6, 0, DURATION, DURATION), [0, 7]);
});

test("the tiles of a window, from the middle of the view outwards", () => {
  const view = { t0: 10 * 1024, t1: 12 * 1024 };
  const from = (...asked) => wanted(...asked).map((one) => one.from / 8);
  equal(from(view, view, 0, DURATION), [10, 11]);
  const around = { t0: 8 * 1024, t1: 14 * 1024 };
  equal(from(around, view, 0, DURATION), [10, 11, 9, 12, 8, 13]);
});

test("of a tile only the parts that the window touches, or all", () => {
  const view = { t0: 10 * 1024 + 130, t1: 11 * 1024 + 1 };
  equal(wanted(view, view, 0, DURATION), [
    { level: 0, from: 81, to: 88 },
    { level: 0, from: 88, to: 89 },
  ]);
  equal(wanted(view, view, 0, DURATION, true), [
    { level: 0, from: 80, to: 88 },
    { level: 0, from: 88, to: 96 },
  ]);
});

test("every place has a number of its own", () => {
  const places = [
    [0, 0],
    [0, 1],
    [1, 0],
    [40, 0],
    [0, 2 ** 46 - 1],
    [1, 2 ** 45],
  ].map(([level, index]) => placeOf(level, index));
  equal(new Set(places).size, places.length);
  ok(places.every(Number.isSafeInteger), "exact");
});

test("a complete window is drawn from its own level", () => {
  const found = cover(shelf([0, 3], [0, 4]), 0, 3 * 1024 + 5, 4 * 1024 + 5, DURATION, 6);
  ok(found.complete);
  equal(parts(found), [
    [0, 3, 3072, 4096],
    [0, 4, 4096, 4224],
  ]);
});

test("a missing tile is drawn from the nearest coarser one, and only there", () => {
  const found = cover(shelf([0, 3], [2, 1], [6, 0]), 0, 3 * 1024, 6 * 1024, DURATION, 6);
  ok(!found.complete);
  equal(parts(found), [
    [0, 3, 3072, 4096],
    [2, 1, 4096, 6144],
  ]);
});

test("zooming out shows finer tiles that are here, coarser ones between them", () => {
  const found = cover(shelf([0, 4], [6, 0]), 1, 4 * 1024, 6 * 1024, DURATION, 6);
  equal(parts(found), [
    [0, 4, 4096, 5120],
    [6, 0, 5120, 6144],
  ]);
});

test("nothing here, nothing drawn", () => {
  equal(parts(cover(shelf(), 0, 0, 4096, DURATION, 6)), []);
});
