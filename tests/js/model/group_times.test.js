import { columnAt, GroupTimes, slowWords, timesWords } from "/assets/timeline/model/group_times.js";
import { Layout, SUMMED } from "/assets/timeline/model/layout.js";
import { groupedBy } from "/assets/timeline/model/rank_groups.js";
import { equal, test } from "../harness.js";

const MS = 1e6;
const TIMES = {
  columns: [
    [0, 10 * MS, 0, 0, 7 * MS],
    [10 * MS, 30 * MS, 1, 2, 7 * MS],
  ],
  spread: [
    [null, null, null, null, null],
    [6 * MS, 7 * MS, 10.5 * MS, 3, 2],
  ],
  slow: [[1, 4, [3, 2, 10.5 * MS]]],
  slowest: [
    [3, 2],
    [5, 1],
  ],
  steps: 3,
};
const lane = (rank) => ({ id: rank, rank, kind: "thread", label: "main", rows: 9, group: `rank ${rank}` });
const RUN = {
  etag: "e",
  ranks: [0, 1, 2],
  lanes: [0, 1, 2].map(lane),
  steps: { count: 3 },
  groupings: [{ name: "host", word: "host", titles: ["a", "b"], of: [0, 0, 1] }],
};

test("a column is found by its instant", () => {
  equal(
    [0, 10 * MS, 29 * MS, 30 * MS].map((t) => columnAt(TIMES, t)),
    [0, 1, 1, -1],
  );
});

test("slow ranks are named with the number of their steps", () => {
  equal(slowWords(TIMES), "slow: rank 3 in 2 of 3 steps, also 5");
  equal(slowWords({ slowest: [], steps: 3 }), "no slow rank");
});

test("a column is said in words, with exact times and the slow ranks", () => {
  equal(timesWords({ group: { name: "a" }, at: 1, times: TIMES }), {
    title: "a · step 1 to 2",
    lines: [
      "6 ms to 10.5 ms, median 7 ms",
      "longest: rank 3 in step 2 · all ranks: median 7 ms",
      "slow: rank 3 in step 2, 10.5 ms (+50 %)",
      "and 3 more slow ranks",
    ],
  });
  equal(timesWords({ group: { name: "a" }, at: 0, times: TIMES }), { title: "a · step 0", lines: ["not recorded"] });
});

test("groups of ranks show times in place of their lanes, also when they are open", () => {
  const groups = groupedBy(RUN, "host");
  equal(
    groups.map(({ name, summed, rank }) => [name, summed, rank]),
    [
      ["a", true, 0],
      ["b", true, 2],
      ["rank 0", false, 0],
      ["rank 1", false, 1],
      ["rank 2", false, 2],
    ],
  );
  for (const closed of [[0, 1], [1]]) {
    const [first] = new Layout(groups, new Set(closed), new Set()).items;
    equal([first.rows, first.h], [[], SUMMED]);
  }
  equal(
    groupedBy({ ...RUN, steps: { count: 0 } }, "host").some(({ summed }) => summed),
    false,
  );
});

test("what was asked for serves until the window leaves it, or is much shorter", () => {
  const times = new GroupTimes({ duration: 1000 });
  Object.assign(times, { window: times.around({ t0: 400, t1: 600 }), exact: false });
  equal(times.window, { t0: 300, t1: 700 });
  equal(
    [
      [300, 700],
      [290, 500],
      [400, 420],
    ].map(([t0, t1]) => times.covers({ t0, t1 })),
    [true, false, false],
  );
  times.exact = true;
  equal(times.covers({ t0: 400, t1: 420 }), true);
});
