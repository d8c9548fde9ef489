/**
 * Places the boxes and lines of a graph: order, places and lines are dagre's. Lines that pass rows on
 * their way to the same box share a way. What is too wide for the page goes to further rows, and what
 * is high for its width to further columns.
 * @module
 */
import { Graph, layout } from "../vendor/dagre/dagre.esm.js";

export const BOX = 24;
/** Px between boxes, between lines, between rows, between columns. */
const GAPS = { nodesep: 16, edgesep: 10, ranksep: 22 };
const GUTTER = 36;
/** Px by which columns stand further apart where the page is wider. */
const MAX_SPREAD = 120;
/** Px of a drawing that is seen at once: a lower one stays a single column. */
const LOW = 400;
const MAX_COLUMNS = 10;
/** Lines from one column to the next; with more, following one of them is hard. */
const MAX_CROSSING = 12;
/** Px between two such lines. */
const LINE = 4;
/** Places at which lines pass rows; lines beyond them, the longest, lead straight over boxes. */
const MAX_PASSES = 1000;

/**
 * @param {Object<string, number>} widths of the boxes, px
 * @param {[string, string][]} edges
 * @param {number} room px across
 * @returns {{boxes: Object<string, [number, number]>, lines: {ends: [string, string],
 *   points: [number, number][], back: boolean}[], width: number, height: number}} middles of boxes; lines, and
 *   parts of them that several share; one that leads upwards is marked
 */
export function laidOut(widths, edges, room) {
  const turns = lineBreaks(widths, levelsOf(widths, edges), room);
  const levels = levelsOf(widths, [...edges, ...turns]);
  const graph = new Graph();
  graph.setGraph({ ...GAPS, ranker: "longest-path" });
  for (const [name, width] of Object.entries(widths)) graph.setNode(name, { width, height: BOX });
  const straight = addEdges(graph, edges, levels);
  const drawn = graph.edges().map(({ v, w }) => [v, w]);
  for (const [from, to] of turns) if (!graph.hasEdge(from, to)) graph.setEdge(from, to, { weight: 0 });
  layout(graph);
  return inColumns(graph, drawn, straight, widths, room);
}

/** Longest way to each box. What would close a circle does not count. */
function levelsOf(widths, edges) {
  const names = Object.keys(widths);
  const after = new Map(names.map((name) => [name, []]));
  const waiting = new Map(names.map((name) => [name, 0]));
  for (const [from, to] of edges) {
    after.get(from).push(to);
    waiting.set(to, waiting.get(to) + 1);
  }
  const levels = new Map();
  const ready = names.filter((name) => !waiting.get(name));
  const least = new Map();
  while (levels.size < names.length) {
    const name = ready.shift() ?? names.find((one) => !levels.has(one));
    if (levels.has(name)) continue;
    levels.set(name, least.get(name) ?? 0);
    for (const to of after.get(name)) {
      least.set(to, Math.max(least.get(to) ?? 0, levels.get(name) + 1));
      waiting.set(to, waiting.get(to) - 1);
      if (!waiting.get(to)) ready.push(to);
    }
  }
  return levels;
}

/** Adds edges, the short ones first; returns those for which no passes are left. */
function addEdges(graph, edges, levels) {
  const count = (at) => Map.groupBy(edges, (edge) => edge[at]);
  const [from, to] = [count(0), count(1)];
  const span = ([one, other]) => levels.get(other) - levels.get(one);
  const straight = [];
  let passes = 0;
  for (const edge of edges.toSorted((a, b) => span(a) - span(b))) {
    const [one, other] = edge;
    if (span(edge) > 1 && passes + span(edge) > MAX_PASSES) {
      straight.push(edge);
      continue;
    }
    // The end that more edges have lends its name to the way, which so is the same one for them.
    const shared = to.get(other).length >= from.get(one).length ? `to ${other}` : `from ${one}`;
    let before = one;
    for (let level = levels.get(one) + 1; level < levels.get(other); level += 1) {
      const pass = JSON.stringify([shared, level]);
      if (!graph.hasNode(pass)) {
        graph.setNode(pass, { width: 1, height: 0 });
        passes += 1;
      }
      graph.setEdge(before, pass, {});
      before = pass;
    }
    graph.setEdge(before, other, {});
  }
  return straight;
}

/** Pairs of boxes of a level that do not fit side by side: the second goes to a further row. */
function lineBreaks(widths, levels, room) {
  const turns = [];
  for (const names of Map.groupBy(levels.keys(), (name) => levels.get(name)).values()) {
    let line = [];
    let before = [];
    let used = 0;
    for (const name of names) {
      if (line.length && used + widths[name] > room) {
        before = line;
        line = [];
        used = 0;
      }
      if (before.length) turns.push([before[Math.min(line.length, before.length - 1)], name]);
      line.push(name);
      used += widths[name] + GAPS.nodesep;
    }
  }
  return turns;
}

/** Cuts a drawing between rows into columns side by side, as many as make it low and fit in. */
function inColumns(graph, drawn, straight, widths, room) {
  const names = Object.keys(widths);
  const rows = [...Map.groupBy(names, (name) => graph.node(name).y)]
    .map(([y, own]) => ({ y, names: own }))
    .sort((one, other) => one.y - other.y);
  const line = (ends, points) => {
    const [from, to] = ends.map((name) => graph.node(name));
    return { ends, points: (points ?? [from, to]).map(({ x, y }) => [x, y]), back: from.y >= to.y };
  };
  const lines = [...drawn.map((ends) => line(ends, graph.edge(...ends).points)), ...straight.map((ends) => line(ends))];
  const { height = 0 } = graph.graph();
  let best = columnsOf(graph, rows, lines, Number.POSITIVE_INFINITY);
  for (let count = 2; count <= MAX_COLUMNS && best.height > LOW; count += 1) {
    const next = columnsOf(graph, rows, lines, height / count);
    if (next.width <= room && next.crossing <= MAX_CROSSING && next.height < best.height) best = next;
  }
  const gutters = best.columns.length - 1;
  const spread = gutters > 0 ? Math.max(0, Math.min(MAX_SPREAD, (room - best.width) / gutters)) : 0;
  for (const [position, column] of best.columns.entries()) column.x += position * spread;
  return moved(graph, names, lines, { ...best, width: best.width + Math.max(0, gutters) * spread });
}

/** Columns no higher than `most`, with their sizes. */
function columnsOf(graph, rows, lines, most) {
  const columns = [];
  for (const { y, names } of rows) {
    let column = columns.at(-1);
    if (!column || y + BOX / 2 - column.top > most) {
      const top = column ? (column.last + y) / 2 : y - BOX / 2 - GAPS.ranksep / 2;
      if (column) column.bottom = top;
      column = { top, left: Number.POSITIVE_INFINITY, right: 0, crossing: 0 };
      columns.push(column);
    }
    column.last = y;
    column.bottom = y + BOX / 2 + GAPS.ranksep / 2;
    for (const name of names) {
      const { x, width } = graph.node(name);
      column.left = Math.min(column.left, x - width / 2);
      column.right = Math.max(column.right, x + width / 2);
    }
  }
  for (const { points } of lines) {
    for (const [x, y] of points) {
      const column = columns[columnAt(columns, y)];
      column.left = Math.min(column.left, x);
      column.right = Math.max(column.right, x);
    }
    const ends = [points[0][1], points.at(-1)[1]].map((y) => columnAt(columns, y));
    for (let at = Math.min(...ends); at < Math.max(...ends); at += 1) columns[at].crossing += 1;
  }
  let width = 0;
  for (const [position, column] of columns.entries()) {
    column.x = width;
    width += column.right - column.left;
    if (position < columns.length - 1) width += GUTTER + column.crossing * LINE;
  }
  const crossing = Math.max(0, ...columns.map((column) => column.crossing));
  const margin = crossing ? (crossing + 2) * LINE : 0;
  const height = Math.max(0, ...columns.map(({ top, bottom }) => bottom - top)) + 2 * margin;
  return { columns, width, height, crossing, margin };
}

const columnAt = (columns, y) =>
  Math.max(
    0,
    columns.findIndex(({ bottom }, at) => y < bottom || at === columns.length - 1),
  );

/** Boxes and lines where their columns stand; a line that leaves a column goes on in the next one. */
function moved(graph, names, lines, { columns, width, height, margin }) {
  const at = (column, [x, y]) => [x - column.left + column.x, y - column.top + margin];
  const boxes = {};
  for (const name of names) {
    const { x, y } = graph.node(name);
    boxes[name] = at(columns[columnAt(columns, y)], [x, y]);
  }
  const crossed = columns.map(() => 0);
  const over = ({ ends, points, back }) => {
    const down = back ? points.toReversed() : points;
    const found = [];
    let place = columnAt(columns, down[0][1]);
    let before = down[0];
    for (const point of down) {
      while (point[1] >= columns[place].bottom && place < columns.length - 1) {
        const { bottom } = columns[place];
        const share = (bottom - before[1]) / (point[1] - before[1] || 1);
        const cut = [before[0] + (point[0] - before[0]) * share, bottom];
        const nth = crossed[place]++;
        const foot = at(columns[place], cut);
        const head = at(columns[place + 1], cut);
        const x = columns[place + 1].x - GUTTER / 2 - nth * LINE;
        const low = foot[1] + (nth + 1) * LINE;
        const high = margin - (nth + 1) * LINE;
        found.push(foot, [foot[0], low], [x, low], [x, high], [head[0], high], head);
        place += 1;
      }
      found.push(at(columns[place], point));
      before = point;
    }
    return { ends, points: back ? found.reverse() : found, back };
  };
  return { boxes, lines: lines.map(over), width, height };
}
