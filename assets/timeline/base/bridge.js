/**
 * Passes settled state to Dash through set_props, never on every frame.
 * @module
 */

/** Stores of webapp/ui/ids.py that the timeline writes. */
export const VIEW_STORE = "timeline-view";
export const THEME_STORE = "theme";
export const LIVE_STORE = "live-state";
export const PAGE_STORE = "page-state";
/** Of webapp/plugins/timeline_page/ids.py. */
export const FLAME_OPEN_STORE = "flame-open";
export const FLAME_VIEW_STORE = "flame-view";

/**
 * @param {string} id of a dcc.Store
 * @param {unknown} data
 * @returns {boolean} false while Dash has not loaded
 */
export function setStore(id, data) {
  const set = globalThis.dash_clientside?.set_props;
  if (!set || !document.getElementById("frame")) return false;
  set(id, { data });
  return true;
}

/** Removes what the server put into the dock: the next window that is reported brings it again. */
export function emptyDock() {
  for (const id of ["ops-panel", "dock-overlap"])
    if (document.getElementById(id)?.childElementCount) globalThis.dash_clientside.set_props(id, { children: null });
}

/** True while Dash has not rendered yet, runs callbacks, or loads scripts of a chart or table. */
export function dashBusy() {
  if (!document.getElementById("frame") || document.querySelector(".examining")) return true;
  const lacks = (part, inside, counts = () => true) =>
    [...document.querySelectorAll(part)].some((place) => counts(place) && !place.querySelector(inside));
  if (lacks(".in-sight:not([data-seen=false])", ".js-plotly-plot:not(.dash-graph--pending)")) return true;
  if (lacks(".grid-place", ".ag-header-cell", ({ clientWidth }) => clientWidth)) return true; // none in a hidden tab
  // A chart is drawn twice: before its size is known, and again in that size.
  const charts = [...document.querySelectorAll(".js-plotly-plot")].filter((chart) => chart.clientWidth);
  if (
    charts.some(
      ({ _fullLayout: drawn, clientWidth, clientHeight }) =>
        Math.abs((drawn?.width ?? 0) - clientWidth) >= 1 || Math.abs((drawn?.height ?? 0) - clientHeight) >= 1,
    )
  )
    return true;
  const state = globalThis.dash_stores?.[0]?.getState?.();
  if (!state) return false;
  const { completed, ...queues } = state.callbacks ?? {};
  return Object.values(queues).some((queue) => Array.isArray(queue) && queue.length > 0);
}

/** Resolves with the element once Dash has rendered it. @param {string} id @returns {Promise<HTMLElement>} */
export function appears(id) {
  const here = document.getElementById(id);
  if (here) return Promise.resolve(here);
  return new Promise((resolve) => {
    const observer = new MutationObserver(() => {
      const found = document.getElementById(id);
      if (!found) return;
      observer.disconnect();
      resolve(found);
    });
    observer.observe(document.body, { childList: true, subtree: true });
  });
}

/**
 * @param {string} address
 * @param {unknown} [body] sent as JSON where given
 * @returns {Promise<any>}
 * @throws {Error} with a message for the user
 */
export async function getJson(address, body) {
  const sent =
    body === undefined
      ? {}
      : { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  let response;
  try {
    response = await fetch(address, sent);
  } catch {
    throw new Error("The server does not answer. Is `lanescope view` still running?");
  }
  if (response.ok) return response.json();
  const answer = await response.json().catch(() => null);
  throw new Error(answer?.error ? `The server says: ${answer.error}` : `The server answered ${response.status}.`);
}
