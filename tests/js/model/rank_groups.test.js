import { choicesOf, groupedBy } from "../../../assets/timeline/model/rank_groups.js";
import { equal, test } from "../harness.js";

const lane = (id, rank) => ({ id, rank, kind: "thread", label: "main", rows: 1, group: `rank ${rank}`, process: null });
const RUN = {
  ranks: [0, 1, 2, 3],
  first_lanes: null,
  lanes: [lane(0, 0), lane(1, 0), lane(2, 1), lane(3, 2), lane(4, 3)],
  groupings: [
    { name: "host", word: "host", titles: ["a · ranks 0-1", "b · ranks 2-3"], of: [0, 0, 1, 1] },
    { name: "tensor", word: "tensor-parallel rank", titles: ["t 0", "t 1"], of: [0, 1, 0, null] },
  ],
};
const tree = (groups) =>
  groups.map(({ name, parent, lanes }) => [name, parent === null ? null : groups[parent].name, lanes.map((l) => l.id)]);

test("ranks are grouped as they are listed until another grouping is chosen", () => {
  equal(
    groupedBy(RUN, "").map((group) => group.name),
    ["rank 0", "rank 1", "rank 2", "rank 3"],
  );
  equal(groupedBy(RUN, "no such").length, 4);
});

test("a group of a dimension has its ranks within", () => {
  equal(tree(groupedBy(RUN, "tensor")), [
    ["t 0", null, []],
    ["t 1", null, []],
    ["no tensor-parallel rank", null, []],
    ["rank 0", "t 0", [0, 1]],
    ["rank 1", "t 1", [2]],
    ["rank 2", "t 0", [3]],
    ["rank 3", "no tensor-parallel rank", [4]],
  ]);
});

test("the run and its dimensions are the choices", () => {
  equal(
    choicesOf(RUN).map(({ title }) => title),
    ["rank", "host", "tensor-parallel rank"],
  );
  equal(
    choicesOf({ ...RUN, first_lanes: {}, groupings: RUN.groupings.slice(1) }).map(({ title }) => title),
    ["host", "tensor-parallel rank"],
  );
  equal(choicesOf({ lanes: [] }), [{ by: "", title: "rank" }]);
});
