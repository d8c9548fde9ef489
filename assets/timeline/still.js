/**
 * Starts the timeline in a page that stands alone: no server, everything it shows is in the file.
 * @module
 */
import { commandsOf } from "./commands.js";
import { debugState } from "./debug.js";
import { Details } from "./details.js";
import { listen } from "./gestures.js";
import { element, helpDialog } from "./help.js";
import { Idle } from "./idle.js";
import { listenKeys } from "./keys.js";
import { Look } from "./look.js";
import { buildStage } from "./stage.js";
import { Theme } from "./theme.js";
import { Timeline } from "./timeline.js";

/** Commands that need nothing but what is in the file. */
const GROUPS = new Set(["Move", "Lanes"]);
const OTHERS = new Set(["let-go", "mark-range", "theme", "help"]);

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
 */
function answering(block, places) {
  const tiles = new Map(places.map(([level, index, at, size]) => [`${level}/${index}`, block.slice(at, at + size)]));
  return async (address) => {
    const asked = /^\/tile\/[^/]+\/(\d+\/\d+)\?/.exec(String(address));
    const tile = asked && tiles.get(asked[1]);
    if (tile) return new Response(tile);
    return new Response(JSON.stringify({ error: "This file does not hold that." }), { status: 404 });
  };
}

async function start() {
  const idle = new Idle();
  const done = idle.begin("boot");
  const { run, view, places } = told("run");
  // Nothing here may ask the net, whatever module it is in.
  globalThis.fetch = answering(await unpacked(document.getElementById("tiles").textContent), places);
  const host = document.getElementById("timeline-host");
  const timeline = new Timeline(buildStage(host), run, idle, new Details(element("div", ""), () => {}), { settled: () => {} });
  timeline.feed.cache.failed = () => {}; // what is finer than the file goes: what is there is drawn
  timeline.look = new Look(run.etag, idle, () => {}, null);
  const theme = new Theme("", () => timeline.retheme());
  listen(timeline);
  const known = commandsOf(timeline, { theme: () => theme.toggle(), help: () => help.showModal() });
  const commands = known.filter(({ id, group }) => (GROUPS.has(group) && id !== "filter") || OTHERS.has(id));
  const help = document.body.appendChild(helpDialog(commands));
  listenKeys(commands, () => true);
  timeline.setView(view);
  globalThis.lanescope = { idle: () => idle.settled(), debugState: () => debugState(timeline), hit: (x, y) => timeline.hit(x, y) };
  host.focus();
  done();
}

start().catch((error) => {
  document.getElementById("timeline-host").textContent = `This page could not be shown: ${error.message}. A browser from 2023 or later is needed.`;
});
