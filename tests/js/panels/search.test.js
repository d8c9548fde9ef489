import { match, stepAsked } from "/assets/timeline/panels/search.js";
import { equal, test } from "../harness.js";

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
