/**
 * Creates DOM elements, and sizes canvases.
 * @module
 */

/** Creates an element with text and classes. @param {string} tag @param {string} text @param {string} [classes] */
export function element(tag, text, classes) {
  const node = document.createElement(tag);
  if (text) node.textContent = text;
  if (classes) node.className = classes;
  return node;
}

/**
 * Gives a canvas, and what draws on it in css pixels, its size.
 * @param {{ canvas: HTMLCanvasElement, context: CanvasRenderingContext2D }} part
 * @param {number} width css px @param {number} height css px @param {number} ratio device px per css px
 */
export function fitCanvas(part, width, height, ratio) {
  const { canvas, context } = part;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  Object.assign(part, { width, height, ratio });
}
