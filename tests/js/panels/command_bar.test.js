import { keyOf, keyText } from "/assets/timeline/input/commands.js";
import { matching } from "/assets/timeline/panels/command_bar.js";
import { equal, test } from "../harness.js";

test("keys are written one way, however they are held", () => {
  const press = (key, held = {}) =>
    keyOf({ key, ctrlKey: false, metaKey: false, altKey: false, shiftKey: false, ...held });
  equal(press("w"), "w");
  equal(press("W"), "w");
  equal(press("A", { shiftKey: true }), "Shift+a");
  equal(press("?", { shiftKey: true }), "?");
  equal(press("k", { metaKey: true }), "Control+k");
  equal(press("ArrowUp", { altKey: true }), "Alt+ArrowUp");
  equal(keyText("Shift+ArrowUp"), "Shift + ↑");
});

test("the palette finds by words, beginnings first", () => {
  const entries = ["Close all", "Zoom out", "All lanes"].map((title) => ({
    title,
    group: "Lanes",
    keys: [],
    run: () => {},
  }));
  equal(
    matching(entries, "all").map((entry) => entry.title),
    ["All lanes", "Close all"],
  );
  equal(
    matching(entries, "lanes zo").map((entry) => entry.title),
    ["Zoom out"],
  );
  equal(matching(entries, "nothing"), []);
});
