/**
 * Creates DOM elements.
 * @module
 */

/** Creates an element with text and classes. @param {string} tag @param {string} text @param {string} [classes] */
export function element(tag, text, classes) {
  const node = document.createElement(tag);
  if (text) node.textContent = text;
  if (classes) node.className = classes;
  return node;
}
