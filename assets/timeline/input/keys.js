/**
 * Turns key presses into commands.
 * @module
 */

import { keyOf } from "./commands.js";

/** True while the user types into a field. */
const typing = (target) =>
  target instanceof Element &&
  Boolean(target.closest("input, textarea, select, [contenteditable=true], [role=combobox]"));
/** Keys that a control or table around the lanes needs for itself when it has the focus. */
const OWN = ["Enter", " ", "ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "PageUp", "PageDown", "Home"];

/**
 * @param {import("./commands.js").Command[]} commands
 * @param {() => boolean} shown whether the timeline is what one sees
 */
export function listenKeys(commands, shown) {
  const byKey = new Map(commands.flatMap((command) => command.keys.map((key) => [key, command])));
  // The focus ring around all lanes is shown only after Tab; it would disturb users of the mouse.
  document.addEventListener("keydown", (event) =>
    document.body.classList.toggle("tabbing", event.key === "Tab" || document.body.classList.contains("tabbing")),
  );
  document.addEventListener("pointerdown", () => document.body.classList.remove("tabbing"));
  document.addEventListener("keydown", (event) => {
    const key = keyOf(event);
    const held = key.startsWith("Control+") || key.startsWith("Alt+");
    if ((!held && typing(event.target)) || document.querySelector("dialog[open]")) return;
    const around = event.target instanceof Element && event.target.closest(".dock, .rail, .header, .page");
    if (around && OWN.includes(key)) return;
    if (event.target instanceof HTMLButtonElement && (key === "Enter" || key === " ")) return;
    const command = byKey.get(key) ?? (key.startsWith("Shift+") ? byKey.get(key.slice(6)) : undefined);
    if (!command || !(command.anywhere || shown())) return;
    event.preventDefault();
    command.run();
  });
}
