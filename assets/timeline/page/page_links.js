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
      visit(link.getAttribute("href"));
    },
    true,
  );
}

/**
 * A click or Enter on a row of a table leads to its place, or shows the calls of its op.
 * @param {(op: string, direction: "next"|"prev") => void} showCalls
 */
export function listenRows(showCalls) {
  const act = (event) => {
    const row = event.target instanceof Element ? event.target.closest("[data-leads] .ag-row") : null;
    if (!row || !getSelection().isCollapsed) return;
    const api = globalThis.dash_ag_grid.getApi(row.closest(".grid").id);
    const { op, link } = api.getDisplayedRowAtIndex(Number(row.getAttribute("row-index"))).data;
    if (row.closest("[data-leads]").dataset.leads === "op") showCalls(op, event.shiftKey ? "prev" : "next");
    else if (link) visit(link);
  };
  document.addEventListener("click", act);
  document.addEventListener("keydown", (event) => event.key === "Enter" && act(event));
}

/** Shows another address of the app. @param {string} href */
function visit(href) {
  if (href !== location.pathname + location.search) history.pushState({}, "", href);
  globalThis.dispatchEvent(new CustomEvent(MOVED));
  globalThis.scrollTo(0, 0);
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
