import { activity, firstEnding } from "/assets/timeline/draw/header.js";
import { processOf } from "/assets/timeline/draw/labels.js";
import { Labeller } from "/assets/timeline/draw/span_text.js";
import { equal, test } from "../harness.js";
import { dense, spans, tileOf } from "../tiles/made.js";

test("names are shown in full, without namespace, shortened, or not", () => {
  const labeller = new Labeller((text) => text.length * 6, ["aten::native_layer_norm"]);
  equal(labeller.fit(0, 200), "aten::native_layer_norm");
  equal(labeller.fit(0, 120), "native_layer_norm");
  equal(labeller.fit(0, 60), "native_…");
  equal(labeller.fit(0, 20), "");
});

test("a process in few words", () => {
  equal(processOf("train.py 4120 on node-a, main thread 4120"), "node-a · pid 4120");
  equal(processOf("process 7"), "pid 7");
});

test("activity of the strip is the covered share per pixel", () => {
  const block = { spans: spans([[0, 512, 0]]), dense: dense([[600, 32]]) };
  const shares = activity([{ lane: 0, tile: tileOf(block) }], 1024, 1024);
  equal([shares[1][0], shares[1][511], shares[1][512], shares[2][600]], [1, 1, 0, 1]);
});

test("first step that has not ended", () => {
  const steps = [
    [0, 0, 10],
    [1, 10, 20],
    [2, 20, 30],
  ];
  equal(
    [0, 10, 15, 99].map((t) => firstEnding(steps, t)),
    [0, 1, 1, 3],
  );
});
