import { filledIn, lanesIn, withFirstLanes } from "/assets/timeline/model/lane_pages.js";
import { groupsOf } from "/assets/timeline/model/layout.js";
import { equal, test } from "../harness.js";

const COLUMNS = ["id", "rank", "label", "group", "process"];
const row = (id, rank) => [id, rank, `lane ${id}`, `gpu-${rank >> 1}`, { name: `rank ${rank}`, about: "" }];
const FIRST = { columns: COLUMNS, rows: [row(0, 0), row(3, 1), row(6, 2), row(9, 3)] };
const ids = (lanes) => lanes.map((lane) => lane.id);

test("a run whose lanes come in pages has its first ones", () => {
  equal(ids(withFirstLanes({ lanes: [], first_lanes: FIRST }).lanes), [0, 3, 6, 9]);
  equal(withFirstLanes({ lanes: [{ id: 4 }], first_lanes: null }).lanes, [{ id: 4 }]);
});

test("all lanes of a rank stand where its first one stood, and groups keep their numbers", () => {
  const first = lanesIn(FIRST);
  const page = lanesIn({ columns: COLUMNS, rows: [row(6, 2), row(7, 2), row(8, 2)] });
  const all = filledIn(first, page);
  equal(ids(all), [0, 3, 6, 7, 8, 9]);
  const names = (lanes) => groupsOf(lanes).map(({ index, name, about, parent }) => [index, name, about, parent]);
  equal(names(all), names(first));
  equal(names(first)[0], [0, "gpu-0", "2 ranks", null]);
});
