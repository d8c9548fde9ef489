/**
 * Draws the cause of a finding on its lanes.
 * @module
 */

/** @typedef {{lane: number, t0: number, t1: number, words: string, missing: boolean}} Mark */

/** Distance between the lines of a hatched band, px. */
const HATCH = 7;

/**
 * Draws a frame with words for each mark, hatched for what never came. Nothing veils the names below it.
 * @param {CanvasRenderingContext2D} c
 * @param {Mark[]} marks
 * @param {import("../page/timeline.js").Timeline} timeline
 */
export function drawMarks(c, marks, { view, layout, scrollY, width, palette }) {
  const scale = width / (view.t1 - view.t0);
  for (const { lane, t0, t1, words, missing } of marks) {
    const place = layout.onScreen(lane, 0, scrollY);
    const [x0, x1] = [Math.max((t0 - view.t0) * scale, -2), Math.min((t1 - view.t0) * scale, width + 2)];
    if (!place || x1 < 0 || x0 > width) continue;
    const { y, h } = place;
    const w = Math.max(x1 - x0, 2);
    c.save();
    c.beginPath();
    c.rect(x0, y - 1, w, h + 2);
    c.clip();
    c.strokeStyle = palette.token("bad");
    if (missing) {
      c.lineWidth = 1;
      c.beginPath();
      for (let x = x0 - h; x < x1; x += HATCH) {
        c.moveTo(x, y + h + 1);
        c.lineTo(x + h + 2, y - 1);
      }
      c.stroke();
    }
    c.lineWidth = 2;
    c.strokeRect(x0, y - 1, w, h + 2);
    c.font = "11px sans-serif";
    c.textBaseline = "middle";
    const text = c.measureText(words).width;
    if (text + 12 < w) {
      const left = Math.max(x0, 0) + (Math.min(x1, width) - Math.max(x0, 0) - text) / 2;
      c.fillStyle = palette.token("panel");
      c.fillRect(left - 5, y + 1, text + 10, h - 2);
      c.fillStyle = palette.token("bad");
      c.fillText(words, left, y + h / 2 + 0.5);
    }
    c.restore();
  }
}
