/**
 * The table of all commands. Keys, the list of keys and the command palette are made from it.
 * @module
 */

/**
 * @typedef {object} Command
 * @property {string} id
 * @property {string} group
 * @property {string} title shown in palette and help
 * @property {string[]} keys as `keyOf` writes them
 * @property {boolean} [anywhere] works on every page
 * @property {() => void} run
 */

/**
 * @param {import("../page/timeline.js").Timeline} timeline
 * @param {Record<string, () => void>} page actions outside the timeline
 * @returns {Command[]}
 */
export function commandsOf(timeline, page) {
  const groups = {
    Move: moving(timeline),
    Select: selecting(timeline),
    Measure: [
      ["mark-range", "Mark the selected slice as range, or the window", ["m"], () => timeline.markRange()],
      ["dock", "Show or hide the details", ["q"], page.dock],
    ],
    Find: finding(timeline, page),
    Lanes: arranging(timeline, page),
    Keep: [
      ["note", "Add a note at the selected slice or range", ["b"], page.note],
      ["save-view", "Save this view with the run", [], page.saveView],
      ["table", "Show the visible slices as a table", ["Shift+t"], page.table],
      ["png", "Download the view as PNG", [], page.png],
      ["svg", "Download the view as SVG", [], page.svg],
    ],
    Page: [
      ["commands", "All commands, lanes and pages", ["Control+k", "Control+Shift+p"], page.commands],
      [
        "search",
        "Search: aten::mm, aten::mm in blocks.0 rank 2 > 10 ms, /a regular expression/, step 7",
        ["/"],
        page.search,
      ],
      ["submit", "Run the query, or predict", ["Control+Enter"], page.submit],
      ["theme", "Light or dark", ["t"], page.theme],
      ["help", "Keys and gestures", ["?"], page.help],
    ],
  };
  return Object.entries(groups).flatMap(([group, rows]) =>
    rows.map(([id, title, keys, run]) => ({ id, group, title, keys, run, anywhere: group === "Page" })),
  );
}

const moving = (timeline) => [
  ["zoom-in", "Zoom in at the pointer", ["w"], () => timeline.glide("zoom", 0.6)],
  ["zoom-out", "Zoom out at the pointer", ["s"], () => timeline.glide("zoom", 1 / 0.6)],
  ["left", "Left", ["a"], () => timeline.glide("pan", -0.25)],
  ["right", "Right", ["d"], () => timeline.glide("pan", 0.25)],
  ["page-left", "A whole window to the left", ["Shift+a"], () => timeline.glide("pan", -1)],
  ["page-right", "A whole window to the right", ["Shift+d"], () => timeline.glide("pan", 1)],
  ["nudge-left", "A little to the left", ["ArrowLeft"], () => timeline.glide("pan", -0.1)],
  ["nudge-right", "A little to the right", ["ArrowRight"], () => timeline.glide("pan", 0.1)],
  ["next-step", "Next step", ["Shift+ArrowRight"], () => timeline.stepping.next(1)],
  ["previous-step", "Previous step", ["Shift+ArrowLeft"], () => timeline.stepping.next(-1)],
  ["back", "The window before this one", ["Backspace"], () => timeline.history.back()],
  ["fit", "Fit the range or selection; again: the whole run", ["f"], () => timeline.fit()],
  ["whole", "The whole run", ["Home"], () => timeline.fitAll()],
  ["up", "Lanes up", ["PageUp"], () => timeline.scrollBy(-timeline.height * 0.8)],
  ["down", "Lanes down", ["PageDown"], () => timeline.scrollBy(timeline.height * 0.8)],
];

const selecting = (timeline) => {
  const { selection } = timeline;
  return [
    ["next", "Next slice in the row", ["."], () => selection.neighbour("next")],
    ["previous", "Previous slice in the row", [","], () => selection.neighbour("prev")],
    ["above", "The row above, at the same time", ["ArrowUp"], () => selection.vertical(-1)],
    ["below", "The row below, at the same time", ["ArrowDown"], () => selection.vertical(1)],
    ["along", "Along the arrow from the selected slice", ["]"], () => selection.along(1)],
    ["back-along", "Back along the arrow to the selected slice", ["["], () => selection.along(-1)],
    ["zoom-to", "Zoom to the selected slice", ["Enter"], () => timeline.zoomToSelected()],
    ["let-go", "Clear search, range, overlaps or selection", ["Escape"], () => timeline.letGo()],
  ];
};

const finding = (timeline, page) => {
  const { differences, overlaps, selection } = timeline;
  // One key for the next search match, or without a search the next difference from the baseline.
  const another = (direction) =>
    differences.on && !timeline.query ? differences.step(direction) : selection.match(direction);
  return [
    ["next-match", "Next match; without a search the next difference from the baseline", ["n"], () => another("next")],
    ["previous-match", "Previous match or difference", ["Shift+n"], () => another("prev")],
    ["next-overlap", "Next overlap of threads", ["o"], () => overlaps.step(1)],
    ["previous-overlap", "Previous overlap of threads", ["Shift+o"], () => overlaps.step(-1)],
    ["slowest", "The slowest rank, in the group that it is in", ["j"], () => timeline.groupTimes.showSlowest()],
    ["overlap-of", "Choose the phase or name whose overlaps are shown", ["Shift+l"], page.overlapOf],
  ];
};

const arranging = ({ arranger, groupTimes }, page) => [
  ["pin", "Pin the lane at the top, or unpin it", ["p"], () => arranger.pinMeant()],
  ["expand", "All rows of the lane in full height", ["e"], () => arranger.expandMeant()],
  ["collapse", "Close or open the rank", ["g"], () => arranger.collapseMeant()],
  ["collapse-all", "Close or open all ranks", ["Shift+g"], () => arranger.toggleGroups()],
  ["lane-up", "Move the lane up", ["Alt+ArrowUp"], () => arranger.moveMeant(-1)],
  ["lane-down", "Move the lane down", ["Alt+ArrowDown"], () => arranger.moveMeant(1)],
  ["filter", "Filter lanes by rank, process, thread or name", ["l"], page.filter],
  ["slow-first", "Groups with slow ranks first", ["Shift+j"], () => groupTimes.slowestFirst()],
  ["lanes-reset", "All lanes in their own order", [], () => arranger.reset()],
];

/** Returns a key press as the table writes it: `w`, `Shift+a`, `Control+k`, `?`. @param {KeyboardEvent} event */
export function keyOf(event) {
  const letter = event.key.length === 1;
  const key = letter ? event.key.toLowerCase() : event.key;
  const shift = event.shiftKey && (!letter || key !== event.key || /[a-z]/.test(key));
  const held = [
    event.ctrlKey || event.metaKey ? "Control" : "",
    event.altKey ? "Alt" : "",
    shift ? "Shift" : "",
  ].filter(Boolean);
  return [...held, key].join("+");
}

const WORDS = {
  ArrowUp: "↑",
  ArrowDown: "↓",
  ArrowLeft: "←",
  ArrowRight: "→",
  Escape: "Esc",
  PageUp: "Page up",
  PageDown: "Page down",
  Control: "Ctrl",
};

/** Returns a key as the help shows it. @param {string} key as the table writes it */
export const keyText = (key) =>
  key
    .split("+")
    .map((part) => WORDS[part] ?? (part.length === 1 ? part.toUpperCase() : part))
    .join(" + ");
