import { BOX, laidOut } from "/assets/graph/graph_layout.js";
import { equal, ok, test } from "../harness.js";

const names = (count) => Array.from({ length: count }, (_, n) => `box ${n}`);
const wide = (many, width) => Object.fromEntries(many.map((name) => [name, width]));
const chain = (many) => many.slice(1).map((name, n) => [many[n], name]);

/** Whether a line leads over a box that is neither its beginning nor its end. */
function over({ points }, [x, y], width) {
  const inside = (at, middle, half) => at > middle - half && at < middle + half;
  return points.slice(1).some(([x1, y1], n) => {
    const [x0, y0] = points[n];
    const steps = Array.from({ length: 65 }, (_, k) => k / 64);
    return steps.some(
      (t) => inside(x0 + (x1 - x0) * t, x, width / 2 - 1) && inside(y0 + (y1 - y0) * t, y, BOX / 2 - 1),
    );
  });
}

test("a chain fills the page, column after column, and no line leads over a box", () => {
  const many = names(60);
  const edges = [...chain(many), ["box 0", "box 4"], ["box 10", "box 14"], ["box 30", "box 59"]];
  const { boxes, lines, width, height } = laidOut(wide(many, 120), edges, 1200);
  ok(width <= 1200 && width > 600, `${width} px across`);
  ok(height < 800, `${height} px high`);
  for (const [n, one] of many.entries())
    for (const other of many.slice(n + 1)) {
      const [dx, dy] = [0, 1].map((axis) => Math.abs(boxes[one][axis] - boxes[other][axis]));
      ok(dx >= 120 || dy >= BOX, `${one} and ${other} overlap`);
    }
  for (const line of lines) {
    for (const name of many) ok(!over(line, boxes[name], 120), `${line.ends} leads over ${name}`);
    for (const [at, point] of [line.points[0], line.points.at(-1)].entries()) {
      const box = boxes[line.ends[at]];
      const near = box && Math.abs(point[0] - box[0]) <= 60 && Math.abs(point[1] - box[1]) <= BOX / 2;
      const goesOn = lines.some((other) => other.ends[1 - at] === line.ends[at]);
      ok(near || (!box && goesOn), `${line.ends} ends elsewhere`);
    }
  }
  ok(lines.every(({ back }) => !back));
});

test("what leads to one box shares a way", () => {
  const many = names(40);
  const all = many.slice(0, 38).map((name) => [name, "box 39"]);
  const { lines, width } = laidOut(wide(many, 40), [...chain(many), ...all], 300);
  equal(lines.length, 39 + 2 * 38);
  ok(width < 500, `${width} px across`);
});

test("with little room it stays a single column", () => {
  const many = names(30);
  const { boxes, width } = laidOut(wide(many, 200), chain(many), 300);
  ok(width <= 210);
  ok(many.slice(1).every((name, n) => boxes[name][1] > boxes[many[n]][1]));
});

test("boxes that do not fit side by side go to further rows", () => {
  const many = names(41);
  const star = many.slice(1).map((name) => [many[0], name]);
  const { width, height } = laidOut(wide(many, 100), star, 1000);
  ok(width <= 1300, `${width} px across`);
  ok(height > 4 * BOX && height < 700, `${height} px high`);
});

test("a line of a circle leads back up", () => {
  const many = names(3);
  const { lines } = laidOut(wide(many, 50), [...chain(many), ["box 2", "box 0"]], 500);
  const [back, ...others] = lines.filter((line) => line.back);
  equal([back.ends, others], [["box 2", "box 0"], []]);
  ok(back.points[0][1] > back.points.at(-1)[1]);
});

test("nothing to place is an empty drawing", () => {
  equal(laidOut({}, [], 500).boxes, {});
});
