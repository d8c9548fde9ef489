/**
 * Starts the timeline in a page that stands alone: no server, everything it shows is in the file.
 * @module
 */

import { debugState } from "../base/debug.js";
import { Idle } from "../base/idle.js";
import { Theme } from "../base/theme.js";
import { commandsOf } from "../input/commands.js";
import { listen } from "../input/gestures.js";
import { listenKeys } from "../input/keys.js";
import { Details } from "../model/span_panel.js";
import { helpDialog } from "../panels/help.js";
import { match, Search } from "../panels/search.js";
import { Kept } from "./offline_answers.js";
import { Timeline } from "./timeline.js";
import { buildStage } from "./timeline_dom.js";

/** Commands that need nothing but what is in the file. */
const GROUPS = new Set(["Move", "Select", "Lanes"]);
const OTHERS = new Set(["mark-range", "search", "next-match", "previous-match", "theme", "help"]);

const told = (id) => JSON.parse(document.getElementById(id).textContent);

/** @param {string} text base64 of a deflated block @returns {Promise<ArrayBuffer>} */
async function unpacked(text) {
  const packed = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Response(stream).arrayBuffer();
}

/**
 * What answers instead of a server.
 * @param {ArrayBuffer} block all tiles one after another
 * @param {[number, number, number, number][]} places level, index, first byte, bytes
 * @param {Kept} kept
 */
function answering(block, places, kept) {
  const tiles = new Map(places.map(([level, index, at, size]) => [`${level}/${index}`, block.slice(at, at + size)]));
  return async (address, sent) => {
    const asked = /^\/tile\/[^/]+\/(\d+\/\d+)\?/.exec(String(address));
    const tile = asked && tiles.get(asked[1]);
    if (tile) return new Response(tile);
    const found = asked ? null : kept.answer(String(address), sent?.body && JSON.parse(sent.body));
    return new Response(JSON.stringify(found ?? { error: "this file does not hold that" }), {
      status: found ? 200 : 404,
    });
  };
}

async function start() {
  const idle = new Idle();
  const done = idle.begin("boot");
  const { run, view, places, slices } = told("run");
  const [tiles, block] = await Promise.all(
    ["tiles", "slices"].map((id) => unpacked(document.getElementById(id).textContent)),
  );
  const kept = new Kept(slices, new Uint8Array(block), run);
  // Nothing here may ask the net, whatever module it is in.
  globalThis.fetch = answering(tiles, places, kept);
  const host = document.getElementById("timeline-host");
  const details = new Details(document.getElementById("slice-panel"), ({ lane, row, ref }) =>
    timeline.selection.select({ lane, row, ref }, true),
  );
  const timeline = new Timeline(buildStage(host), run, idle, details, { settled: () => {} });
  timeline.feed.cache.failed = () => {}; // what is finer than the file goes: what is there is drawn
  const theme = new Theme("", () => timeline.retheme());
  const find = (query) => {
    const found = match(timeline.names, query, kept.modules);
    timeline.setSearch(query, found);
    search.set(query, found);
  };
  const search = new Search(document.getElementById("search-host"), timeline.names, {
    begun: () => {},
    changed: find,
    step: (direction) => timeline.selection.match(direction),
    leave: () => host.focus(),
  });
  search.modules = kept.modules;
  timeline.onSearchCleared = () => find("");
  timeline.onHits = () => search.tell(timeline.hits.position, timeline.hits.whole?.total ?? null);
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
