/**
 * Completes the figure of a graph, which comes without places: see webapp/plugins/autograd_graph/charts.py.
 * @module
 */
import { BOX, laidOut } from "./graph_layout.js";

const GAP = 16;
const ROW = 46;
/** Px by which the outermost boxes are wider than their places, both edges together. */
const EDGE = 4;
/** Px of the page beside a drawing, those of the chart's buttons among them: `margin` of charts.py. */
const BESIDE = 36;

/** What was drawn last in each chart, to be drawn again when the page has another width. */
const latest = new Map();
let waiting = 0;

addEventListener("resize", () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => {
    for (const [store, { drawing, room }] of latest) {
      const now = roomOf(drawing.chart);
      if (now && now !== room) globalThis.dash_clientside.set_props(store, { data: { ...drawing } });
    }
  }, 100);
});

const roomOf = (chart) => (document.getElementById(`${chart}-place`)?.parentElement.clientWidth ?? 0) - BESIDE;

/**
 * @param {object} drawing figure, and what stands in it: `boxes` (name -> px), `edges`, `alone`
 * @param {string} store where it comes from
 * @returns {[object, object]} the figure, and the style of its chart
 */
export function drawn(drawing, store) {
  const room = roomOf(drawing.chart);
  latest.set(store, { drawing, room });
  const placed = laidOut(drawing.boxes, drawing.edges, room);
  const below = inRows(drawing.alone, placed, room);
  return filled(drawing, { ...placed, ...below }, room);
}

/** Boxes that no line leads to, below the others: side by side, then in the next row. */
function inRows(widths, { boxes, width, height }, room) {
  const found = { ...boxes };
  let [x, y, widest] = [0, height + ROW / 2, width];
  for (const [name, own] of Object.entries(widths)) {
    if (x && x + own > room) [x, y] = [0, y + ROW];
    found[name] = [x + own / 2, y];
    x += own + GAP;
    widest = Math.max(widest, x - GAP);
  }
  return { boxes: found, width: widest, height: Object.keys(widths).length ? y + ROW / 2 : height };
}

/** The figure with places: boxes are bars from `base`, lines end with a null. */
function filled({ figure, boxes, alone }, { boxes: places, lines, width, height }, room) {
  const widths = { ...boxes, ...alone };
  const [forward, back, ...others] = figure.data;
  for (const [trace, upwards] of [
    [forward, false],
    [back, true],
  ]) {
    const own = lines.filter((line) => line.back === upwards);
    trace.x = own.flatMap(({ points }) => [...points.map(([x]) => x), null]);
    trace.y = own.flatMap(({ points }) => [...points.map(([, y]) => y), null]);
    trace.visible = own.length > 0;
  }
  for (const trace of others) {
    if (!trace.meta) continue; // of the legend
    const left = trace.meta.map((name) => places[name][0] - widths[name] / 2);
    trace.y = trace.meta.map((name) => places[name][1]);
    if (trace.type === "bar")
      Object.assign(trace, { base: left, x: trace.meta.map((name) => widths[name]), width: BOX });
    else trace.x = left;
  }
  const { layout } = figure;
  const top = layout.margin.t;
  const shown = Math.max(width, room) + EDGE;
  const whole = Math.ceil(height) + top + layout.margin.b;
  Object.assign(layout, { height: whole, uirevision: `${Math.round(width)} ${Math.round(height)}` });
  layout.legend.y = 1 - 40 / whole;
  layout.xaxis.range = [(width - shown) / 2, (width + shown) / 2];
  layout.yaxis.range = [height, 0];
  return [figure, { height: `${whole}px`, minWidth: `${Math.ceil(width) + BESIDE}px` }];
}
