import { arrange, asListed } from "/assets/timeline/model/lane_order.js";
import { closedToFit, FULL_ROWS, groupsOf, Layout, ROW, SLIM } from "/assets/timeline/model/layout.js";
import { equal, ok, test } from "../harness.js";

const lane = (id, group, rows = 2, kind = "thread") => ({
  id,
  key: `${id}`,
  rank: 0,
  kind,
  label: `lane ${id}`,
  group,
  rows,
});
const LANES = [lane(0, "rank 0"), lane(1, "rank 0", 1, "counter"), lane(2, "rank 1", 9), lane(3, "rank 1")];
const made = (closed = [], open = []) => new Layout(groupsOf(LANES), new Set(closed), new Set(open));

test("items stand one below the other without overlap", () => {
  const { items, height } = made();
  for (let i = 1; i < items.length; i += 1) ok(items[i].y >= items[i - 1].y + items[i - 1].h, `item ${i}`);
  ok(height >= items.at(-1).y + items.at(-1).h);
  for (const item of items)
    for (const row of item.rows) ok(row.y >= item.y && row.y + row.h <= item.y + item.h, "rows inside");
});

test("deep rows are slim until the lane is opened", () => {
  const deep = made().items.find((item) => item.lane?.id === 2);
  equal(
    deep.rows.map((row) => row.h),
    [ROW, ROW, ROW, ...Array(6).fill(SLIM)],
  );
  equal(deep.rows.filter((row) => row.text).length, FULL_ROWS - 1);
  ok(
    made([], [2])
      .items.find((item) => item.lane?.id === 2)
      .rows.every((row) => row.h === ROW && row.text),
  );
});

test("as many groups are closed as it takes to show all ranks", () => {
  const lanes = [0, 1, 2].flatMap((rank) => [
    lane(rank * 10, `rank ${rank}`),
    { ...lane(rank * 10 + 1, `rank ${rank}`), process: { name: "loader", about: "" } },
  ]);
  const groups = groupsOf(lanes); // three ranks, then their processes: 3, 4, 5
  const height = (closed) => new Layout(groups, new Set(closed), new Set()).height;
  const closed = (room) => closedToFit(groups, room).closed;
  equal(closedToFit(groups, height([])), { closed: [], raised: 0 });
  equal(closed(height([]) - 1), [5]);
  equal(closed(height([1, 2, 4, 5])), [1, 2, 4, 5]);
  equal(closed(height([0, 1, 2])), [0, 1, 2, 3, 4, 5]); // a rank that would show no lane stays closed
  equal(closed(1), [0, 1, 2, 3, 4, 5]);
  equal(closedToFit(groupsOf([lane(0, "rank 0", 3)]), 1), { closed: [], raised: 0 });
});

test("strips of closed groups use the room that is left", () => {
  const groups = groupsOf([0, 1].map((rank) => lane(rank, `rank ${rank}`, 40)));
  const { closed, raised } = closedToFit(groups, 60);
  equal([closed, raised > 0], [[0, 1], true]);
  ok(new Layout(groups, new Set(closed), new Set(), [], raised).height <= 60);
});

test("a closed group keeps a strip per thread and loses its lanes", () => {
  const layout = made([1]);
  equal(
    layout.items.filter((item) => item.lane).map((item) => item.lane.id),
    [0, 1],
  );
  equal(
    layout.items.at(-1).rows.map((row) => [row.lane.id, row.row]),
    [
      [2, 0],
      [3, 0],
    ],
  );
  equal(layout.find(2, 0), null);
});

test("a closed group shows phases and ops of every thread", () => {
  const lanes = Array.from({ length: 40 }, (_, id) => ({ ...lane(id, "rank 0", 3), phase_rows: id % 2 }));
  const [head] = new Layout(groupsOf(lanes), new Set([0]), new Set()).items;
  equal(new Set(head.rows.map((row) => row.lane.id)).size, 40);
  equal(
    head.rows.filter((row) => row.lane.id === 1).map((row) => row.row),
    [0, 1],
  );
  ok(
    head.rows.every((row) => row.y + row.h <= head.y + head.h),
    "strips within their group",
  );
});

test("a rank with several processes has a group for each, and closes with all of them", () => {
  const of = (id, process) => ({ ...lane(id, "rank 0"), process: process && { name: process, about: "" } });
  const groups = groupsOf([of(0, "process 1"), of(1, "process 2"), of(2, null), lane(3, "rank 1")]);
  equal(
    groups.map((group) => [group.index, group.name, group.parent]),
    [
      [0, "rank 0", null],
      [1, "rank 1", null],
      [2, "process 1", 0],
      [3, "process 2", 0],
    ],
  );
  equal(groups[0].about, "2 processes");
  const shown = (closed, order = groups) =>
    new Layout(order, new Set(closed), new Set()).items.map((item) => item.lane?.id ?? item.group.name);
  equal(shown([]), ["rank 0", 2, "process 1", 0, "process 2", 1, "rank 1", 3]);
  equal(shown([2]), ["rank 0", 2, "process 1", "process 2", 1, "rank 1", 3]);
  const [head] = new Layout(groups, new Set([0]), new Set()).items;
  equal(
    head.rows.map((row) => row.lane.id),
    [2, 0, 1],
  );
  equal(shown([0, 3]), ["rank 0", "rank 1", 3]);
  const byId = new Map();
  equal(shown([], arrange(groups, byId, { ...asListed(), groupOrder: [1, 3] }).groups), [
    "rank 1",
    3,
    "rank 0",
    2,
    "process 2",
    1,
    "process 1",
    0,
  ]);
  const left = groupsOf([of(0, "process 1"), of(1, "process 2")]);
  equal(shown([], arrange(left, byId, { ...asListed(), filter: "lane 1" }).groups), ["rank 0", "process 2", 1]);
});

test("pinned lanes stay while the others scroll", () => {
  const groups = groupsOf(LANES.filter((one) => one.id !== 3));
  const layout = new Layout(groups, new Set(), new Set(), [LANES[3]]);
  ok(layout.pinnedHeight > 0);
  const row = layout.find(3, 1);
  equal(layout.rowAt(row.y + 3, 50), row);
  equal(layout.onScreen(3, 1, 50), { y: row.y, h: row.h });
  const [scrolled, pinned] = layout.parts(50, 200);
  equal([scrolled.shift, scrolled.top, pinned.shift, pinned.bottom], [50, layout.pinnedHeight, 0, layout.pinnedHeight]);
  equal(layout.onScreen(0, 0, 1000), null);
});

test("visible items, and the row at a height", () => {
  const layout = made();
  const row = layout.find(3, 1);
  equal(layout.rowAt(row.y + 3), row);
  equal(
    layout.visible(row.y, row.y + 1).map((item) => item.lane?.id),
    [3],
  );
  equal(layout.visible(0, layout.height).length, layout.items.length);
  equal(layout.rowAt(-5), null);
  equal(layout.itemAt(layout.height + 100), null);
});
