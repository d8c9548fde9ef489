import { drawFlows } from "/assets/timeline/model/flows.js";
import { equal, ok, test } from "../harness.js";

const NAME = { x: 90, y: 20, w: 40, h: 16 };
const place = ({ lane, t }) => ({ x: t, y: lane * 16 + 8 });

/** Alpha of the canvas in a rectangle, the greatest. */
function drawn(flows, names, { x, y, w, h }) {
  const c = new OffscreenCanvas(300, 200).getContext("2d");
  const colours = { ties: "black" };
  const count = drawFlows(c, flows, place, { width: 300, height: 200, ground: "white", colours, names: () => names });
  const { data } = c.getImageData(x, y, w, h);
  return { count, most: Math.max(...data.filter((_, i) => i % 4 === 3)) };
}

test("an arrow goes behind a name", () => {
  const flows = [{ kind: "start", from: { lane: 0, t: 20 }, to: { lane: 3, t: 200 }, tone: "ties" }];
  ok(drawn(flows, [], NAME).most > 0);
  equal(drawn(flows, [NAME], NAME), { count: 1, most: 0 });
  ok(drawn(flows, [NAME], { x: 130, y: 36, w: 60, h: 30 }).most > 0, "beside the name it is drawn");
});

test("the ends of an arrow are drawn on a name too", () => {
  const flows = [{ kind: "collective", from: { lane: 1, t: 100 }, to: { lane: 3, t: 100 }, tone: "ties" }];
  ok(drawn(flows, [NAME], { x: 98, y: 22, w: 4, h: 4 }).most > 0);
});

test("an arrow outside of the canvas is not drawn", () => {
  equal(
    drawn([{ kind: "start", from: { lane: 0, t: 900 }, to: { lane: 1, t: 990 }, tone: "ties" }], [], NAME).count,
    0,
  );
});
