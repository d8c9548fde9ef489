/**
 * Pointer and wheel on the lanes, the ruler and the strip, turned into calls of the timeline.
 * @module
 */
import { GRIP, STRIP } from "./header.js";

/** Movement below this is a click with an unsteady hand, px. */
const CLICK_SLACK = 4;
const ZOOM_PER_PIXEL = 0.002;
const LINE_PX = 16;

/** @param {import("./timeline.js").Timeline} timeline */
export function listen(timeline) {
  const { dom } = timeline;
  dom.lanes.addEventListener("wheel", (event) => wheel(timeline, event), { passive: false });
  dom.head.addEventListener("wheel", (event) => wheel(timeline, event), { passive: false });
  dom.labels.addEventListener("wheel", (event) => {
    event.preventDefault();
    timeline.scrollBy(pixels(event).y);
  }, { passive: false });
  dom.lanes.addEventListener("pointerdown", (event) => lanesDown(timeline, event));
  dom.lanes.addEventListener("pointermove", (event) => timeline.pointAt(event.offsetX, event.offsetY));
  dom.lanes.addEventListener("pointerleave", () => timeline.pointAt(null, null));
  dom.lanes.addEventListener("dblclick", () => timeline.zoomToSelected());
  dom.head.addEventListener("pointerdown", (event) => headDown(timeline, event));
  dom.head.addEventListener("pointermove", (event) => headCursor(timeline, event));
  dom.head.addEventListener("pointerleave", () => timeline.pointAt(null, null));
}

/** Wheel movement in pixels, whatever unit the device reports. */
function pixels(event) {
  const unit = event.deltaMode === 1 ? LINE_PX : event.deltaMode === 2 ? 400 : 1;
  return { x: event.deltaX * unit, y: event.deltaY * unit };
}

function wheel(timeline, event) {
  event.preventDefault();
  const { x, y } = pixels(event);
  if (event.altKey) timeline.scrollBy(y || x);
  else if (event.shiftKey && !event.ctrlKey) timeline.panBy(x || y);
  else if (!event.ctrlKey && !event.metaKey && Math.abs(x) > Math.abs(y)) timeline.panBy(x);
  else {
    const limited = Math.max(-240, Math.min(240, y));
    const onStrip = event.currentTarget === timeline.dom.head && event.offsetY < STRIP;
    const anchor = onStrip ? null : timeline.timeAt(event.offsetX);
    timeline.zoomBy(Math.exp(limited * ZOOM_PER_PIXEL), anchor);
  }
}

/** Follows the pointer until it is released. */
function follow(target, event, move, end) {
  target.setPointerCapture(event.pointerId);
  target.addEventListener("pointermove", move);
  const up = (e) => {
    target.removeEventListener("pointermove", move);
    target.removeEventListener("pointerup", up);
    target.removeEventListener("pointercancel", up);
    end(e);
  };
  target.addEventListener("pointerup", up);
  target.addEventListener("pointercancel", up);
}

function lanesDown(timeline, event) {
  if (event.button > 1) return;
  const { lanes } = timeline.dom;
  if (event.shiftKey) {
    rangeFrom(timeline, lanes, event);
    return;
  }
  let moved = false;
  let last = event;
  follow(lanes, event, (e) => {
    moved ||= Math.hypot(e.clientX - event.clientX, e.clientY - event.clientY) > CLICK_SLACK;
    if (!moved) return;
    lanes.classList.add("panning");
    timeline.panBy(last.clientX - e.clientX);
    timeline.scrollBy(last.clientY - e.clientY);
    last = e;
  }, (e) => {
    lanes.classList.remove("panning");
    if (!moved && e.type === "pointerup") timeline.click(e.offsetX, e.offsetY);
  });
}

function rangeFrom(timeline, target, event) {
  const box = target.getBoundingClientRect();
  const from = timeline.timeAt(event.clientX - box.left);
  let moved = false;
  target.classList.add("ranging");
  follow(target, event, (e) => {
    moved ||= Math.abs(e.clientX - event.clientX) > CLICK_SLACK;
    if (!moved) return;
    const to = timeline.timeAt(Math.min(Math.max(e.clientX - box.left, 0), box.width));
    timeline.setRange(Math.min(from, to), Math.max(from, to));
  }, () => {
    target.classList.remove("ranging");
    if (!moved) timeline.setRange(0, 0);
  });
}

/** What a press at this place of the strip takes hold of. */
function gripAt(timeline, x) {
  const [a, b] = timeline.header.windowAt(timeline.view, timeline.duration);
  if (Math.abs(x - a) <= GRIP && b - a > 3 * GRIP) return "left";
  if (Math.abs(x - b) <= GRIP && b - a > 3 * GRIP) return "right";
  return x >= a && x <= b ? "window" : "outside";
}

function headCursor(timeline, event) {
  const { head } = timeline.dom;
  if (event.offsetY >= STRIP) {
    head.style.cursor = "col-resize";
    timeline.pointAt(event.offsetX, null);
    return;
  }
  timeline.pointAt(null, null);
  const grip = gripAt(timeline, event.offsetX);
  head.style.cursor = { left: "ew-resize", right: "ew-resize", window: "grab", outside: "crosshair" }[grip];
}

function headDown(timeline, event) {
  if (event.button !== 0) return;
  const { head } = timeline.dom;
  if (event.offsetY >= STRIP) {
    rangeFrom(timeline, head, event);
    return;
  }
  const box = head.getBoundingClientRect();
  const at = (e) => (Math.min(Math.max(e.clientX - box.left, 0), box.width) / box.width) * timeline.duration;
  const grip = gripAt(timeline, event.offsetX);
  const { t0, t1 } = timeline.view;
  const from = at(event);
  let moved = false;
  follow(head, event, (e) => {
    moved ||= Math.abs(e.clientX - event.clientX) > CLICK_SLACK;
    if (!moved) return;
    const delta = at(e) - from;
    if (grip === "left") timeline.show(Math.min(t0 + delta, t1 - 1), t1);
    else if (grip === "right") timeline.show(t0, Math.max(t1 + delta, t0 + 1));
    else if (grip === "window") timeline.show(t0 + delta, t1 + delta);
    else timeline.show(Math.min(from, at(e)), Math.max(from, at(e)));
  }, () => {
    if (!moved && grip === "outside") timeline.show(from - (t1 - t0) / 2, from + (t1 - t0) / 2);
  });
}
