/**
 * What a paint looks like in a row: its colour, and whether a search lets it fade. Looked up once
 * per theme, depth and search instead of once per slice.
 * @module
 */
import { MARK } from "../base/palette.js";
import { UNFINISHED } from "../tiles/tile.js";

/** What a search does not match keeps this much of its strength. */
export const FADED = 0.22;
/** In place of a colour: the slice is an instant. */
export const MARKED = 0xffff;

/** @typedef {{colour: Uint16Array, share: Float32Array}} Ink both by paint */

export class Inks {
  /**
   * @param {import("../base/palette.js").Palette} palette
   * @param {import("../tiles/tile.js").Paints} paints
   * @param {number} depth of the row, see `levelOf`
   * @param {Uint8Array|null} matches by name id, while searching
   * @returns {Ink}
   */
  of(palette, paints, depth, matches) {
    if (palette !== this.palette || paints !== this.paints || matches !== this.matches) {
      Object.assign(this, { palette, paints, matches });
      this.share = Float32Array.from(paints.name, (name) => (matches && !matches[name] ? FADED : 1));
      /** @type {Ink[]} by depth */
      this.made = [];
    }
    this.made[depth] ??= { colour: this.colours(depth), share: this.share };
    return this.made[depth];
  }

  colours(depth) {
    const { palette, paints } = this;
    return Uint16Array.from(paints.style, (bits, i) => {
      const style = bits & ~UNFINISHED;
      return style === MARK ? MARKED : palette.index(style, depth, paints.name[i]);
    });
  }
}
