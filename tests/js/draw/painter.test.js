import { Palette, TOKENS } from "/assets/timeline/base/palette.js";
import { Painter } from "/assets/timeline/draw/painter.js";
import { groupsOf, Layout } from "/assets/timeline/model/layout.js";
import { Tile } from "/assets/timeline/tiles/tile.js";
import { equal, ok, test } from "../harness.js";

const LANES = Array.from({ length: 12 }, (_, id) => ({
  id,
  key: `${id}`,
  rank: id >> 2,
  kind: "thread",
  label: `lane ${id}`,
  group: `rank ${id >> 2}`,
  rows: 2,
}));
const NAMES = ["one", "two", "three"];
const PAINTS = { name: Uint32Array.of(0, 1, 2), style: Uint8Array.of(1, 2, 3) };
const PALETTE = new Palette(
  Object.fromEntries(TOKENS.map((token, i) => [token, [40 + 9 * i, 200 - 7 * i, 90 + 5 * i]])),
  NAMES,
);
const layout = new Layout(groupsOf(LANES), new Set(), new Set(), [LANES[5]]);

/** Wide spans, each twice as long as what follows, and short ones next to them. */
const blocks = (lane) =>
  [0, 1].map((row) => {
    const start = Float64Array.from({ length: 40 }, (_, i) => i * 25 + row + lane);
    const bucket = Uint16Array.from({ length: 300 }, (_, i) => i * 3);
    const paint = (n) => Uint8Array.from({ length: n }, (_, i) => (i + lane) % 3);
    return {
      lane,
      row,
      samples: null,
      spans: { n: 40, start, end: start.map((t) => t + 15), paint: paint(40), before: false, after: false },
      dense: { n: 300, bucket, covered: bucket.map((b) => b % 33), paint: paint(300) },
    };
  });
const tile = new Tile(0, 0, 1, PAINTS, new Map(LANES.map(({ id }) => [id, blocks(id)])));

const UNMOVED = new Map();
const frame = (t0, t1, more = {}) => ({
  view: { t0, t1 },
  layout,
  scrollY: 20,
  palette: PALETTE,
  matches: null,
  ticks: [{ t: 300 }, { t: 500 }],
  shaded: [[310, 350, [1, 2, 5]]],
  sources: () => [{ tile, from: tile.start, to: tile.end }],
  whole: () => undefined,
  shifts: UNMOVED,
  ...more,
});

const NO_TIME = -1; // ms; within 0 a clock of coarse steps finds time for several

const painter = () => {
  const made = new Painter(document.createElement("canvas"), NAMES);
  made.resize(640, 300, 1);
  return made;
};
const pixels = ({ context, canvas }) =>
  new Uint32Array(context.getImageData(0, 0, canvas.width, canvas.height).data.buffer);
const different = (a, b) => {
  const other = pixels(b);
  return pixels(a).reduce((n, pixel, i) => n + (pixel !== other[i]), 0);
};

test("lanes drawn one by one are the lanes drawn at once, to the pixel", () => {
  const one = painter();
  one.draw(frame(256, 640));
  one.cost = 1; // no budget covers it
  one.draw(frame(300, 420), NO_TIME);
  ok(one.unfinished, "no time for all");
  let frames = 1;
  for (; one.unfinished; frames += 1) {
    one.cost = 1; // whatever the clock said of the last one
    one.resume(NO_TIME);
  }
  const other = painter();
  other.draw(frame(300, 420));
  ok(!other.unfinished, "time for all");
  ok(frames >= layout.parts(20, 300)[0].items.length, `${frames} frames`);
  equal(different(one, other), 0, "pixels");
  equal(one.stats, other.stats);
  equal(one.labels, other.labels);
  ok(one.labels.length > 0, "names");
});

test("while a view moves on, every lane has its turn", () => {
  const one = painter();
  one.draw(frame(0, 1024));
  one.cost = 1;
  const drawn = new Set();
  for (let t = 1; t < 40; t += 1) {
    one.draw(
      frame(t, 1024 - t, {
        sources: (lane) => {
          drawn.add(lane);
          return [];
        },
      }),
      0,
    );
  }
  const inSight = layout.parts(20, 300).flatMap(({ items }) => items.flatMap(({ lane }) => lane?.id ?? []));
  equal([...drawn].sort(), [...new Set(inSight)].sort());
});

test("another place, theme or height is drawn at once", () => {
  const one = painter();
  const other = new Palette(Object.fromEntries(TOKENS.map((token) => [token, [9, 9, 9]])), NAMES);
  for (const next of [
    frame(0, 2),
    frame(900, 1024),
    frame(900, 1024, { palette: other }),
    frame(900, 1024, { scrollY: 0, palette: other }),
  ]) {
    one.draw(next, 0);
    ok(!one.unfinished, "whole");
    one.cost = 1;
  }
});
