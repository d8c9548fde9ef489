/**
 * The overlay that lists every key and gesture.
 * @module
 */

export const KEYS = [
  ["Move", [
    ["W / S", "zoom in / out at the pointer"],
    ["A / D", "left / right; Shift: a whole window"],
    ["F", "fit the selection; again: the whole run"],
    ["Wheel", "zoom at the pointer (also with Ctrl)"],
    ["Shift + wheel", "left / right"],
    ["Alt + wheel", "up / down; also over the labels"],
    ["Drag", "move in both directions"],
    ["Page up / down", "scroll the lanes"],
  ]],
  ["Select", [
    ["Click", "select a slice"],
    ["Double click", "zoom to it"],
    [". / ,", "next / previous in the row"],
    ["↑ / ↓", "row above / below at the same time"],
    ["Esc", "let go: search, range, selection"],
  ]],
  ["Range", [
    ["Shift + drag", "select a range; also: drag on the ruler"],
    ["M", "range of the selected slice"],
  ]],
  ["Find", [
    ["/", "search ops; matches stay lit"],
    ["O / Shift + O", "next / previous overlap of the backward phase"],
  ]],
  ["Page", [
    ["E", "all rows of the selected lane in full height"],
    ["G", "close or open the selected rank"],
    ["T", "light / dark"],
    ["?", "this list"],
  ]],
];

/** @returns {HTMLDialogElement} not yet in the document */
export function helpDialog() {
  const dialog = document.createElement("dialog");
  dialog.className = "help";
  dialog.setAttribute("aria-label", "Keys and gestures");
  const close = element("button", "×", "icon-button close");
  close.type = "button";
  close.setAttribute("aria-label", "Close");
  close.addEventListener("click", () => dialog.close());
  const columns = element("div", "", "columns");
  for (const [title, rows] of KEYS) {
    const section = element("section", "");
    const list = element("dl", "");
    for (const [key, text] of rows) {
      const term = element("dt", "");
      term.append(element("kbd", key));
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

/** A new element with text and classes. @param {string} tag @param {string} text @param {string} [classes] */
export function element(tag, text, classes) {
  const node = document.createElement(tag);
  if (text) node.textContent = text;
  if (classes) node.className = classes;
  return node;
}
