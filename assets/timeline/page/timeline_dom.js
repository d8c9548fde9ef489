/**
 * Builds the timeline's elements inside its host.
 * @module
 */

import { element } from "../base/dom.js";
import { HEAD } from "../draw/header.js";

/** @param {HTMLElement} host */
export function buildDom(host) {
  const grid = element("div", "", "tl-grid");
  const corner = element("div", "", "tl-corner");
  corner.style.height = `${HEAD + 1}px`;
  const [run, base, steps] = ["", "", "steps"].map((text) => element("span", text));
  const top = element("div", "", "tl-corner-top");
  const [filter, grouping] = [element("div", ""), element("div", "", "tl-grouping")];
  top.append(run, filter);
  const below = element("div", "", "tl-corner-steps");
  below.append(steps, grouping);
  corner.append(top, base, below);
  const head = element("div", "", "tl-head");
  head.style.height = `${HEAD + 1}px`;
  const headCanvas = element("canvas", "");
  headCanvas.setAttribute("aria-hidden", "true");
  head.append(headCanvas);
  const strip = element("div", "", "tl-finding");
  strip.hidden = true;
  const labels = element("div", "", "tl-labels");
  const lanes = element("div", "", "tl-lanes");
  const lanesCanvas = element("canvas", "");
  lanesCanvas.setAttribute("role", "img");
  lanesCanvas.setAttribute(
    "aria-label",
    "Lanes of all ranks and threads. The tab Slices below lists the visible ones.",
  );
  const overlayCanvas = element("canvas", "");
  overlayCanvas.setAttribute("aria-hidden", "true");
  const scroll = element("div", "", "tl-scroll");
  const thumb = element("i", "");
  scroll.append(thumb);
  lanes.append(lanesCanvas, overlayCanvas, scroll);
  const live = element("div", "", "visually-hidden");
  live.setAttribute("aria-live", "polite");
  const toast = element("div", "", "tl-toast");
  toast.hidden = true;
  toast.setAttribute("role", "status");
  grid.append(corner, head, strip, labels, lanes);
  host.replaceChildren(grid, live, toast);
  host.tabIndex = 0;
  host.setAttribute("role", "application");
  host.setAttribute("aria-label", "Timeline of all ranks and threads. Press question mark for the keys.");
  return {
    host,
    grid,
    corner: { run, base, steps, filter, grouping },
    head,
    headCanvas,
    strip,
    labels,
    lanes,
    lanesCanvas,
    overlayCanvas,
    scroll,
    thumb,
    live,
    toast,
  };
}

/**
 * The vertical scroll bar of the lanes.
 * @param {ReturnType<typeof buildDom>} dom
 * @param {(y: number) => void} scrollTo
 * @returns {(y: number, visible: number, all: number) => void} places the thumb
 */
export function verticalScroll(dom, scrollTo) {
  let range = { visible: 1, all: 1 };
  dom.scroll.addEventListener("pointerdown", (event) => {
    event.stopPropagation();
    event.preventDefault();
    dom.scroll.setPointerCapture(event.pointerId);
    dom.scroll.classList.add("dragging");
    const thumb = dom.thumb.getBoundingClientRect();
    const inside = event.clientY >= thumb.top && event.clientY < thumb.bottom;
    const offset = inside ? event.clientY - thumb.top : thumb.height / 2;
    const move = (e) => {
      const track = dom.scroll.getBoundingClientRect();
      scrollTo(((e.clientY - offset - track.top) / track.height) * range.all);
    };
    move(event);
    dom.scroll.addEventListener("pointermove", move);
    dom.scroll.addEventListener(
      "lostpointercapture",
      () => {
        dom.scroll.removeEventListener("pointermove", move);
        dom.scroll.classList.remove("dragging");
      },
      { once: true },
    );
  });
  let placed = "";
  return (y, visible, all) => {
    const place = `${y}/${visible}/${all}`;
    if (place === placed) return;
    placed = place;
    range = { visible, all };
    dom.scroll.hidden = all <= visible;
    dom.thumb.style.top = `${(y / all) * 100}%`;
    dom.thumb.style.height = `${Math.max((visible / all) * 100, 4)}%`;
  };
}
