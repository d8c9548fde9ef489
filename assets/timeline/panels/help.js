/**
 * The overlay that lists every key and gesture.
 * @module
 */

import { element } from "../base/dom.js";
import { keyText } from "../input/commands.js";

/** Gestures without a key, by the group of commands that they belong to. */
const GESTURES = {
  Move: [
    ["Ctrl + wheel, pinch", "Zoom at the pointer"],
    ["Wheel", "Scroll lanes; over ruler and strip, or if all lanes are visible: zoom"],
    ["Shift + wheel", "Left or right"],
    ["Drag", "Move in both directions"],
    ["Drag on the strip", "Draw, move or resize the window"],
  ],
  Select: [
    ["Click", "Select a slice"],
    ["Double click", "Zoom to it"],
  ],
  Measure: [
    ["Shift + drag", "Measure a range that snaps to slices; or drag on the ruler"],
    ["Shift + click", "Measure from the selected slice to this one"],
  ],
  Lanes: [["Drag a name", "Reorder lanes or ranks"]],
};

/** @param {import("../input/commands.js").Command[]} commands @returns {HTMLDialogElement} not yet in the document */
export function helpDialog(commands) {
  const dialog = document.createElement("dialog");
  dialog.className = "help";
  dialog.setAttribute("aria-label", "Keys and gestures");
  const close = element("button", "×", "icon-button close");
  close.type = "button";
  close.setAttribute("aria-label", "Close");
  close.addEventListener("click", () => dialog.close());
  const columns = element("div", "", "columns");
  for (const title of new Set(commands.map((command) => command.group))) {
    const keyed = commands.filter((command) => command.group === title && command.keys.length);
    const rows = [
      ...keyed.map(({ keys, title: text }) => [keys.map(keyText), text]),
      ...(GESTURES[title] ?? []).map(([gesture, text]) => [[gesture], text]),
    ];
    const section = element("section", "");
    const list = element("dl", "");
    for (const [keys, text] of rows) {
      const term = element("dt", "");
      for (const key of keys) term.append(element("kbd", key), " ");
      list.append(term, element("dd", text));
    }
    section.append(element("h3", title), list);
    columns.append(section);
  }
  dialog.append(element("h2", "Keys and gestures"), close, columns);
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  return dialog;
}
