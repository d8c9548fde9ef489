import { contrast, MIN_CONTRAST, Palette, STYLE_TOKENS, shadeOf, UNFINISHED } from "/assets/timeline/base/palette.js";
import { drawMarks } from "/assets/timeline/draw/finding_marks.js";
import { Header } from "/assets/timeline/draw/header.js";
import { Painter } from "/assets/timeline/draw/painter.js";
import { groupsOf, Layout } from "/assets/timeline/model/layout.js";
import { Tile } from "/assets/timeline/tiles/tile.js";
import { equal, ok, test } from "../harness.js";
import { themes } from "../themes.js";

/** One name of each shade. */
const NAMES = ["mm", "add", "sum", "relu", "copy", "mul"].filter(
  (name, i, all) => all.findIndex((other) => shadeOf(other) === shadeOf(name)) === i,
);
const DEPTHS = 4;
const SPAN = 100; // ns, and px

/** Every colour that a slice can have: a lane per style, a row per depth, a slice per shade, ended and not. */
const LANES = STYLE_TOKENS.map((token, id) => ({
  id,
  key: token,
  rank: 0,
  kind: "thread",
  label: token,
  group: "rank 0",
  rows: DEPTHS,
}));
const SLICES = 2 * NAMES.length;
const paints = STYLE_TOKENS.flatMap((_, style) =>
  NAMES.flatMap((_, name) => [style, style | UNFINISHED].map((bits) => ({ name, bits }))),
);
const tile = new Tile(
  0,
  0,
  1,
  { name: Uint32Array.from(paints, ({ name }) => name), style: Uint8Array.from(paints, ({ bits }) => bits) },
  new Map(
    LANES.map(({ id }) => [
      id,
      Array.from({ length: DEPTHS }, (_, row) => {
        const start = Float64Array.from({ length: SLICES }, (_, i) => i * SPAN);
        const paint = Uint8Array.from({ length: SLICES }, (_, i) => id * SLICES + i);
        const spans = { n: SLICES, start, end: start.map((t) => t + SPAN), paint, before: false, after: false };
        return { lane: id, row, samples: null, spans, dense: null };
      }),
    ]),
  ),
);
const VIEW = { t0: 0, t1: SLICES * SPAN };
const WIDTH = SLICES * SPAN;

/** Calls `draw`; returns the texts and their least contrast to any pixel behind them, where that is too low. */
function unreadable(context, draw) {
  const found = [];
  let texts = 0;
  const write = context.fillText;
  context.fillText = (text, x, y) => {
    texts += 1;
    const ink = context.fillStyle.match(/\w\w/g).map((part) => Number.parseInt(part, 16)); // #rrggbb if opaque
    const { data } = context.getImageData(x, y - 5, Math.max(context.measureText(text).width, 1), 10);
    let least = 21;
    for (let i = 0; i < data.length; i += 4) least = Math.min(least, contrast(ink, [...data.subarray(i, i + 3)]));
    if (!(least >= MIN_CONTRAST)) found.push(`${text} at ${x},${y}: ${ink} has ${least.toFixed(2)}`);
    write.call(context, text, x, y);
  };
  draw();
  ok(texts > 0, "texts");
  return found;
}

for (const [theme, tokens] of Object.entries(themes)) {
  const palette = new Palette(tokens, NAMES);
  const layout = new Layout(groupsOf(LANES), new Set(), new Set(), []);

  for (const shaded of [[], [[0.3 * VIEW.t1, VIEW.t1, [0]]]]) {
    test(`${theme}: names of slices, ${shaded.length ? "" : "not "}in a region of overlap`, () => {
      const painter = new Painter(document.createElement("canvas"), NAMES);
      painter.resize(WIDTH, layout.height, 1);
      const frame = { view: VIEW, layout, scrollY: 0, palette, matches: null, ticks: [], shaded };
      const sources = () => [{ tile, from: VIEW.t0, to: VIEW.t1 }];
      const failed = unreadable(painter.context, () =>
        painter.draw({ ...frame, sources, whole: () => undefined, shifts: new Map() }, Infinity),
      );
      equal(painter.stats.texts, LANES.filter(({ key }) => key !== "ink").length * DEPTHS * SLICES, "names");
      equal(failed, []);
    });
  }

  test(`${theme}: ruler and steps, in a range, under notes`, () => {
    const header = new Header(document.createElement("canvas"));
    header.resize(WIDTH, 1);
    const whole = { t0: 0, t1: VIEW.t1 };
    const ruler = { base: 0, ticks: Array.from({ length: 8 }, (_, i) => ({ t: i * SPAN + 50, label: `${i} ms` })) };
    const steps = [
      [0, 0, 3 * SPAN],
      [1, 3 * SPAN, VIEW.t1],
    ];
    const frame = { view: VIEW, duration: VIEW.t1, palette, ruler, steps, shaded: [], hits: {}, activityKey: theme };
    const activity = () => STYLE_TOKENS.map(() => new Float32Array(WIDTH));
    for (const [range, notes] of [
      [null, []],
      [whole, []],
      [null, [whole]],
      [whole, [whole]],
    ]) {
      const failed = unreadable(header.context, () => header.draw({ ...frame, activity, range, notes, hover: null }));
      equal(failed, []);
    }
  });

  test(`${theme}: words on the cause of a finding`, () => {
    const context = new OffscreenCanvas(WIDTH, layout.height).getContext("2d");
    const marks = [false, true].map((missing, lane) => ({ lane, ...VIEW, words: "rank 2 is late", missing }));
    const failed = unreadable(context, () =>
      drawMarks(context, marks, { view: VIEW, layout, scrollY: 0, width: WIDTH, palette }),
    );
    equal(failed, []);
  });
}
