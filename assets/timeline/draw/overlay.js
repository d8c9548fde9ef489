/**
 * Draws what follows the pointer, on its own canvas above the lanes.
 * @module
 */

import { fitCanvas } from "../base/dom.js";

export class Overlay {
  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
  }

  resize(width, height, ratio) {
    fitCanvas(this, width, height, ratio);
  }

  /**
   * @param {object} frame
   * @param {{t0: number, t1: number}} frame.view
   * @param {import("../base/palette.js").Palette} frame.palette
   * @param {number|null} frame.cursor instant under the pointer
   * @param {{t0: number, t1: number}|null} frame.range
   * @param {{start: number, end: number, y: number, h: number}|null} frame.hover
   * @param {{start: number, end: number, y: number, h: number}|null} frame.selected
   */
  draw({ view, palette, cursor, range, hover, selected }) {
    const { context: c, width, height } = this;
    const scale = width / (view.t1 - view.t0);
    c.clearRect(0, 0, width, height);
    if (range) {
      const [x0, x1] = [(range.t0 - view.t0) * scale, (range.t1 - view.t0) * scale];
      c.fillStyle = palette.token("ground", 0.55);
      c.fillRect(0, 0, Math.max(x0, 0), height);
      c.fillRect(x1, 0, Math.max(width - x1, 0), height);
      c.fillStyle = palette.token("accent");
      c.fillRect(x0, 0, 1, height);
      c.fillRect(x1 - 1, 0, 1, height);
    }
    if (cursor !== null) {
      c.fillStyle = palette.token("ink", 0.28);
      c.fillRect(Math.round((cursor - view.t0) * scale), 0, 1 / this.ratio, height);
    }
    if (hover) this.outline(hover, view, scale, palette.token("ink"), 1);
    if (selected) this.outline(selected, view, scale, palette.token("ink"), 2);
  }

  outline({ start, end, y, h }, view, scale, colour, weight) {
    const { context: c } = this;
    const x0 = Math.max((start - view.t0) * scale, -4);
    const x1 = Math.min((end - view.t0) * scale, this.width + 4);
    if (x1 < -2 || x0 > this.width + 2 || y > this.height || y + h < 0) return;
    const w = Math.max(x1 - x0, 3);
    c.strokeStyle = colour;
    c.lineWidth = weight;
    const out = weight / 2;
    c.strokeRect(x0 - out, y - out, w + weight - 1, h + weight);
  }
}
