/**
 * Starts the timeline in an exported page: without a server, with all its data in the file.
 * @module
 */

import { debugState } from "../base/debug.js";
import { Idle } from "../base/idle.js";
import { Theme } from "../base/theme.js";
import { commandsOf } from "../input/commands.js";
import { listen } from "../input/gestures.js";
import { listenKeys } from "../input/keys.js";
import { SpanPanel } from "../model/span_panel.js";
import { helpDialog } from "../panels/help.js";
import { match, Search } from "../panels/search.js";
import { OfflineRun } from "./offline_answers.js";
import { Timeline } from "./timeline.js";
import { buildDom } from "./timeline_dom.js";

/** Commands that need only the data in the file. */
const GROUPS = new Set(["Move", "Select", "Lanes"]);
const OTHERS = new Set(["mark-range", "search", "next-match", "previous-match", "theme", "help"]);

const embedded = (id) => JSON.parse(document.getElementById(id).textContent);

/** @param {string} text base64 of a deflated block @returns {Promise<ArrayBuffer>} */
async function unpacked(text) {
  const packed = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Response(stream).arrayBuffer();
}

/**
 * Returns a function that replaces fetch and answers from the file.
 * @param {ArrayBuffer} block all tiles, concatenated
 * @param {[number, number, number, number][]} places level, index, first byte, bytes
 * @param {OfflineRun} offline
 */
function answering(block, places, offline) {
  const tiles = new Map(places.map(([level, index, at, size]) => [`${level}/${index}`, block.slice(at, at + size)]));
  return async (address, sent) => {
    const asked = /^\/tile\/[^/]+\/(\d+\/\d+)\?/.exec(String(address));
    const tile = asked && tiles.get(asked[1]);
    if (tile) return new Response(tile);
    const found = asked ? null : offline.answer(String(address), sent?.body && JSON.parse(sent.body));
    return new Response(JSON.stringify(found ?? { error: "not in this exported page" }), {
      status: found ? 200 : 404,
    });
  };
}

async function start() {
  const idle = new Idle();
  const done = idle.begin("boot");
  const { run, view, places, slices: spans } = embedded("run");
  const [tiles, block] = await Promise.all(
    ["tiles", "slices"].map((id) => unpacked(document.getElementById(id).textContent)),
  );
  const offline = new OfflineRun(spans, new Uint8Array(block), run);
  // No module may send a request to the network.
  globalThis.fetch = answering(tiles, places, offline);
  const host = document.getElementById("timeline-host");
  const details = new SpanPanel(document.getElementById("slice-panel"), ({ lane, row, ref }) =>
    timeline.selection.select({ lane, row, ref }, true),
  );
  const timeline = new Timeline(buildDom(host), run, idle, details, { settled: () => {} });
  timeline.tileSource.cache.failed = () => {}; // finer tiles than the file holds: coarser ones are drawn
  const theme = new Theme("", () => timeline.retheme());
  const find = (query) => {
    const found = match(timeline.names, query, offline.modules);
    search.set(query, found);
    timeline.setSearch(query, found);
  };
  const search = new Search(document.getElementById("search-host"), timeline.names, {
    begun: () => {},
    changed: find,
    step: (direction) => timeline.selection.match(direction),
    leave: () => host.focus(),
  });
  search.modules = offline.modules;
  timeline.onSearchCleared = () => find("");
  timeline.onHits = () => search.showHits(timeline.hits.position, timeline.hits.whole?.total ?? null);
  listen(timeline);
  const known = commandsOf(timeline, {
    theme: () => theme.toggle(),
    help: () => help.showModal(),
    search: () => search.focus(),
  });
  const commands = known.filter(({ id, group }) => (GROUPS.has(group) && id !== "filter") || OTHERS.has(id));
  const help = document.body.appendChild(helpDialog(commands));
  listenKeys(commands, () => true);
  timeline.setView(view);
  globalThis.lanescope = {
    idle: () => idle.settled(),
    debugState: () => debugState(timeline),
    hit: (x, y) => timeline.hit(x, y),
  };
  host.focus();
  done();
}

start().catch((error) => {
  document.getElementById("timeline-host").textContent =
    `This page could not be shown: ${error.message}. A browser from 2023 or later is needed.`;
});
