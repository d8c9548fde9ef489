import { format, parse } from "/assets/timeline/base/address.js";
import { debounced, Idle } from "/assets/timeline/base/idle.js";
import { activity, firstEnding } from "/assets/timeline/draw/header.js";
import { processOf } from "/assets/timeline/draw/labels.js";
import { Labeller } from "/assets/timeline/draw/span_text.js";
import { keyOf, keyText } from "/assets/timeline/input/commands.js";
import { samplesOf, withNeighbours } from "/assets/timeline/model/counter_samples.js";
import { hitRow } from "/assets/timeline/model/hit_test.js";
import { arrange, asListed, laneFilter, moved } from "/assets/timeline/model/lane_order.js";
import { Picker } from "/assets/timeline/model/pick.js";
import { factsOf } from "/assets/timeline/model/span_panel.js";
import { matching } from "/assets/timeline/panels/command_bar.js";
import { match, stepAsked } from "/assets/timeline/panels/search.js";
import { wordsFor } from "/assets/timeline/panels/tooltip.js";
import { TileCache } from "/assets/timeline/tiles/cache.js";
import { decode, Tile, VERSION } from "/assets/timeline/tiles/tile.js";
import { equal, ok, test } from "./harness.js";

const VIEW = {
  place: { rank: 2, thread: "7/0 a", step: 4 },
  window: { t0: 1200, t1: 3400 },
  selected: { lane: 3, row: 1, ref: 77 },
  range: { t0: 1500, t1: 1600 },
  collapsed: [1, 2],
  expanded: [4],
  query: "a b&c=d /",
  scrollY: 120,
  theme: "dark",
  finding: 5,
  overlaps: true,
  of: "/mul|add/",
  lanes: { pins: [3, 1], groupOrder: [1, 0], laneOrder: [5, 4, 3], filter: "rank 1 -gloo", by: "host" },
};

test("the address holds the view and gives it back", () => {
  equal(parse(format(VIEW)), VIEW);
  equal(format(parse("")), "");
});

test("nonsense in the address is ignored", () => {
  const view = parse("?t=9-3&sel=1.x&range=abc&closed=1.foo.2&theme=pink&y=-4");
  equal(
    [view.window, view.selected, view.range, view.collapsed, view.theme, view.scrollY],
    [null, null, null, [1, 2], "", 0],
  );
  equal([parse("").collapsed, parse("?closed=").collapsed, format(parse("?closed="))], [null, [], "?closed="]);
});

const LANES = [0, 1, 2, 10].map((rank, id) => ({
  id,
  rank,
  kind: "thread",
  label: id % 2 ? "evaluator" : "main",
  title: `train.py 41${id}`,
  pid: 410 + id,
}));
const GROUPS = LANES.map((lane) => ({ index: lane.id, name: `rank ${lane.rank}`, lanes: [lane] }));
const BY_ID = new Map(LANES.map((lane) => [lane.id, lane]));
const shownBy = (wish) => arrange(GROUPS, BY_ID, { ...asListed(), ...wish });

test("lanes are filtered by rank, process, thread and name", () => {
  const kept = (text) => LANES.filter(laneFilter(text)).map((lane) => lane.id);
  equal(kept("rank 1"), [1]);
  equal(kept("eval"), [1, 3]);
  equal(kept("-eval"), [0, 2]);
  equal(kept("pid 412"), [2]);
  equal(kept("/rank (0|10)/"), [0, 3]);
  equal(kept("/(/"), [0, 1, 2, 3]);
});

test("lanes are pinned, ordered and left out as wished", () => {
  const { groups, pinned } = shownBy({ pins: [2], groupOrder: [3, 0], filter: "main" });
  equal(
    pinned.map((lane) => lane.id),
    [2],
  );
  equal(
    groups.map((group) => group.index),
    [0],
  );
  equal(
    shownBy({ groupOrder: [3, 0] }).groups.map((group) => group.index),
    [3, 0, 1, 2],
  );
  equal(moved([1, 2, 3], 3, 1), [3, 1, 2]);
  equal(moved([1, 2, 3], 1, null), [2, 3, 1]);
});

test("keys are written one way, however they are held", () => {
  const press = (key, held = {}) =>
    keyOf({ key, ctrlKey: false, metaKey: false, altKey: false, shiftKey: false, ...held });
  equal(press("w"), "w");
  equal(press("W"), "w");
  equal(press("A", { shiftKey: true }), "Shift+a");
  equal(press("?", { shiftKey: true }), "?");
  equal(press("k", { metaKey: true }), "Control+k");
  equal(press("ArrowUp", { altKey: true }), "Alt+ArrowUp");
  equal(keyText("Shift+ArrowUp"), "Shift + ↑");
});

test("the palette finds by words, beginnings first", () => {
  const entries = ["Close all", "Zoom out", "All lanes"].map((title) => ({
    title,
    group: "Lanes",
    keys: [],
    run: () => {},
  }));
  equal(
    matching(entries, "all").map((entry) => entry.title),
    ["All lanes", "Close all"],
  );
  equal(
    matching(entries, "lanes zo").map((entry) => entry.title),
    ["Zoom out"],
  );
  equal(matching(entries, "nothing"), []);
});

test("search: part of a name in any case, or a regular expression", () => {
  const names = ["aten::mm", "aten::addmm", "Backward", "forward"];
  equal(match(names, " "), null);
  equal(match(names, "MM").ids, [0, 1]);
  equal([...match(names, "/^b|d$/").flags], [0, 0, 1, 1]);
  equal(match(names, "/(/").error, "not a regular expression");
  const long = match(names, "MM > 1.5 ms");
  equal([long.ids, long.least, long.most, long.narrowed], [[0, 1], 1.5e6, undefined, true]);
  const narrow = match(names, "aten::mm in BLOCKS.0 rank 2 > 10 ms", ["blocks.0.mlp", "", "head"]);
  equal([narrow.ids, narrow.within, narrow.ranks, narrow.least], [[0], [0], [2], 1e7]);
  equal([match(names, "rank 12").ids.length, match(names, "rank 12").ranks], [4, [12]]);
  equal([match(names, "spin a").within, match(names, "/a in b/").narrowed], [undefined, true]);
  equal(match(names, "< 20us").most, 20_000);
  equal(match(names, "a > b").narrowed, false);
  equal(match(names, "aten::mm >= 10ms").least, 1e7);
  equal(["step 7", " Step 12 of rank 2", "step", "steps 7"].map(stepAsked), [
    { step: 7, rank: null },
    { step: 12, rank: 2 },
    null,
    null,
  ]);
});

test("names are shown in full, without namespace, shortened, or not", () => {
  const labeller = new Labeller((text) => text.length * 6, ["aten::native_layer_norm"]);
  equal(labeller.fit(0, 200), "aten::native_layer_norm");
  equal(labeller.fit(0, 120), "native_layer_norm");
  equal(labeller.fit(0, 60), "native_…");
  equal(labeller.fit(0, 20), "");
});

test("a process in few words", () => {
  equal(processOf("train.py 4120 on node-a, main thread 4120"), "node-a · pid 4120");
  equal(processOf("process 7"), "pid 7");
});

const PAINTS = { name: Uint32Array.from([0, 1, 2, 3]), style: Uint8Array.from([1, 2, 3, 0x81]) };
const spans = (rows) => ({
  n: rows.length,
  start: Float64Array.from(rows, (r) => r[0]),
  end: Float64Array.from(rows, (r) => r[1]),
  paint: Uint8Array.from(rows, (r) => r[2] ?? 0),
  before: false,
  after: false,
});
const dense = (rows) => ({
  n: rows.length,
  bucket: Uint16Array.from(rows, (r) => r[0]),
  covered: Uint8Array.from(rows, (r) => r[1]),
  paint: Uint8Array.from(rows, () => 1),
});
const tileOf = (block, level = 0) =>
  new Tile(
    level,
    0,
    1,
    PAINTS,
    new Map([[0, [{ lane: 0, row: 0, spans: null, dense: null, samples: null, ...block }]]]),
  );
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

test("activity of the strip is the covered share per pixel", () => {
  const block = { spans: spans([[0, 512, 0]]), dense: dense([[600, 32]]) };
  const shares = activity([{ lane: 0, tile: tileOf(block) }], 1024, 1024);
  equal([shares[1][0], shares[1][511], shares[1][512], shares[2][600]], [1, 1, 0, 1]);
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

test("first step that has not ended", () => {
  const steps = [
    [0, 0, 10],
    [1, 10, 20],
    [2, 20, 30],
  ];
  equal(
    [0, 10, 15, 99].map((t) => firstEnding(steps, t)),
    [0, 1, 1, 3],
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

test("idle waits for what begins a frame after work elsewhere has ended", async () => {
  let elsewhere = true;
  const idle = new Idle(() => elsewhere);
  let settled = false;
  const done = idle.settled().then(() => {
    settled = true;
  });
  await new Promise(requestAnimationFrame);
  elsewhere = false;
  const begun = new Promise((resolve) => requestAnimationFrame(() => resolve(idle.begin("a"))));
  const end = await begun;
  for (let frame = 0; frame < 4; frame++) await new Promise(requestAnimationFrame);
  ok(!settled, "what followed has not ended");
  end();
  await done;
});

test("idle waits for pending work, also for work that began later", async () => {
  const idle = new Idle();
  const end = idle.begin("a");
  let settled = false;
  const done = idle.settled().then(() => {
    settled = true;
  });
  await new Promise(requestAnimationFrame);
  ok(!settled, "still busy");
  const second = idle.begin("b");
  end();
  end(); // ending twice counts once
  await new Promise(requestAnimationFrame);
  equal(idle.busy, ["b"]);
  second();
  await done;
  ok(settled);
});

test("debounced runs once, with the last arguments, and is busy until then", async () => {
  const idle = new Idle();
  const calls = [];
  const call = debounced(idle, "pause", 5, (x) => calls.push(x));
  call(1);
  call(2);
  equal(idle.busy, ["pause"]);
  await idle.settled();
  equal(calls, [2]);
});

function emptyTile(level) {
  const header = new ArrayBuffer(80);
  const view = new DataView(header);
  view.setUint32(0, 0x4c54534c, true);
  view.setUint16(4, VERSION, true);
  view.setUint16(6, 80, true);
  view.setUint32(28, 1, true);
  view.setInt32(8, level, true);
  return header;
}

function cacheWith(fetcher, limit = 1e9) {
  const idle = new Idle();
  const failures = [];
  const cache = new TileCache({
    address: ({ level, from, to, lanes }) => `/${level}/${from}-${to}/${lanes.join()}`,
    decode: (buffer) => decode(buffer, PAINTS),
    top: 9,
    idle,
    changed: () => {},
    failed: (m) => failures.push(m),
    fetcher,
    limit,
  });
  return { cache, idle, failures };
}
const answer = (address = "/0") =>
  Promise.resolve({ ok: true, arrayBuffer: () => Promise.resolve(emptyTile(Number(address.split("/")[1]))) });
/** A cache that gets its tiles at once, and the addresses that it asks for. */
const listening = () => {
  const asked = [];
  return {
    asked,
    ...cacheWith((address) => {
      asked.push(address);
      return answer(address);
    }),
  };
};
const key = (part) => ({ level: 0, from: part, to: part + 1, lanes: [0] });

test("tiles are fetched once, a few at a time, in order", async () => {
  const asked = [];
  let flying = 0;
  let most = 0;
  const { cache, idle } = cacheWith(async (address) => {
    asked.push(address);
    flying += 1;
    most = Math.max(most, flying);
    await new Promise(requestAnimationFrame);
    flying -= 1;
    return answer();
  });
  cache.want([...Array(10).keys()].map(key));
  await idle.settled();
  cache.want([...Array(10).keys()].map(key));
  await idle.settled();
  equal(
    asked,
    [...Array(10).keys()].map((i) => `/0/${i}-${i + 1}/0`),
  );
  ok(most <= 6, `${most} at once`);
});

test("requests no longer wanted are aborted and forgotten", async () => {
  const aborted = [];
  const { cache, idle } = cacheWith(
    (address, { signal }) =>
      new Promise((resolve, reject) => {
        signal.addEventListener("abort", () => {
          aborted.push(address);
          reject(new DOMException("", "AbortError"));
        });
        if (address === "/0/5-6/0") answer().then(resolve);
      }),
  );
  cache.want([key(1), key(2)]);
  cache.want([key(5)]);
  await idle.settled();
  equal(aborted, ["/0/1-2/0", "/0/2-3/0"]);
  ok(cache.get(0, 5, 0) && !cache.get(0, 1, 0));
  equal(cache.stats.failures, 0);
});

test("a request asks only for the lanes that are neither here nor on their way", async () => {
  const { cache, idle, asked } = listening();
  cache.want([{ level: 0, from: 1, to: 2, lanes: [3, 4] }]);
  cache.want([{ level: 0, from: 1, to: 2, lanes: [4, 5] }]);
  await idle.settled();
  cache.want([{ level: 0, from: 1, to: 2, lanes: [...Array(20).keys()] }]);
  await idle.settled();
  equal(asked[1], "/0/1-2/5");
  equal(asked[2], "/0/1-2/0,1,2,6,7,8,9,10,11,12,13,14,15,16,17,18");
  equal(asked[3], "/0/1-2/19");
  equal(cache.stats.aborted, 0);
});

test("a request asks only for the parts that are missing, of many in one", async () => {
  const { cache, idle, asked } = listening();
  const want = async (from, to, lanes) => {
    cache.want([{ level: 0, from, to, lanes }]);
    await idle.settled();
  };
  await want(2, 4, [0, 1]);
  await want(1, 6, [0, 2]); // of lane 0 the middle is here: asked for with its neighbours
  equal(asked, ["/0/2-4/0,1", "/0/1-6/0,2"]);
  await want(1, 8, [0, 1]);
  equal(asked.slice(2), ["/0/6-8/0", "/0/1-8/1"]);
  ok(cache.get(0, 2, 0) === cache.get(0, 5, 0), "one answer for its parts");
  equal(cache.stats.aborted, 0);
});

test("the least recently used tiles go first, the whole-run level stays", async () => {
  const { cache, idle } = cacheWith((address) => answer(address), 100 * 3);
  const load = async (keys) => {
    cache.want(keys);
    await idle.settled();
  };
  await load([{ level: 9, from: 0, to: 1, lanes: [0] }]);
  await load([key(1)]);
  await load([key(2)]);
  await load([key(3)]);
  ok(cache.get(9, 0, 0), "whole run kept");
  ok(cache.get(0, 3, 0) && !cache.get(0, 1, 0), "the oldest is gone");
});

test("a failure is reported as a message", async () => {
  const { cache, idle, failures } = cacheWith(() =>
    Promise.resolve({ ok: false, status: 409, json: () => Promise.resolve({ error: "reload the page" }) }),
  );
  cache.want([key(1)]);
  await idle.settled();
  equal(failures, ["reload the page"]);
});
