/**
 * Names on slices: what fits, in full, without its namespace, or shortened.
 * @module
 */

/** Below this width a name would be a fragment nobody can read. */
export const LEAST_WIDTH = 26;
const PAD = 4;

/** @typedef {{full: string, width: number, short: string, shortWidth: number, cut: string[]}} Name cut: by letters left */

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

  /** Texts have other widths now. */
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
   * The text for a slice of this width, empty where none fits.
   * @param {number} id of the name
   * @param {number} width px
   */
  fit(id, width) {
    if (width < LEAST_WIDTH) return "";
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
}

export const TEXT_PAD = PAD;
