/**
 * Links between pages hand on the selection of the address. Dash's links would lose it.
 * @module
 */

import { carried, chosen } from "../base/page_selection.js";

/** The event by which Dash learns of another address. */
const MOVED = "_dashprivate_pushstate";

/**
 * Brings each link to another page up to date before it is used, and follows it.
 * @param {() => void} writeAddress brings the address up to date
 */
export function listenLinks(writeAddress) {
  for (const kind of ["pointerover", "focusin"]) document.addEventListener(kind, (event) => handOn(event.target), true);
  document.addEventListener(
    "click",
    (event) => {
      const link = linkOf(event.target);
      if (!link) return;
      writeAddress();
      handOn(link);
      if (event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
      event.preventDefault();
      event.stopPropagation();
      const { pathname, search } = location;
      const href = link.getAttribute("href");
      if (href !== pathname + search) history.pushState({}, "", href);
      globalThis.dispatchEvent(new CustomEvent(MOVED));
      globalThis.scrollTo(0, 0);
    },
    true,
  );
}

/** Writes a part of the selection that a field of a page chose. */
export function choosePart(part, value) {
  const search = chosen(location.search, part, value);
  if (search === location.search) return;
  history.replaceState(history.state, "", location.pathname + search);
  globalThis.dispatchEvent(new CustomEvent(MOVED));
}

/** Returns the link to a page that an element is in, if any: no file, no other site, no part of this page. */
function linkOf(target) {
  const link = target instanceof Element ? target.closest("a[href^='/']") : null;
  return link && !link.hasAttribute("download") && !link.target ? link : null;
}

function handOn(target) {
  const link = linkOf(target);
  if (!link) return;
  const { dataset } = link;
  // Dash may have given the element another address since.
  if (dataset.carried !== link.getAttribute("href")) dataset.bare = link.getAttribute("href");
  dataset.carried = carried(dataset.bare, location.search);
  link.setAttribute("href", dataset.carried);
}
