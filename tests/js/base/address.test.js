import { format, parse } from "../../../assets/timeline/base/address.js";
import { equal, test } from "../harness.js";

const closed = (collapsed) => format({ ...parse(""), collapsed });

test("closed groups are in the address as stretches", () => {
  equal(closed([4, 0, 1, 2, 3, 9, 11, 12]), "?closed=0-4.9.11.12");
  equal(parse("?closed=0-4.9.11.12").collapsed, [0, 1, 2, 3, 4, 9, 11, 12]);
  equal(closed([]), "?closed=");
  equal(parse(closed([])).collapsed, []);
});

test("a list that never ends is cut", () => {
  equal(parse("?closed=0-99999999999").collapsed.length, 100_000);
  equal(parse("?closed=7-3.x.5-").collapsed, []);
});

test("what ranks are grouped by is in the address", () => {
  const view = parse("?by=pipeline");
  equal(view.lanes.by, "pipeline");
  equal(format(view), "?by=pipeline");
});

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
