/**
 * Names on slices: what fits, in full, without its namespace, or shortened.
 * @module
 */

/** Below this width a name would be a fragment nobody can read. */
export const LEAST_WIDTH = 26;
const PAD = 4;

export class Labeller {
  /**
   * @param {(text: string) => number} measure width of a text, px
   * @param {string[]} names by id
   */
  constructor(measure, names) {
    this.measure = measure;
    this.names = names;
    this.widths = new Map();
  }

  /** @param {string} text */
  width(text) {
    let width = this.widths.get(text);
    if (width === undefined) {
      width = this.measure(text);
      this.widths.set(text, width);
    }
    return width;
  }

  /**
   * The text for a slice of this width, empty where none fits.
   * @param {number} name id
   * @param {number} width px
   */
  fit(name, width) {
    if (width < LEAST_WIDTH) return "";
    const full = this.names[name] ?? "";
    const room = width - 2 * PAD;
    if (this.width(full) <= room) return full;
    const short = full.slice(full.lastIndexOf("::") + 1).replace(/^:/, "");
    const whole = this.width(short);
    if (whole <= room) return short;
    const letters = Math.floor(((room - this.width("…")) / whole) * short.length);
    return letters >= 2 ? `${short.slice(0, letters)}…` : "";
  }
}

export const TEXT_PAD = PAD;
