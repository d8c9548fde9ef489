import { arrange, asListed, laneFilter, moved } from "/assets/timeline/model/lane_order.js";
import { equal, test } from "../harness.js";

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
