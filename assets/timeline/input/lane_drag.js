/**
 * Reorders lanes and groups by dragging their names.
 * @module
 */

import { element } from "../base/dom.js";

const SLACK = 5;

/** @param {import("../page/timeline.js").Timeline} timeline */
export function listenLaneDrag(timeline) {
  const { labels } = timeline.dom;
  let dragged = false;
  // The press that began a drag would otherwise end as a click that opens or closes.
  labels.addEventListener(
    "click",
    (event) => {
      if (dragged) event.stopPropagation();
      dragged = false;
    },
    { capture: true },
  );
  labels.addEventListener("pointerdown", (event) => {
    dragged = false;
    const node = event.target instanceof Element ? event.target.closest("[data-lane], .tl-group") : null;
    if (event.button !== 0 || !node || event.target.closest(".pin")) return;
    const start = event.clientY;
    let line = null;
    let target = null;
    const move = (e) => {
      if (!line && Math.abs(e.clientY - start) < SLACK) return;
      if (!line) {
        line = element("div", "", "tl-drop");
        labels.append(line);
        labels.setPointerCapture(event.pointerId);
        node.classList.add("dragged");
      }
      target = targetAt(timeline, node, e.clientY - labels.getBoundingClientRect().top);
      line.hidden = !target;
      if (target) line.style.top = `${target.y - 1}px`;
    };
    const up = () => {
      labels.removeEventListener("pointermove", move);
      labels.removeEventListener("pointerup", up);
      labels.removeEventListener("pointercancel", up);
      node.classList.remove("dragged");
      if (!line) return;
      line.remove();
      dragged = true;
      if (target) target.drop();
    };
    labels.addEventListener("pointermove", move);
    labels.addEventListener("pointerup", up);
    labels.addEventListener("pointercancel", up);
  });
}

/** Returns the place where a dragged lane or group would be dropped at this height. */
function targetAt(timeline, node, y) {
  const {
    layout,
    scrollY,
    arranger,
    arrangement: { pins },
  } = timeline;
  const places = (items, shift) =>
    items.map((item) => ({ item, top: item.y - shift, bottom: item.y + item.h - shift }));
  const between = (all, of) => {
    const next = all.find(({ top, bottom }) => y < (top + bottom) / 2);
    return { y: next ? next.top : (all.at(-1)?.bottom ?? 0), before: next ? of(next.item) : null };
  };
  if (node.dataset.lane === undefined) {
    const own = Number(node.dataset.group);
    const heads = layout.items.filter((item) => item.type === "group");
    const spans = heads.map((item, i) => ({
      item,
      top: item.y - scrollY,
      bottom: (heads[i + 1]?.y ?? layout.height) - scrollY,
    }));
    const { y: at, before } = between(spans, (item) => item.group.index);
    return { y: at, drop: () => before !== own && arranger.moveGroup(own, before) };
  }
  const id = Number(node.dataset.lane);
  const group = layout.items.find((item) => item.lane?.id === id)?.group;
  const mates = pins.includes(id)
    ? places(layout.pinned, 0)
    : places(
        layout.items.filter((item) => item.lane && item.group === group),
        scrollY,
      );
  const { y: at, before } = between(mates, (item) => item.lane.id);
  return { y: at, drop: () => before !== id && arranger.moveLane(id, before) };
}
