import { Idle } from "/assets/timeline/base/idle.js";
import { samplesOf, withNeighbours } from "/assets/timeline/model/counter_samples.js";
import { hitRow } from "/assets/timeline/model/hit_test.js";
import { Picker } from "/assets/timeline/model/pick.js";
import { factsOf } from "/assets/timeline/model/span_panel.js";
import { wordsFor } from "/assets/timeline/panels/tooltip.js";
import { equal, ok, test } from "../harness.js";
import { dense, spans, tileOf } from "../tiles/made.js";

const row = { lane: { id: 0, kind: "thread" }, row: 0, y: 0, h: 16 };

test("the span at a point, or the nearest within reach", () => {
  const tile = tileOf({
    spans: spans([
      [10, 20, 0],
      [30, 31, 3],
    ]),
  });
  const sources = [{ tile, from: 0, to: 1024 }];
  equal(hitRow(sources, row, 15, 1).name, 0);
  const near = hitRow(sources, row, 33, 1);
  equal([near.name, near.style, near.unfinished, near.ref], [3, 1, true, -1]);
  equal(hitRow(sources, row, 50, 1), null);
});

test("a crowded bucket says how many and the longest, once that is known", async () => {
  const sources = [{ tile: tileOf({ dense: dense([[2, 23]]) }, 4), from: 0, to: 1024 * 16 }];
  const hit = hitRow(sources, row, 40, 1);
  equal([hit.kind, hit.count, hit.ref, hit.start, hit.end], ["dense", undefined, -1, 32, 48]);
  const lane = { rank: 0, label: "main", unit: "" };
  ok(wordsFor(hit, ["a", "aten::mm"], lane).lines[0].includes("51.7 %"), "the share as drawn");
  const asked = [];
  const get = (address) => {
    asked.push(address);
    return Promise.resolve({ ref: 9, count: 5, covered_ns: 8, start_ns: 33, end_ns: 36 });
  };
  const idle = new Idle();
  const picker = new Picker("run", idle, () => {}, get);
  equal(picker.of(hit).exact, false);
  picker.of(hit);
  await idle.settled();
  equal(asked, ["/api/look/run/0?row=0&t0=32&t1=48&shorter=16"]);
  const exact = picker.of(hit);
  equal([exact.ref, exact.count, exact.covered, exact.start], [9, 5, 0.5, 32]);
  const words = wordsFor(exact, ["a", "aten::mm"], lane);
  equal(words.title, "aten::mm");
  ok(words.lines[0].includes("5 slices") && words.lines[0].includes("50 %"), words.lines[0]);
  await picker.ask(hit);
  equal(asked.length, 1);
});

test("a wide span is requested by its middle, and then exact", async () => {
  const get = (address) => Promise.resolve({ ref: 4, start_ns: 11, end_ns: 21, address });
  const picker = new Picker("run", new Idle(), () => {}, get);
  const hit = hitRow([{ tile: tileOf({ spans: spans([[10, 20]]) }), from: 0, to: 1024 }], row, 15, 1);
  equal(picker.address(hit), "/api/look/run/0?row=0&t0=15&t1=16");
  const exact = await picker.ask(hit);
  equal([exact.ref, exact.start, exact.end, exact.exact], [4, 11, 21, true]);
});

test("counter samples, with the neighbours that the line comes from and goes to", () => {
  const samples = {
    n: 3,
    leading: true,
    bucket: Uint16Array.of(0, 10, 20),
    min: Float32Array.of(1, 2, 3),
    max: Float32Array.of(1, 2, 3),
    last: Float32Array.of(1, 2, 3),
  };
  const found = samplesOf([{ tile: tileOf({ samples }), from: 0, to: 1024 }], 0);
  equal(
    found.map((s) => [s.t, s.last, s.leading]),
    [
      [0, 1, true],
      [10.5, 2, false],
      [20.5, 3, false],
    ],
  );
  const coarse = [5, 10.5, 20.5, 900].map((t) => ({ t, min: 0, max: 0, last: 0 }));
  equal(
    withNeighbours(found, coarse, 8, 30).map((s) => s.t),
    [5, 10.5, 20.5, 900],
  );
});

test("all facts about a span are listed, none twice", () => {
  const facts = factsOf({
    name: "aten::mm",
    start_ns: "1204381620",
    duration_ns: "412600",
    self_ns: "38100",
    step: 41,
    phase: "backward",
    module: "blocks.3",
    shapes: "[4, 8]",
    dtypes: "float32",
    device: "cpu",
    sequence: 12345,
    stack: [],
    lane: 1,
    row: 2,
    ref: 3,
    style: "backward",
    drawn: [0, 1],
    novel: "x",
  });
  const table = Object.fromEntries(facts);
  equal(table.duration, "412.6 µs (self 38.1 µs)");
  equal(table["step · phase"], "41 · backward");
  equal(table.novel, "x");
  equal(facts.length, new Set(facts.map(([label]) => label)).size);
  equal(
    Object.fromEntries(factsOf({ duration_ns: null, unfinished: true })).duration,
    "still running when the recording ended",
  );
});
