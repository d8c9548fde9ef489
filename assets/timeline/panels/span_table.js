/**
 * The visible spans as a table: for screen readers, for copying, for names that do not fit.
 * @module
 */

import { element } from "../base/dom.js";
import { duration, instant, percent } from "../base/format.js";
import { UNFINISHED } from "../base/palette.js";
import { SHARE_OF } from "../tiles/tile.js";

const MAX_ROWS = 400;
/** Narrower spans are counted, not listed, px. */
const MIN_WIDTH = 3;

/**
 * Returns the distinguishable spans, lane by lane, and how much of the window the rest covers.
 * @param {import("../page/timeline.js").Timeline} timeline
 * @returns {{rows: {lane: import("../model/layout.js").Lane, row: import("../model/layout.js").Row, name: number, start: number, end: number, exact: boolean, unfinished: boolean}[], left: number, covered: number}}
 */
function visibleSpans({ view, width, layout, scrollY, height, tileSource }) {
  const least = (MIN_WIDTH * (view.t1 - view.t0)) / width;
  const rows = [];
  let left = 0;
  let covered = 0;
  for (const { items } of layout.parts(scrollY, height)) {
    for (const row of items.flatMap((item) => (item.lane ? item.rows : []))) {
      if (row.lane.kind === "counter") continue;
      let last = -1;
      for (const { tile, from, to } of tileSource.sources(row.lane.id)) {
        const block = tile.block(row.lane.id, row.row);
        const [low, high] = [Math.max(view.t0, from), Math.min(view.t1, to)];
        for (let i = 0; i < (block?.dense?.n ?? 0); i += 1) {
          const begin = tile.start + block.dense.bucket[i] * tile.bucket;
          if (begin + tile.bucket > low && begin < high) covered += SHARE_OF[block.dense.covered[i]] * tile.bucket;
        }
        const s = block?.spans;
        for (let i = 0; i < (s?.n ?? 0); i += 1) {
          const [start, end] = [tile.start + s.start[i], tile.start + s.end[i]];
          if (end <= low || start >= high || start === last) continue;
          last = start;
          if (end - start < least) left += 1;
          else {
            const paint = s.paint[i];
            rows.push({
              lane: row.lane,
              row,
              name: tile.paints.name[paint],
              start,
              end,
              exact: tile.unit === 1,
              unfinished: Boolean(tile.paints.style[paint] & UNFINISHED),
            });
          }
        }
      }
    }
  }
  return { rows, left, covered };
}

export class SpanTable {
  /** @param {HTMLElement} host @param {import("../page/timeline.js").Timeline} timeline */
  constructor(host, timeline) {
    this.host = host;
    this.timeline = timeline;
    this.shown = false;
  }

  /** Call when the tab opens and when the window has settled. */
  refresh() {
    if (!this.shown) return;
    const { timeline } = this;
    const { rows, left } = visibleSpans(timeline);
    if (!rows.length) {
      this.host.replaceChildren(element("p", "No slice is wide enough to list: open a rank, or zoom in.", "muted"));
      return;
    }
    const table = element("table", "", "plain");
    const more = rows.length > MAX_ROWS ? `; the first ${MAX_ROWS} are listed` : "";
    table.append(
      element("caption", `${rows.length} visible slices${more}${left ? `, ${left} too narrow to distinguish` : ""}`),
    );
    const head = element("tr", "");
    for (const [at, title] of ["rank", "lane", "slice", "start", "length", "of the window"].entries()) {
      const cell = element("th", title, at < 3 ? "" : "n");
      cell.scope = "col";
      head.append(cell);
    }
    const thead = element("thead", "");
    thead.append(head);
    const body = element("tbody", "");
    for (const span of rows.slice(0, MAX_ROWS)) body.append(this.line(span));
    table.append(thead, body);
    this.host.replaceChildren(table);
  }

  line({ lane, row, name, start, end, exact, unfinished }) {
    const { timeline } = this;
    const about = exact ? "" : "≈ ";
    const line = element("tr", "");
    const open = element("button", timeline.names[name] ?? "?", "link");
    open.type = "button";
    open.addEventListener("click", () => {
      timeline.selectHit({ kind: "span", lane: lane.id, row: row.row, name, ref: -1, exact: false, start, end }, true);
    });
    const span = element("td", "");
    span.append(open);
    const { t0, t1 } = timeline.view;
    const share = (Math.min(end, t1) - Math.max(start, t0)) / (t1 - t0);
    const length = unfinished ? "had not ended" : `${about}${duration(end - start)}`;
    line.append(element("td", String(lane.rank)), element("td", lane.label), span);
    for (const text of [`${about}${instant(start)}`, length, percent(share)]) line.append(element("td", text, "n"));
    return line;
  }
}
