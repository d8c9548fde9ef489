/**
 * The panel of the selected slice: everything that is known of it.
 * @module
 */

import { element } from "../base/dom.js";
import { bytes, count, duration, instant } from "../base/format.js";

/** Known fields in the order in which people ask for them; whatever else comes is listed below. */
const ORDER = ["start_ns", "duration_ns", "step", "module", "shapes", "dtypes", "device"];
/** Told elsewhere in the panel, or meaningless to people. */
const HIDDEN = new Set([
  "name",
  "rank",
  "lane",
  "row",
  "ref",
  "style",
  "stack",
  "partner",
  "peers",
  "phase",
  "self_ns",
  "unfinished",
  "drawn",
  "depth",
  "table",
  "threads",
  "sequence",
  "thread",
  "launches",
  "launch_ns",
  "launch_thread",
  "races",
]);
const LABELS = {
  start_ns: "start",
  duration_ns: "duration",
  group_size: "group size",
  complete_ns: "complete",
  time_ns: "time",
};

/**
 * Rows of label and text for a slice as the server describes it.
 * @param {Record<string, any>} slice
 * @returns {[string, string][]}
 */
export function factsOf(slice) {
  const rows = [];
  const keys = [...ORDER, ...Object.keys(slice).filter((key) => !ORDER.includes(key) && !HIDDEN.has(key))];
  for (const key of keys) {
    const text = textOf(key, slice[key], slice);
    if (text)
      rows.push([key === "step" && slice.phase ? "step · phase" : (LABELS[key] ?? key.replaceAll("_", " ")), text]);
    if (key === "duration_ns" && slice.complete_ns) {
      // Exact where float64 is not: both are decimal text.
      rows.push(["to completion", duration(Number(BigInt(slice.complete_ns) - BigInt(slice.start_ns)), 4)]);
    }
  }
  return rows;
}

function textOf(key, value, slice) {
  if (key === "duration_ns") {
    if (value === null || value === undefined)
      return slice.unfinished === false ? "" : "had not ended when the recording did";
    const self =
      slice.self_ns === null || slice.self_ns === undefined ? "" : ` (self ${duration(Number(slice.self_ns), 4)})`;
    return `${duration(Number(value), 4)}${self}`;
  }
  if (key === "step") {
    const step = value === null || value === undefined || value < 0 ? "" : String(value);
    return [step, slice.phase].filter(Boolean).join(" · ");
  }
  if (value === null || value === undefined || value === "") return "";
  if (key === "start_ns" || key === "complete_ns" || key === "time_ns") return instant(String(value));
  if (key.endsWith("_ns")) return duration(Number(value));
  if (key === "bytes") return bytes(Number(value));
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (Array.isArray(value)) return value.length && typeof value[0] !== "object" ? value.join(", ") : "";
  if (typeof value === "object") return "";
  if (typeof value === "number" && Number.isInteger(value)) return count(value);
  return String(value);
}

/** A thread that is started or waited for, or that did so. */
function threadText(one) {
  const [here, there] = one.outgoing ? [one.sent_ns, one.came_ns] : [one.came_ns, one.sent_ns];
  const gap = duration(Math.abs(there - here));
  const lives = { start: one.outgoing ? "starts" : "started by", join: one.outgoing ? "joined by" : "waits for" };
  const what = lives[one.kind] ?? `${one.kind} ${one.outgoing ? "to" : "from"}`;
  return `${what} ${one.label}, ${gap} ${there >= here ? "later" : "earlier"} ↗`;
}

/** A kernel or copy with its stream and how long it waited there, or the operator that launched it. */
function launchText(slice, one) {
  const waited = (one.outgoing ? one.start_ns : Number(slice.start_ns)) - one.launch_ns;
  return `${one.name}, ${one.outgoing ? `${one.label}, ` : ""}${duration(waited)} from the call to its start ↗`;
}

/** The same collective on another rank: when it came there, compared with here. */
function peerText(slice, peer) {
  const gap = peer.start_ns - Number(slice.start_ns);
  const when = gap === 0 ? "at the same time" : `${duration(Math.abs(gap))} ${gap > 0 ? "later" : "earlier"}`;
  return `rank ${peer.rank}, ${when} ↗`;
}

/** A stack, innermost frame first; below a line that says whose, where two share the width, without folders. */
function framesOf(title, frames, tag = "div") {
  const host = element(tag, "", "frames");
  if (title) host.append(element("b", title));
  for (const frame of frames) {
    const line = element("div", title ? frame.replace(/^.*\//, "") : frame);
    line.title = frame;
    host.append(line);
  }
  return host;
}

/** How many locks a side of a race held. */
function locks(count) {
  return count === 0 ? "no lock held" : count === 1 ? "1 lock held" : `${count} locks held`;
}

export class Details {
  /** @param {HTMLElement} host @param {(place: {lane: number, row: number, ref: number}) => void} jump */
  constructor(host, jump) {
    this.host = host;
    this.jump = jump;
    this.clear();
  }

  /** Moves to another place. @param {HTMLElement} host */
  adopt(host) {
    host.replaceChildren(...this.host.childNodes);
    this.host = host;
  }

  clear() {
    const hint = element("p", "", "hint");
    hint.append(
      "Click a slice to see everything recorded about it. ",
      element("kbd", "."),
      " and ",
      element("kbd", ","),
      " step through its row.",
    );
    const more = element("p", "", "hint");
    more.append(
      "Hold ",
      element("kbd", "Shift"),
      " and drag to measure a range. ",
      element("kbd", "?"),
      " lists all keys.",
    );
    this.host.replaceChildren(element("h2", "Nothing selected"), hint, more);
  }

  /**
   * @param {Record<string, any>} slice
   * @param {string} style class for the swatch
   * @param {string} where rank and thread in words
   */
  show(slice, style, where) {
    const title = element("h2", "", "slice-name");
    title.append(element("i", "", `swatch ${style}`), element("span", slice.name));
    const list = element("dl", "", "facts");
    for (const [label, text] of factsOf(slice)) list.append(element("dt", label), element("dd", text));
    const { partner, peers, threads, launches, races, stack } = slice;
    if (partner) {
      const later = partner.start_ns > Number(slice.start_ns);
      const gap = `${duration(Math.abs(partner.start_ns - Number(slice.start_ns)))} ${later ? "later" : "earlier"}`;
      list.append(element("dt", later ? "backward" : "forward"), this.jumps([[partner, `${partner.name}, ${gap} ↗`]]));
    }
    if (peers?.length) {
      list.append(element("dt", "other ranks"), this.jumps(peers.map((peer) => [peer, peerText(slice, peer)])));
    }
    if (threads?.length)
      list.append(element("dt", "threads"), this.jumps(threads.map((one) => [one, threadText(one)])));
    if (launches?.length) {
      const label = launches[0].outgoing ? "launches" : "launched by";
      list.append(element("dt", label), this.jumps(launches.map((one) => [one, launchText(slice, one)])));
    }
    const own = (stack ?? []).map((frame) => `${frame.file}:${frame.line} ${frame.function}`);
    for (const one of races ?? []) {
      list.append(element("dt", "races with"), this.jumps([[one, `${one.name} of ${one.label} ↗`]]));
      list.append(element("dt", "over"), element("dd", one.tensor));
      const sides = element("dd", "", "sides");
      sides.append(
        framesOf(`this ${one.access}, ${locks(one.locks)}`, own),
        framesOf(`${one.label} ${one.other}, ${locks(one.other_locks)}`, one.stack),
      );
      list.append(element("dt", "stacks"), sides);
    }
    if (own.length && !races?.length) list.append(element("dt", "stack"), framesOf("", own, "dd"));
    this.host.replaceChildren(title, element("p", where, "where muted"), list);
    this.host.scrollTop = 0;
  }

  /** Links to other slices. @param {[{lane: number, row: number, ref: number}, string][]} places */
  jumps(places) {
    const dd = element("dd", "");
    for (const [place, text] of places) {
      const link = element("button", text, "link");
      link.type = "button";
      link.addEventListener("click", () => this.jump(place));
      const line = element("div", "");
      line.append(link);
      dd.append(line);
    }
    return dd;
  }

  /** @param {string} message a sentence */
  fail(message) {
    const note = element("p", message, "hint");
    this.host.replaceChildren(element("h2", "This slice could not be read"), note);
  }
}
