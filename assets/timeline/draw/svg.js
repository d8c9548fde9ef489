/**
 * Implements the part of a 2D context that the painters use, and writes it as SVG.
 * @module
 */

const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll('"', "&quot;");
const short = (number) => String(Math.round(number * 100) / 100);

export class SvgContext {
  /** @param {number} width px @param {number} height px @param {CanvasRenderingContext2D} measure for widths of text */
  constructor(width, height, measure) {
    Object.assign(this, { width, height, measure });
    this.out = [];
    this.clips = 0;
    this.open = [0];
    this.saved = [];
    Object.assign(this, {
      fillStyle: "#000",
      strokeStyle: "#000",
      lineWidth: 1,
      globalAlpha: 1,
      font: "11px sans-serif",
    });
    this.d = [];
  }

  /** Draws moved and clipped. */
  group(x, y, width, height, draw) {
    this.clips += 1;
    this.out.push(`<clipPath id="c${this.clips}"><rect width="${width}" height="${height}"/></clipPath>`);
    this.out.push(`<g transform="translate(${x} ${y})"><g clip-path="url(#c${this.clips})">`);
    draw();
    this.out.push("</g></g>");
  }

  save() {
    const { fillStyle, strokeStyle, lineWidth, globalAlpha, font } = this;
    this.saved.push({ fillStyle, strokeStyle, lineWidth, globalAlpha, font });
    this.open.push(0);
  }

  restore() {
    Object.assign(this, this.saved.pop());
    this.out.push("</g>".repeat(this.open.pop()));
  }

  clip() {
    this.clips += 1;
    this.out.push(
      `<clipPath id="c${this.clips}"><path d="${this.d.join("")}"/></clipPath><g clip-path="url(#c${this.clips})">`,
    );
    this.open[this.open.length - 1] += 1;
  }

  // Sizes are CSS pixels here, independent of the screen.
  setTransform() {}

  clearRect() {}

  paint(name, style) {
    const found = /^rgba\((.+),([\d.]+)\)$/.exec(style);
    const opacity = this.globalAlpha * (found ? Number(found[2]) : 1);
    return `${name}="${found ? `rgb(${found[1]})` : style}"${opacity < 1 ? ` ${name}-opacity="${short(opacity)}"` : ""}`;
  }

  fillRect(x, y, w, h) {
    // Patterns only hatch spans that had not ended; the file leaves them out.
    if (typeof this.fillStyle !== "string" || w <= 0 || h <= 0) return;
    this.out.push(
      `<rect x="${short(x)}" y="${short(y)}" width="${short(w)}" height="${short(h)}" ${this.paint("fill", this.fillStyle)}/>`,
    );
  }

  strokeRect(x, y, w, h) {
    this.out.push(
      `<rect x="${short(x)}" y="${short(y)}" width="${short(Math.max(w, 0))}" height="${short(Math.max(h, 0))}" fill="none" ${this.paint("stroke", this.strokeStyle)} stroke-width="${this.lineWidth}"/>`,
    );
  }

  fillText(text, x, y) {
    const [, weight = "", size, family] = /^(\d{3} )?([\d.]+)px (.*)$/.exec(this.font) ?? [
      null,
      "",
      "11",
      "sans-serif",
    ];
    const bold = weight ? ` font-weight="${weight.trim()}"` : "";
    this.out.push(
      `<text x="${short(x)}" y="${short(y)}" dominant-baseline="central" font-size="${size}" font-family="${escaped(family)}"${bold} ${this.paint("fill", this.fillStyle)}>${escaped(text)}</text>`,
    );
  }

  measureText(text) {
    this.measure.font = this.font;
    return this.measure.measureText(text);
  }

  beginPath() {
    this.d = [];
  }

  moveTo(x, y) {
    this.d.push(`M${short(x)} ${short(y)}`);
  }

  lineTo(x, y) {
    this.d.push(`${this.d.length ? "L" : "M"}${short(x)} ${short(y)}`);
  }

  bezierCurveTo(...numbers) {
    this.d.push(`C${numbers.map(short).join(" ")}`);
  }

  arc(x, y, r) {
    this.d.push(`M${short(x - r)} ${short(y)}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`);
  }

  rect(x, y, w, h) {
    this.d.push(`M${short(x)} ${short(y)}h${short(w)}v${short(h)}h${short(-w)}z`);
  }

  closePath() {
    this.d.push("z");
  }

  fill() {
    this.out.push(`<path d="${this.d.join("")}" ${this.paint("fill", this.fillStyle)}/>`);
  }

  stroke() {
    this.out.push(
      `<path d="${this.d.join("")}" fill="none" ${this.paint("stroke", this.strokeStyle)} stroke-width="${this.lineWidth}"/>`,
    );
  }

  createPattern() {
    return {};
  }

  /** @param {HTMLCanvasElement} image @param {...number} place as for a canvas: the goal, or source and goal */
  drawImage(image, ...place) {
    const [sx, sy, sw, sh] = place.length === 8 ? place : [0, 0, image.width, image.height];
    const [x, y, w, h] = place.slice(-4);
    const part = document.createElement("canvas");
    Object.assign(part, { width: Math.max(1, sw), height: Math.max(1, sh) });
    part.getContext("2d").drawImage(image, sx, sy, sw, sh, 0, 0, sw, sh);
    this.out.push(
      `<image x="${short(x)}" y="${short(y)}" width="${short(w)}" height="${short(h)}" preserveAspectRatio="none" image-rendering="pixelated" href="${part.toDataURL()}"/>`,
    );
  }

  text() {
    const { width, height } = this;
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">${this.out.join("\n")}</svg>\n`;
  }
}
