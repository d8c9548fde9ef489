/**
 * The panel with everything recorded about the selected span.
 * @module
 */

import { element } from "../base/dom.js";
import { bytes, count, duration, instant } from "../base/format.js";
import { valueTable } from "./beside.js";

/** These fields come first, in this order; all others follow. */
const ORDER = ["start_ns", "duration_ns", "step", "module", "shapes", "dtypes", "device"];
/** Fields shown elsewhere in the panel, or internal ones. */
const HIDDEN = new Set([
  "name",
  "rank",
  "lane",
  "row",
  "ref",
  "style",
  "stack",
  "source",
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
  "args",
  "beside",
]);
const LABELS = {
  start_ns: "start",
  duration_ns: "duration",
  group_size: "group size",
  complete_ns: "complete",
  time_ns: "time",
};

/**
 * Returns rows of label and text for a span's description from the server.
 * @param {Record<string, any>} span
 * @returns {[string, string][]}
 */
export function factsOf(span) {
  const rows = [];
  const keys = [...ORDER, ...Object.keys(span).filter((key) => !ORDER.includes(key) && !HIDDEN.has(key))];
  for (const key of keys) {
    const text = textOf(key, span[key], span);
    if (text)
      rows.push([key === "step" && span.phase ? "step · phase" : (LABELS[key] ?? key.replaceAll("_", " ")), text]);
    if (key === "duration_ns" && span.complete_ns) {
      // Exact where float64 is not: both are decimal text.
      rows.push(["to completion", duration(Number(BigInt(span.complete_ns) - BigInt(span.start_ns)), 4)]);
    }
  }
  return rows;
}

function textOf(key, value, span) {
  if (key === "duration_ns") {
    if (value === null || value === undefined)
      return span.unfinished === false ? "" : "still running when the recording ended";
    const self =
      span.self_ns === null || span.self_ns === undefined ? "" : ` (self ${duration(Number(span.self_ns), 4)})`;
    return `${duration(Number(value), 4)}${self}`;
  }
  if (key === "step") {
    const step = value === null || value === undefined || value < 0 ? "" : String(value);
    return [step, span.phase].filter(Boolean).join(" · ");
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

/** Text of a link to a thread that this one starts, waits for, or was started by. */
function threadText(one) {
  const [here, there] = one.outgoing ? [one.sent_ns, one.came_ns] : [one.came_ns, one.sent_ns];
  const gap = duration(Math.abs(there - here));
  const lives = { start: one.outgoing ? "starts" : "started by", join: one.outgoing ? "joined by" : "waits for" };
  const what = lives[one.kind] ?? `${one.kind} ${one.outgoing ? "to" : "from"}`;
  return `${what} ${one.label}, ${gap} ${there >= here ? "later" : "earlier"} ↗`;
}

/** Text of a link to a kernel or copy, with its stream and wait, or to the operator that launched it. */
function launchText(span, one) {
  const waited = (one.outgoing ? one.start_ns : Number(span.start_ns)) - one.launch_ns;
  return `${one.name}, ${one.outgoing ? `${one.label}, ` : ""}${duration(waited)} from the call to its start ↗`;
}

/** Text of a link to the same collective on another rank, with the difference of their starts. */
function peerText(span, peer) {
  const gap = peer.start_ns - Number(span.start_ns);
  const when = gap === 0 ? "at the same time" : `${duration(Math.abs(gap))} ${gap > 0 ? "later" : "earlier"}`;
  return `rank ${peer.rank}, ${when} ↗`;
}

/**
 * A stack, innermost frame first. With a title, two stacks share the width, so folders are left out.
 * @param {string} title @param {string[]} frames @param {(Excerpt|null)[]} [source] the line at each frame
 * @param {string} [tag]
 */
function framesOf(title, frames, source = [], tag = "div") {
  const host = element(tag, "", "frames");
  if (title) host.append(element("b", title));
  for (const [position, frame] of frames.entries()) {
    const line = element("div", "");
    const text = title ? frame.replace(/^.*\//, "") : frame;
    const found = source[position];
    line.append(found ? sourceOf(text, found) : text);
    line.title = frame;
    host.append(line);
  }
  return host;
}

/**
 * A frame with its line of the program; opened, the lines around it.
 * @typedef {{line: number, lines: {line: number, text: string}[]}} Excerpt
 * @param {string} head @param {Excerpt} found
 */
function sourceOf(head, found) {
  const host = element("details", "", "source");
  const summary = element("summary", "");
  const lines = element("pre", "");
  for (const one of found.lines) {
    const line = element("span", one.text, one.line === found.line ? "named" : "");
    line.dataset.line = String(one.line);
    lines.append(line);
    if (one.line === found.line) summary.append(element("span", head), " ", element("code", one.text.trim()));
  }
  host.append(summary, lines);
  return host;
}

/** Arguments of an imported event. @param {[string, string][]} args names and values as text */
function argumentsOf(args) {
  const host = element("dd", "", "arguments");
  for (const [name, text] of args) {
    const line = element("div", "");
    line.append(element("span", name, "muted"), " ", text);
    host.append(line);
  }
  return host;
}

/** Text for the number of locks that one side of a race held. */
function locks(count) {
  return count === 0 ? "no lock held" : count === 1 ? "1 lock held" : `${count} locks held`;
}

export class SpanPanel {
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
   * @param {Record<string, any>} span
   * @param {string} style class for the swatch
   * @param {string} where rank and thread in words
   */
  show(span, style, where) {
    const title = element("h2", "", "slice-name");
    title.append(element("i", "", `swatch ${style}`), element("span", span.name));
    const list = element("dl", "", "facts");
    for (const [label, text] of factsOf(span)) list.append(element("dt", label), element("dd", text));
    const { partner, peers, threads, launches, races, stack, source, args, beside } = span;
    if (beside) {
      const link = `${beside.name} of ${beside.label} ↗`;
      const values = element("dd", "", "wide");
      values.append(valueTable(beside.base, beside.run));
      list.append(element("dt", "compared with"), this.jumps([[beside, link]]), values);
    } else if (beside === null) {
      list.append(element("dt", "compared with"), element("dd", "nothing: the other run has no such operator"));
    }
    if (args?.length) list.append(element("dt", "arguments"), argumentsOf(args));
    if (partner) {
      const later = partner.start_ns > Number(span.start_ns);
      const gap = `${duration(Math.abs(partner.start_ns - Number(span.start_ns)))} ${later ? "later" : "earlier"}`;
      list.append(element("dt", later ? "backward" : "forward"), this.jumps([[partner, `${partner.name}, ${gap} ↗`]]));
    }
    if (peers?.length) {
      list.append(element("dt", "other ranks"), this.jumps(peers.map((peer) => [peer, peerText(span, peer)])));
    }
    if (threads?.length)
      list.append(element("dt", "threads"), this.jumps(threads.map((one) => [one, threadText(one)])));
    if (launches?.length) {
      const label = launches[0].outgoing ? "launches" : "launched by";
      list.append(element("dt", label), this.jumps(launches.map((one) => [one, launchText(span, one)])));
    }
    const own = (stack ?? []).map((frame) => `${frame.file}:${frame.line} ${frame.function}`);
    for (const one of races ?? []) {
      list.append(element("dt", "races with"), this.jumps([[one, `${one.name} of ${one.label} ↗`]]));
      list.append(element("dt", "over"), element("dd", one.tensor));
      const sides = element("dd", "", "sides");
      sides.append(
        framesOf(`this ${one.access}, ${locks(one.locks)}`, own, source),
        framesOf(`${one.label} ${one.other}, ${locks(one.other_locks)}`, one.stack, one.source),
      );
      list.append(element("dt", "stacks"), sides);
    }
    if (own.length && !races?.length) list.append(element("dt", "stack"), framesOf("", own, source, "dd"));
    this.host.replaceChildren(title, element("p", where, "where muted"), list);
    this.host.scrollTop = 0;
  }

  /** Links to other spans. @param {[{lane: number, row: number, ref: number}, string][]} places */
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
