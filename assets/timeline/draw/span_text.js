/**
 * Fits names onto spans: in full, without the namespace, or shortened.
 * @module
 */

/** Narrower spans have no name: a fragment would be unreadable. */
export const MIN_TEXT_WIDTH = 26;
const PAD = 4;

/** @typedef {{full: string, width: number, short: string, shortWidth: number, cut: string[]}} Name cut: by number of letters */

export class Labeller {
  /**
   * @param {(text: string) => number} measure width of a text, px
   * @param {string[]} names by id
   */
  constructor(measure, names) {
    this.measure = measure;
    this.names = names;
    this.forget();
  }

  /** Forgets all widths, after a change of font. */
  forget() {
    /** @type {Name[]} by id: a name is drawn thousands of times, and measured once */
    this.known = [];
    this.dots = null;
  }

  /** @param {number} id @returns {Name} */
  name(id) {
    const full = this.names[id] ?? "";
    const short = full.slice(full.lastIndexOf("::") + 1).replace(/^:/, "");
    this.known[id] = { full, width: this.measure(full), short, shortWidth: this.measure(short), cut: [] };
    return this.known[id];
  }

  /**
   * Returns the text for a span of this width, empty if none fits.
   * @param {number} id of the name
   * @param {number} width px
   */
  fit(id, width) {
    if (width < MIN_TEXT_WIDTH) return "";
    const name = this.known[id] ?? this.name(id);
    const room = width - 2 * PAD;
    if (name.width <= room) return name.full;
    if (name.shortWidth <= room) return name.short;
    this.dots ??= this.measure("…");
    const letters = Math.floor(((room - this.dots) / name.shortWidth) * name.short.length);
    if (letters < 2) return "";
    name.cut[letters] ??= `${name.short.slice(0, letters)}…`;
    return name.cut[letters];
  }

  /** Returns where a name is, with its margin. */
  rectangle({ x, y, h, text }) {
    return { x, y, w: this.measure(text) + 2 * PAD, h };
  }

  /** Draws the span's colour behind a name: the colour of the text was chosen for it. */
  drawGround(c, label, colour) {
    const { x, y, w, h } = this.rectangle(label);
    c.fillStyle = colour;
    c.fillRect(x, y, w, h);
  }
}

export const TEXT_PAD = PAD;
