/**
 * Exports the view: PNG with the pixels of the screen, SVG with scalable shapes and text.
 * @module
 */

import { HEAD, Header } from "./header.js";
import { Painter } from "./painter.js";
import { headFrame, lanesFrame } from "./scene.js";
import { SvgContext } from "./svg.js";

const LABELS = 208;

/** @param {import("../page/timeline.js").Timeline} timeline */
export function savePng(timeline) {
  const { width, height, ratio, palette, dom, painter } = timeline;
  const canvas = document.createElement("canvas");
  canvas.width = Math.round((width + LABELS) * ratio);
  canvas.height = Math.round((height + HEAD) * ratio);
  const c = canvas.getContext("2d");
  c.scale(ratio, ratio);
  c.fillStyle = palette.token("ground");
  c.fillRect(0, 0, width + LABELS, height + HEAD);
  c.drawImage(dom.headCanvas, LABELS, 0, width, HEAD);
  c.drawImage(dom.lanesCanvas, LABELS, HEAD, width, height);
  c.drawImage(dom.overlayCanvas, LABELS, HEAD, width, height);
  labels(c, timeline, painter.font);
  timeline.idle.track(
    "picture",
    new Promise((resolve) => {
      canvas.toBlob((blob) => resolve(save(timeline, blob, "png")), "image/png");
    }),
  );
}

/** @param {import("../page/timeline.js").Timeline} timeline */
export function saveSvg(timeline) {
  const { width, height, palette, painter } = timeline;
  const svg = new SvgContext(width + LABELS, height + HEAD, timeline.painter.context);
  svg.fillStyle = palette.token("ground");
  svg.fillRect(0, 0, width + LABELS, height + HEAD);
  svg.group(LABELS, HEAD, width, height, () =>
    drawWith(new Painter(canvasOf(svg), timeline.names), timeline, lanesFrame(timeline)),
  );
  svg.group(LABELS, 0, width, HEAD, () => drawWith(new Header(canvasOf(svg)), timeline, headFrame(timeline)));
  labels(svg, timeline, painter.font);
  save(timeline, new Blob([svg.text()], { type: "image/svg+xml" }), "svg");
}

/** Wraps an SVG as the canvas that a painter expects. */
const canvasOf = (svg) => ({ getContext: () => svg, style: {} });

function drawWith(painter, { width, height }, frame) {
  if (painter instanceof Header) painter.resize(width, 1);
  else painter.resize(width, height, 1);
  painter.draw(frame);
}

function labels(c, { layout, scrollY, height, palette, collapsed }, font) {
  for (const { items, shift, top, bottom } of layout.parts(scrollY, height)) {
    c.save();
    c.beginPath();
    c.rect(0, HEAD + top, LABELS, bottom - top);
    c.clip();
    c.textBaseline = "middle";
    for (const { lane, group, y } of items) {
      c.font = lane ? font : `600 ${font}`;
      c.fillStyle = palette.token("ink");
      const pinned = group === null ? ` · rank ${lane.rank}` : "";
      const text = lane ? `${lane.label}${pinned}` : `${collapsed.has(group.index) ? "▸" : "▾"} ${group.name}`;
      c.fillText(text, lane ? 30 : 12, HEAD + y - shift + 11);
    }
    c.restore();
  }
}

function save({ run }, blob, kind) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = `${run.title.replaceAll(/[^\w.-]+/g, "-").replace(/^-/, "")}.${kind}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
