/**
 * Rows of pixels for what is too narrow to be a rectangle. Each pixel holds the share of its time
 * that is covered (as opacity, so that density stays true) in the colour of what covers most.
 * @module
 */

/** A lone nanosecond must still be seen: what is there at all gets at least this opacity. */
export const LEAST_ALPHA = 0.3;

export class Raster {
  constructor() {
    this.canvas = document.createElement("canvas");
    this.context = this.canvas.getContext("2d");
    this.width = 0;
    this.rows = 0;
    /** @type {{y: number, h: number}[]} */
    this.placed = [];
    this.used = false;
  }

  /** Start a frame. @param {number} width px @param {number} rows at most */
  begin(width, rows) {
    if (width !== this.width || rows > this.rows) {
      this.width = width;
      this.rows = Math.max(rows, this.rows, 32);
      this.canvas.width = width;
      this.canvas.height = this.rows;
      this.image = this.context.createImageData(width, this.rows);
      this.pixels = new Uint32Array(this.image.data.buffer);
      this.covered = new Float32Array(width);
      this.best = new Float32Array(width);
      this.colour = new Uint16Array(width);
    }
    this.placed.length = 0;
    this.cells = 0;
  }

  /**
   * Something from x0 to x1 (px) that covers `share` of that stretch.
   * @param {number} x0
   * @param {number} x1
   * @param {number} share 0..1
   * @param {number} colour index into the palette
   */
  add(x0, x1, share, colour) {
    this.used = true;
    const first = Math.max(0, Math.floor(x0));
    const last = Math.min(this.width - 1, Math.ceil(x1) - 1);
    for (let x = first; x <= Math.max(first, last) && x < this.width; x += 1) {
      const part = Math.max((Math.min(x1, x + 1) - Math.max(x0, x)) * share, 1e-6);
      this.covered[x] += part;
      if (part > this.best[x]) {
        this.best[x] = part;
        this.colour[x] = colour;
      }
    }
  }

  /** Finish a row: its pixels will stand at y with height h. @param {Uint32Array} palette */
  end(y, h, palette) {
    if (!this.used) return;
    const offset = this.placed.length * this.width;
    const { covered, best, colour, pixels } = this;
    for (let x = 0; x < this.width; x += 1) {
      const share = covered[x];
      if (share > 0) {
        const alpha = LEAST_ALPHA + (1 - LEAST_ALPHA) * Math.min(1, share);
        pixels[offset + x] = ((alpha * 255) << 24) | palette[colour[x]];
        this.cells += 1;
        covered[x] = 0;
        best[x] = 0;
      } else pixels[offset + x] = 0;
    }
    this.placed.push({ y, h });
    this.used = false;
  }

  /** Put all rows onto the canvas. @param {CanvasRenderingContext2D} context */
  flush(context) {
    if (!this.placed.length) return;
    this.context.putImageData(this.image, 0, 0, 0, 0, this.width, this.placed.length);
    context.imageSmoothingEnabled = false;
    this.placed.forEach(({ y, h }, i) => {
      context.drawImage(this.canvas, 0, i, this.width, 1, 0, y, this.width, h);
    });
  }
}
