/**
 * Turns pointer and wheel events on lanes, ruler and strip into calls of the timeline.
 * @module
 */

import { GRIP, RULER, STRIP } from "../draw/header.js";

/** Movement up to this still counts as a click, px. */
const CLICK_SLACK = 4;
const ZOOM_PER_PIXEL = 0.002;
/** Trackpads report a pinch as a wheel with Ctrl and far smaller steps. */
const ZOOM_PER_PINCH = 0.01;
const LINE_PX = 16;

/** @param {import("../page/timeline.js").Timeline} timeline */
export function listen(timeline) {
  const { dom } = timeline;
  dom.lanes.addEventListener("wheel", (event) => wheel(timeline, event), { passive: false });
  dom.head.addEventListener("wheel", (event) => wheel(timeline, event), { passive: false });
  dom.labels.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      timeline.scrollBy(pixels(event).y);
    },
    { passive: false },
  );
  const fingers = new Fingers(timeline);
  dom.lanes.addEventListener("pointerdown", (event) => {
    if (!fingers.down(event)) lanesDown(timeline, event, fingers);
  });
  dom.lanes.addEventListener("pointermove", (event) => timeline.pointAt(event.offsetX, event.offsetY));
  dom.lanes.addEventListener("pointerleave", () => timeline.pointAt(null, null));
  dom.lanes.addEventListener("dblclick", async () => {
    await timeline.clicked; // the span may still be requested
    timeline.zoomToSelected();
  });
  dom.head.addEventListener("pointerdown", (event) => headDown(timeline, event));
  dom.head.addEventListener("pointermove", (event) => headCursor(timeline, event));
  dom.head.addEventListener("pointerleave", () => timeline.pointAt(null, null));
}

/** Returns the wheel movement in pixels, for any unit that the device reports. */
function pixels(event) {
  const unit = event.deltaMode === 1 ? LINE_PX : event.deltaMode === 2 ? 400 : 1;
  return { x: event.deltaX * unit, y: event.deltaY * unit };
}

/**
 * The wheel scrolls the lanes and with Ctrl zooms the time axis, as in other trace viewers. It also
 * zooms over ruler and strip, and when all lanes are visible.
 */
function wheel(timeline, event) {
  event.preventDefault();
  const { x, y } = pixels(event);
  const onHead = event.currentTarget === timeline.dom.head;
  const held = event.ctrlKey || event.metaKey;
  if (event.altKey) timeline.scrollBy(y || x);
  else if (event.shiftKey && !held) timeline.panBy(x || y);
  else if (!held && Math.abs(x) > Math.abs(y)) timeline.panBy(x);
  else if (!held && !onHead && timeline.scrollable > 0) timeline.scrollBy(y);
  else {
    const limited = Math.max(-240, Math.min(240, y));
    const pinch = event.ctrlKey && Math.abs(y) < LINE_PX;
    const anchor = onHead && event.offsetY < STRIP ? null : timeline.timeAt(event.offsetX);
    timeline.zoomBy(Math.exp(limited * (pinch ? ZOOM_PER_PINCH : ZOOM_PER_PIXEL)), anchor);
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

/** Two fingers zoom and move: the time below each finger stays below it. */
class Fingers {
  constructor(timeline) {
    this.timeline = timeline;
    /** @type {Map<number, PointerEvent>} */
    this.on = new Map();
    const { lanes } = timeline.dom;
    lanes.addEventListener("pointermove", (event) => this.move(event));
    for (const name of ["pointerup", "pointercancel"])
      lanes.addEventListener(name, (event) => this.on.delete(event.pointerId));
  }

  get many() {
    return this.on.size > 1;
  }

  /** @returns {boolean} true for the second finger */
  down(event) {
    if (event.pointerType === "touch") this.on.set(event.pointerId, event);
    return this.many;
  }

  move(event) {
    if (!this.on.has(event.pointerId)) return;
    const before = this.span();
    this.on.set(event.pointerId, event);
    if (!this.many) return;
    const after = this.span();
    const { timeline } = this;
    timeline.panBy(before.x - after.x);
    timeline.zoomBy(Math.max(before.length, 8) / Math.max(after.length, 8), timeline.timeAt(after.x));
    timeline.scrollBy(before.y - after.y);
  }

  /** Returns the middle of the first two fingers in the lanes and their distance, px. */
  span() {
    const box = this.timeline.dom.lanes.getBoundingClientRect();
    const [a, b = a] = [...this.on.values()];
    return {
      x: (a.clientX + b.clientX) / 2 - box.left,
      y: (a.clientY + b.clientY) / 2 - box.top,
      length: Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY),
    };
  }
}

function lanesDown(timeline, event, fingers) {
  if (event.button > 1) return;
  const { lanes } = timeline.dom;
  if (event.shiftKey) {
    rangeFrom(timeline, lanes, event);
    return;
  }
  let moved = false;
  let last = event;
  follow(
    lanes,
    event,
    (e) => {
      if (e.pointerId !== event.pointerId) return;
      if (fingers.many) {
        moved = true;
        last = e;
        return;
      }
      moved ||= Math.hypot(e.clientX - event.clientX, e.clientY - event.clientY) > CLICK_SLACK;
      if (!moved) return;
      lanes.classList.add("panning");
      timeline.panBy(last.clientX - e.clientX);
      timeline.scrollBy(last.clientY - e.clientY);
      last = e;
    },
    (e) => {
      lanes.classList.remove("panning");
      if (!moved && e.type === "pointerup") timeline.clicked = timeline.click(e.offsetX, e.offsetY);
    },
  );
}

function rangeFrom(timeline, target, event) {
  const box = target.getBoundingClientRect();
  const onLanes = target === timeline.dom.lanes;
  const at = (e) => {
    const x = Math.min(Math.max(e.clientX - box.left, 0), box.width);
    return onLanes ? timeline.snappedAt(x, e.clientY - box.top) : timeline.timeAt(x);
  };
  const from = at(event);
  let moved = false;
  target.classList.add("ranging");
  follow(
    target,
    event,
    (e) => {
      moved ||= Math.abs(e.clientX - event.clientX) > CLICK_SLACK;
      if (!moved) return;
      const to = at(e);
      timeline.setRange(Math.min(from, to), Math.max(from, to));
    },
    () => {
      target.classList.remove("ranging");
      if (moved) return;
      const step = timeline.stepping.at(from);
      if (onLanes) timeline.measureTo(event.clientX - box.left, event.clientY - box.top);
      else if (event.clientY - box.top >= STRIP + RULER && step !== undefined) timeline.stepping.show(step);
      else timeline.setRange(0, 0);
    },
  );
}

/** Returns the part of the window that a press on the strip grips. */
function gripAt(timeline, x) {
  const [a, b] = timeline.header.windowAt(timeline.view, timeline.duration);
  if (Math.abs(x - a) <= GRIP && b - a > 3 * GRIP) return "left";
  if (Math.abs(x - b) <= GRIP && b - a > 3 * GRIP) return "right";
  return x >= a && x <= b ? "window" : "outside";
}

function headCursor(timeline, event) {
  const { head } = timeline.dom;
  if (event.offsetY >= STRIP) {
    const onStep = event.offsetY >= STRIP + RULER && timeline.stepping.at(timeline.timeAt(event.offsetX)) !== undefined;
    head.style.cursor = onStep ? "pointer" : "col-resize";
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
  follow(
    head,
    event,
    (e) => {
      moved ||= Math.abs(e.clientX - event.clientX) > CLICK_SLACK;
      if (!moved) return;
      const delta = at(e) - from;
      if (grip === "left") timeline.show(Math.min(t0 + delta, t1 - 1), t1);
      else if (grip === "right") timeline.show(t0, Math.max(t1 + delta, t0 + 1));
      else if (grip === "window") timeline.show(t0 + delta, t1 + delta);
      else timeline.show(Math.min(from, at(e)), Math.max(from, at(e)));
    },
    () => {
      if (!moved && grip === "outside") timeline.show(from - (t1 - t0) / 2, from + (t1 - t0) / 2);
    },
  );
}
