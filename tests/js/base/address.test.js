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
