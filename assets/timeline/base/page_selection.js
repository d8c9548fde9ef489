/**
 * What goes from page to page in the address: rank, thread, step and window. Pure. The server reads
 * the same parts (webapp/ui/page_selection.py).
 * @module
 */

const PARTS = ["rank", "thread", "step", "t"];
/** What a part makes untrue when it changes: a thread is one of a rank, a window shows a step. */
const BOUND = { rank: ["thread"], thread: [], step: ["t", "range", "sel"] };

/**
 * @typedef {object} Place
 * @property {number|null} rank
 * @property {string} thread empty: none
 * @property {number|null} step
 */

/** @param {URLSearchParams} get @returns {Place} */
export function placeOf(get) {
  const number = (name) => (/^\d{1,15}$/.test(get.get(name) ?? "") ? Number(get.get(name)) : null);
  return { rank: number("rank"), thread: get.get("thread") ?? "", step: number("step") };
}

/** Returns the parts of an address for a place. @param {Place} place @returns {string[]} */
export function placeParts({ rank, thread, step }) {
  const parts = [];
  if (rank !== null) parts.push(`rank=${rank}`);
  if (rank !== null && thread) parts.push(`thread=${encodeURIComponent(thread)}`);
  if (step !== null) parts.push(`step=${step}`);
  return parts;
}

/** Returns only the selection of an address, with `?`, or an empty text. @param {string} search */
export function selectionIn(search) {
  const get = new URLSearchParams(search);
  const parts = placeParts(placeOf(get));
  if (/^\d+-\d+$/.test(get.get("t") ?? "")) parts.push(`t=${get.get("t")}`);
  return parts.length ? `?${parts.join("&")}` : "";
}

/** True for an address with a selection and nothing else. @param {string} search */
export const onlySelection = (search) =>
  Boolean(search) && [...new URLSearchParams(search).keys()].every((name) => PARTS.includes(name));

/**
 * Returns a link with the selection of the current address. A link that leads to a place keeps its own.
 * @param {string} href path of a page, perhaps with a query
 * @param {string} search of the current address
 */
export function carried(href, search) {
  const [path, own = ""] = href.split("?");
  const has = new URLSearchParams(own);
  const selection = selectionIn(search);
  if (!selection || [...PARTS, "at", "sel"].some((name) => has.has(name))) return href;
  return `${path}${selection}${own ? `&${own}` : ""}`;
}

/**
 * Returns the query of an address with another rank, thread (`rank/thread`) or step chosen.
 * @param {string} search
 * @param {"rank"|"lane"|"step"} part
 * @param {string|number|null} value other values, as `all`, clear the choice
 */
export function chosen(search, part, value) {
  const get = new URLSearchParams(search);
  const text = String(value ?? "");
  const [rank, thread] = part === "lane" ? text.split(/\/(.*)/) : [text];
  const name = part === "lane" ? "rank" : part;
  if (get.get(name) !== rank) for (const bound of BOUND[name]) get.delete(bound);
  if (/^\d+$/.test(rank)) get.set(name, rank);
  else get.delete(name);
  if (part === "lane") {
    if (thread) get.set("thread", thread);
    else get.delete("thread");
  }
  const made = get.toString();
  return made ? `?${made}` : "";
}
