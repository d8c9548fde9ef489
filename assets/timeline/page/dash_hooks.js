/* Functions that Dash calls by name. A classic script, not a module: Dash looks them up before
   modules have run. They only forward; until the timeline exists it reads the address itself. */
(() => {
  // Before the first paint: sets the theme of the address, else the one chosen before.
  let asked = new URLSearchParams(location.search).get("theme");
  try {
    asked = asked || localStorage.getItem("lanescope.theme");
  } catch {
    // Storage may be forbidden: then the system decides.
  }
  if (asked === "light" || asked === "dark") document.documentElement.dataset.theme = asked;
})();

const made = (node) => {
  if (!Array.isArray(node)) return node;
  const [tag, properties, ...children] = node;
  return window.React.createElement(tag, properties, ...children.map(made));
};

/** What makes charts and tables that wait for their turn. @type {Set<() => void>} */
const waiting = new Set();
const makeNext = () => {
  const [make] = waiting;
  if (!make) return;
  waiting.delete(make);
  window.ReactDOM.flushSync(make);
  setTimeout(makeNext);
};
/** Calls `make` in a task of its own: each takes frames, and clicks are answered in between. */
const inTurn = (make) => {
  waiting.add(make);
  if (waiting.size === 1) setTimeout(makeNext);
};

/** Lets a component load what it loads with its first use. All that wait for it would be made in one task. */
const begin = (component) => {
  const root = window.ReactDOM.createRoot(document.createElement("div"));
  window.ReactDOM.flushSync(() => root.render(window.React.createElement(component)));
  root.unmount();
};

let charts = null;
/** Resolves once Dash's charts are loaded. */
const loadCharts = () => {
  const { Graph } = window.dash_core_components;
  begin(Graph);
  return Graph._dashprivate_isLazyComponentReady;
};

/** What draws the charts that were not in sight yet. @type {Set<() => void>} */
const undrawn = new Set();
// A page on paper has all of its charts, so they are drawn before this event ends.
addEventListener("beforeprint", () => {
  window.ReactDOM.flushSync(() => {
    for (const draw of undrawn) draw();
  });
});

/** Says in `data-seen` whether a place is in sight or nearly so, until it is; then also calls `seen`. */
const watched = (place, seen) => {
  const observer = new IntersectionObserver(
    (entries) => {
      place.dataset.seen = entries.at(-1).isIntersecting;
      if (!entries.at(-1).isIntersecting) return;
      charts ??= loadCharts();
      Promise.resolve(charts).then(() => inTurn(draw));
    },
    { scrollMargin: "200px" },
  );
  const leave = () => {
    observer.disconnect();
    undrawn.delete(draw);
    waiting.delete(draw);
  };
  const draw = () => {
    place.dataset.seen = true;
    leave();
    seen();
  };
  undrawn.add(draw);
  observer.observe(place);
  return leave;
};

/** The components of webapp/ui/elements.py. React is there before any component is made. */
window.lanescope_elements = {
  Fixed: ({ tree }) => window.React.createElement(window.React.Fragment, null, ...tree.map(made)),
  InSight: ({ id, style, children }) => {
    const { createElement, useLayoutEffect, useRef, useState } = window.React;
    const place = useRef(null);
    const [seen, setSeen] = useState(false);
    useLayoutEffect(() => watched(place.current, () => setSeen(true)), []);
    return createElement("div", { id, ref: place, className: "in-sight", style }, seen && children);
  },
};

const scriptOf = (src) =>
  new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.addEventListener("load", resolve);
    script.addEventListener("error", () => reject(new Error("The script of the tables did not load.")));
    script.src = src;
    document.head.append(script);
  });
const nextTask = () => new Promise((done) => setTimeout(done));
/** An unseen table: what the browser compiles and looks up for the first one is done in a task of its own. */
const UNSEEN = { id: "unseen-table", columnDefs: [{ field: "one" }], rowData: [{ one: 1 }], setProps: () => {} };
/** Runs the scripts of Dash's tables, and keeps the component below in the place of theirs. */
const loadTables = async () => {
  const { src } = document.querySelector('script[type="text/lanescope-later"]');
  await Promise.all([src, src.replace("dash_ag_grid.v", "async-community.v").replace(".min.", ".")].map(scriptOf));
  const theirs = window.dash_ag_grid;
  window.dash_ag_grid = { ...theirs, AgGrid };
  begin(theirs.AgGrid);
  await nextTask();
  const unseen = window.ReactDOM.createRoot(document.createElement("div"));
  window.ReactDOM.flushSync(() => unseen.render(window.React.createElement(theirs.AgGrid, UNSEEN)));
  await nextTask();
  unseen.unmount();
  return theirs.AgGrid;
};
let tables = null;
/** A table. Two megabytes of script come with the first one. */
const AgGrid = (properties) => {
  const { createElement, useEffect, useState } = window.React;
  const [made, make] = useState(null);
  useEffect(() => {
    tables ??= loadTables();
    const failed = (error) =>
      make(() => {
        throw error;
      });
    tables.then((Table) => inTurn(() => make(() => Table)), failed);
  }, []);
  return made && createElement(made, properties);
};
AgGrid.dashRenderType = true; // Dash says what a table is drawn again for
window.dash_ag_grid = { AgGrid };

const chosen = (part, value) => {
  window.lanescope?.choose(part, value);
  return window.dash_clientside.no_update;
};

/** Of the document as the server made it: the run, and the product. */
const titleOfRun = document.title;

window.dash_clientside = window.dash_clientside || {};
window.dash_clientside.lanescope = {
  /** Shows another page. The timeline stays mounted and is only hidden. Also marks the rail link. */
  shown(href) {
    const path = new URL(href).pathname;
    const page = path.slice(1) || "overview";
    document.body.dataset.page = page;
    const links = window.dash_clientside.callback_context.outputs_list.slice(1);
    window.lanescope?.shown(href);
    const rail = document.querySelector(".rail");
    const groups = JSON.parse(rail.dataset.groups);
    const title = JSON.parse(rail.dataset.titles)[page];
    document.getElementById("page").dataset.title = title || "the page";
    document.title = title ? `${title} · ${titleOfRun}` : titleOfRun;
    const lit = links.map(({ id }) => (id === `rail-${groups[page] || page}` ? "here" : ""));
    return [page === "timeline" ? "timeline" : "timeline away", ...lit];
  },
  /** The dock shows the answer to a settled view. */
  answered(number) {
    if (window.lanescope && number) window.lanescope.answered(number);
    return window.dash_clientside.no_update;
  },
  /** A field of a page chooses a part of the selection that goes from page to page. */
  choose_rank: (value) => chosen("rank", value),
  choose_lane: (value) => chosen("lane", value),
  choose_step: (value) => chosen("step", value),
  /** Places a graph's boxes and lines; loads what does so with the first graph. */
  async placed(drawing) {
    const [{ id: store }] = window.dash_clientside.callback_context.inputs_list;
    if (!drawing) return window.dash_clientside.no_update;
    const { drawn } = await import("/assets/graph/graph_figure.js");
    return drawn(drawing, store);
  },
};
