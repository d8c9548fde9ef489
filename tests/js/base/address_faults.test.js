import { faultsOf } from "../../../assets/timeline/base/address_faults.js";
import { equal, test } from "../harness.js";

const RUN = {
  ranks: [0, 1, 2, 3],
  steps: [4, 5, 6],
  lanes: [
    { rank: 0, thread: "7-0" },
    { rank: 1, thread: "8-0" },
  ],
  duration: 1000,
};

test("an address that fits has no faults", () => {
  equal(faultsOf("", RUN, true), []);
  const good =
    "?rank=1&thread=8-0&step=5&t=0-100&range=5-6&sel=1.0.3&closed=&open=0-3.7&pin=2&y=10&finding=0&overlaps=1";
  equal(faultsOf(`${good}&theme=dark&q=mm&lanes=x&of=backward`, RUN, true), []);
});

test("what the run does not hold is named", () => {
  equal(faultsOf("?rank=9&step=7&t=1000-2000", RUN, true), [
    "rank=9 (the run has ranks 0–3)",
    "step=7 (the run has steps 4–6)",
    "t=1000-2000 (after the end of the run)",
  ]);
  equal(faultsOf("?rank=0&thread=8-0", RUN, false), ["thread=8-0 (not of rank 0)"]);
  equal(faultsOf("?thread=8-0", RUN, false), ["thread=8-0 (expected with its rank)"]);
  equal(faultsOf("?rank=3&thread=9-0", { ...RUN, lanes: [] }, false), []);
  equal(faultsOf("?rank=1", { ...RUN, ranks: [0] }, false), ["rank=1 (the run has rank 0 only)"]);
  equal(faultsOf("?rank=1&step=0", { ...RUN, ranks: [0, 2], steps: [] }, false), [
    "rank=1 (the run has ranks 0–2, with gaps)",
    "step=0 (the run has no steps)",
  ]);
  equal(faultsOf("?at=x@5", RUN, true), ["at=x@5 (no slice begins there)"]);
});

test("damaged values are named, of the timeline's own parts on the timeline alone", () => {
  const damaged = "?rank=x&t=9-1&sel=1.2&closed=1..2&finding=-1&theme=blue";
  equal(faultsOf(damaged, RUN, true), [
    "rank=x (expected a number)",
    "t=9-1 (expected two times in ns, as in 0-1000)",
    "theme=blue (expected light or dark)",
    "sel=1.2 (expected lane, row and slice, as in 3.0.12)",
    "finding=-1 (expected a number)",
    "closed=1..2 (expected numbers, as in 0-3.7)",
  ]);
  equal(faultsOf(damaged, RUN, false).length, 3);
  equal(faultsOf(`?rank=${"x".repeat(50)}`, RUN, false), [`rank=${"x".repeat(40)}… (expected a number)`]);
});
