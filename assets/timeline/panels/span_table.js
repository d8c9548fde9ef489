/**
 * What is visible as a table: for screen readers, for copying, for reading names that do not fit.
 * @module
 */

import { element } from "../base/dom.js";
import { duration, instant, percent } from "../base/format.js";
import { UNFINISHED } from "../base/palette.js";
import { SHARE_OF } from "../tiles/tile.js";

const MOST = 400;
/** Narrower slices are counted, not listed, px. */
const LEAST = 3;

/**
 * The slices that one can tell apart, lane by lane, and how much of the window the rest covers.
 * @param {import("../page/timeline.js").Timeline} timeline
 * @returns {{rows: {lane: import("../model/layout.js").Lane, row: import("../model/layout.js").Row, name: number, start: number, end: number, exact: boolean, unfinished: boolean}[], left: number, covered: number}}
 */
export function visibleSlices({ view, width, layout, scrollY, height, feed }) {
  const least = (LEAST * (view.t1 - view.t0)) / width;
  const rows = [];
  let left = 0;
  let covered = 0;
  for (const { items } of layout.parts(scrollY, height)) {
    for (const row of items.flatMap((item) => (item.lane ? item.rows : []))) {
      if (row.lane.kind === "counter") continue;
      let last = -1;
      for (const { tile, from, to } of feed.sources(row.lane.id)) {
        const block = tile.block(row.lane.id, row.row);
        const [low, high] = [Math.max(view.t0, from), Math.min(view.t1, to)];
        for (let i = 0; i < (block?.dense?.n ?? 0); i += 1) {
          const begin = tile.start + block.dense.bucket[i] * tile.bucket;
          if (begin + tile.bucket > low && begin < high) covered += SHARE_OF[block.dense.covered[i]] * tile.bucket;
        }
        const s = block?.slices;
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

export class SliceTable {
  /** @param {HTMLElement} host @param {import("../page/timeline.js").Timeline} timeline */
  constructor(host, timeline) {
    this.host = host;
    this.timeline = timeline;
    this.shown = false;
  }

  /** Called when the tab opens and whenever the window has come to rest. */
  refresh() {
    if (!this.shown) return;
    const { timeline } = this;
    const { rows, left } = visibleSlices(timeline);
    const table = element("table", "", "plain");
    const more = rows.length > MOST ? `; the first ${MOST} are listed` : "";
    table.append(
      element("caption", `${rows.length} slices in sight${more}${left ? `, ${left} too narrow to tell apart` : ""}`),
    );
    const head = element("tr", "");
    for (const title of ["rank", "lane", "slice", "start", "length", "of the window"]) {
      const cell = element("th", title);
      cell.scope = "col";
      head.append(cell);
    }
    const thead = element("thead", "");
    thead.append(head);
    const body = element("tbody", "");
    for (const slice of rows.slice(0, MOST)) body.append(this.line(slice));
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
      timeline.selectHit({ kind: "slice", lane: lane.id, row: row.row, name, ref: -1, exact: false, start, end }, true);
    });
    const slice = element("td", "");
    slice.append(open);
    const { t0, t1 } = timeline.view;
    const share = (Math.min(end, t1) - Math.max(start, t0)) / (t1 - t0);
    const length = unfinished ? "had not ended" : `${about}${duration(end - start)}`;
    line.append(element("td", String(lane.rank)), element("td", lane.label), slice);
    for (const text of [`${about}${instant(start)}`, length, percent(share)]) line.append(element("td", text, "n"));
    return line;
  }
}
