/**
 * The keyboard. Keys are listed for people in help.js.
 * @module
 */

/** Typing into a field is not steering the timeline. */
const typing = (target) => target instanceof Element && Boolean(target.closest("input, textarea, select, [contenteditable=true], [role=combobox]"));

/**
 * @param {import("./timeline.js").Timeline} timeline
 * @param {object} page
 * @param {() => boolean} page.shown whether the timeline is what one sees
 * @param {() => void} page.help
 * @param {() => void} page.theme
 * @param {() => void} page.search
 */
export function listenKeys(timeline, page) {
  const anywhere = { "?": page.help, t: page.theme };
  const steps = {
    w: () => timeline.glide("zoom", 0.6),
    s: () => timeline.glide("zoom", 1 / 0.6),
    a: () => timeline.glide("pan", -0.25),
    d: () => timeline.glide("pan", 0.25),
    f: () => timeline.fit(),
    Home: () => timeline.fitAll(),
    ".": () => timeline.neighbour("next"),
    ",": () => timeline.neighbour("prev"),
    ArrowUp: () => timeline.vertical(-1),
    ArrowDown: () => timeline.vertical(1),
    ArrowLeft: () => timeline.glide("pan", -0.1),
    ArrowRight: () => timeline.glide("pan", 0.1),
    PageUp: () => timeline.scrollBy(-timeline.height * 0.8),
    PageDown: () => timeline.scrollBy(timeline.height * 0.8),
    "/": page.search,
    m: () => timeline.rangeOfSelected(),
    o: () => timeline.overlaps.step(1),
    e: () => timeline.expandSelected(),
    g: () => timeline.collapseSelected(),
    Enter: () => timeline.zoomToSelected(),
    Escape: () => timeline.letGo(),
  };
  const shifted = {
    a: () => timeline.glide("pan", -1),
    d: () => timeline.glide("pan", 1),
    o: () => timeline.overlaps.step(-1),
  };
  // A ring around all lanes helps whoever comes by Tab, and would only disturb everyone else.
  document.addEventListener("keydown", (event) => document.body.classList.toggle("tabbing", event.key === "Tab" || document.body.classList.contains("tabbing")));
  document.addEventListener("pointerdown", () => document.body.classList.remove("tabbing"));
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target) || document.querySelector("dialog[open]")) return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const inDock = event.target instanceof Element && event.target.closest(".dock, .rail, .header, .tl-labels");
    if (inDock && ["Enter", " ", "ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "PageUp", "PageDown", "Home"].includes(key)) return;
    const act = anywhere[key] ?? (page.shown() ? (event.shiftKey && shifted[key]) || steps[key] : undefined);
    if (!act) return;
    event.preventDefault();
    act();
  });
}
