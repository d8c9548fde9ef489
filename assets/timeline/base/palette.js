/**
 * Colours: turns the style sheet's tokens into fills, pixels and readable text colours. The colour is
 * that of the phase, or of the difference from a baseline. Depth makes it softer, and the op's name
 * shifts its shade a little.
 * @module
 */

const PHASES = ["forward", "backward", "optimizer", "collective", "data"];
const DIFFERENCES = ["different", "added", "removed", "slower", "faster"];

export const TOKENS = [
  ...["ground", "panel", "ink", "muted", "line", "accent", "good", "warn", "bad"],
  ...PHASES,
  ...["other", "identical", "within"],
  ...DIFFERENCES,
];
/** Token of each style class of the payload. */
export const STYLE_TOKENS = ["other", ...PHASES, "other", "other", "ink", "identical", "within", ...DIFFERENCES];
const UNPHASED = ["evaluation", "user", "mark"];
/** Words for the style classes, for tooltips and screen readers. */
export const STYLE_NAMES = ["other", ...PHASES, ...UNPHASED, "identical", "within tolerance", ...DIFFERENCES];
export const MARK = 8;
/** Bit of a paint's style: the span had not ended when the recording did. */
export const UNFINISHED = 0x80;
const SOFT = [0, 0.1, 0.24, 0.34];
const SHADES = [0, -0.07, 0.07];
// Black and white alone always reach MIN_CONTRAST: their ratios multiply to 21, and 4.58^2 = 21.
const DARK_TEXT = [0, 0, 0];
const LIGHT_TEXT = [255, 255, 255];
/** Contrast that WCAG requires of small text. */
export const MIN_CONTRAST = 4.5;

/** Opacity of spans that the search does not match. */
export const FADED = 0.22;
/** In place of a colour: the span is an instant. */
export const MARKED = 0xffff;

/** @typedef {[number, number, number]} Rgb */

/**
 * Reads the tokens as the browser resolves them now. light-dark() is only resolved in a property that
 * takes a colour; the custom property itself returns its source text.
 * @param {HTMLElement} host
 * @returns {Record<string, Rgb>}
 */
export function readTokens(host) {
  const probe = document.createElement("i");
  host.append(probe);
  const tokens = {};
  for (const token of TOKENS) {
    probe.style.color = `var(--${token})`;
    tokens[token] = parse(getComputedStyle(probe).color);
  }
  probe.remove();
  return tokens;
}

/** @param {string} text `rgb(1, 2, 3)` @returns {Rgb} */
function parse(text) {
  const [r, g, b] = text.match(/[\d.]+/g).map(Number);
  return [r, g, b];
}

/** @param {Rgb} a @param {Rgb} b @param {number} share of b @returns {Rgb} */
function mix(a, b, share) {
  return a.map((v, i) => Math.round(v + (b[i] - v) * share));
}

/** Relative luminance as WCAG 2 defines it. @param {Rgb} colour */
export function luminance(colour) {
  const [r, g, b] = colour.map((v) => {
    const c = v / 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** WCAG 2 contrast ratio, 1..21. @param {Rgb} a @param {Rgb} b */
export function contrast(a, b) {
  const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
  return (high + 0.05) / (low + 0.05);
}

/** Returns black or white, whichever has more contrast to `fill`. @param {Rgb} fill @returns {Rgb} */
export function textOn(fill) {
  return contrast(fill, DARK_TEXT) >= contrast(fill, LIGHT_TEXT) ? DARK_TEXT : LIGHT_TEXT;
}

/** @param {Rgb} colour @param {number} [alpha] */
export const css = ([r, g, b], alpha = 1) => (alpha === 1 ? `rgb(${r},${g},${b})` : `rgba(${r},${g},${b},${alpha})`);

/** Hashes a name to a shade: the same op has the same shade on all ranks and in all runs. */
export function shadeOf(name) {
  let hash = 2166136261;
  for (let i = 0; i < name.length; i += 1) hash = Math.imul(hash ^ name.charCodeAt(i), 16777619);
  return (hash >>> 0) % SHADES.length;
}

/**
 * Returns the depth of a row's colour: ops begin one below the phases, for any number of phase rows.
 * Rows of a collectives lane are side by side, not nested.
 * @param {import("../model/layout.js").Lane} lane
 * @param {number} row
 */
export function levelOf(lane, row) {
  if (lane.kind !== "thread" && lane.kind !== "baseline") return 0;
  const phases = lane.phase_rows ?? 0;
  return row < phases || !phases ? row : row - phases + 1;
}

/** All fills of one theme, addressed by a small integer. */
export class Palette {
  /**
   * @param {Record<string, Rgb>} tokens
   * @param {string[]} names of ops, by name id
   */
  constructor(tokens, names) {
    this.tokens = tokens;
    this.shades = Uint8Array.from(names, shadeOf);
    /** @type {Rgb[]} */
    this.rgb = [];
    this.css = [];
    this.text = [];
    const dark = luminance(tokens.panel) < luminance(tokens.ink);
    const towards = dark ? tokens.ground : tokens.panel;
    for (const token of STYLE_TOKENS) {
      for (const soft of SOFT) {
        for (const shade of SHADES) {
          const base = mix(tokens[token], towards, soft);
          const fill = mix(base, shade < 0 ? [0, 0, 0] : [255, 255, 255], Math.abs(shade));
          this.rgb.push(fill);
          this.css.push(css(fill));
          this.text.push(css(textOn(fill)));
        }
      }
    }
    /** @type {Map<number, Record<string, string>>} css of tokens by opacity: read hundreds of times per frame */
    this.made = new Map();
    this.pixel = Uint32Array.from(this.rgb, ([r, g, b]) => (b << 16) | (g << 8) | r);
  }

  /**
   * Returns the index of a span's fill.
   * @param {number} style class of the payload
   * @param {number} level of nesting, see `levelOf`; the outermost has the strongest colour
   * @param {number} name id
   */
  index(style, level, name) {
    const depth = level < SOFT.length ? level : SOFT.length - 1;
    const shade = level === 0 ? 0 : (this.shades[name] ?? 0);
    return ((style < STYLE_TOKENS.length ? style : 0) * SOFT.length + depth) * SHADES.length + shade;
  }

  /** CSS colour of a token. @param {string} token @param {number} [alpha] */
  token(token, alpha = 1) {
    let made = this.made.get(alpha);
    if (!made) {
      made = {};
      this.made.set(alpha, made);
    }
    made[token] ??= css(this.tokens[token], alpha);
    return made[token];
  }
}

/** @typedef {{colour: Uint16Array, share: Float32Array}} RowColors both by paint */

/**
 * Colours of paints in a row, and whether a search fades them. Looked up once per theme, depth and
 * search, not once per span.
 */
export class PaintColors {
  /**
   * @param {Palette} palette
   * @param {import("../tiles/tile.js").Paints} paints
   * @param {number} depth of the row, see `levelOf`
   * @param {Uint8Array|null} matches by name id, while searching
   * @returns {RowColors}
   */
  of(palette, paints, depth, matches) {
    if (palette !== this.palette || paints !== this.paints || matches !== this.matches) {
      Object.assign(this, { palette, paints, matches });
      this.share = Float32Array.from(paints.name, (name) => (matches && !matches[name] ? FADED : 1));
      /** @type {RowColors[]} by depth */
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
