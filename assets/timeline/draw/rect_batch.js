/**
 * Rectangles of slices, gathered by colour: a canvas takes far longer to be told of another colour
 * than to draw one rectangle more.
 * @module
 */
import { FADED } from "./paint_colors.js";

export class Fills {
  constructor() {
    /** @type {number[][]} x, y, w, h of each rectangle, by colour, and whether they fade */
    this.by = [];
    /** @type {number[]} */
    this.used = [];
  }

  /** @param {number} colour index into the palette @param {boolean} faded */
  add(colour, faded, x, y, w, h) {
    const at = colour * 2 + (faded ? 1 : 0);
    let list = this.by[at];
    if (!list) {
      list = [];
      this.by[at] = list;
    }
    if (!list.length) this.used.push(at);
    list.push(x, y, w, h);
  }

  /** Draws what was gathered and forgets it. @param {CanvasRenderingContext2D} c @param {string[]} css by colour, and whether they fade */
  draw(c, css) {
    for (const at of this.used) {
      const list = this.by[at];
      c.fillStyle = css[at >> 1];
      c.globalAlpha = at & 1 ? FADED : 1;
      for (let i = 0; i < list.length; i += 4) c.fillRect(list[i], list[i + 1], list[i + 2], list[i + 3]);
      list.length = 0;
    }
    c.globalAlpha = 1;
    this.used.length = 0;
  }
}
