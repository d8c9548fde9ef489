/**
 * Notes and saved views: stored in a file of the run, shown on the ruler and in the dock.
 * @module
 */

import { getJson } from "../base/bridge.js";
import { element } from "../base/dom.js";
import { count, instant } from "../base/format.js";

/**
 * @typedef {{id: string, t0: number, t1: number, lane: string|null, text: string}} Note
 * @typedef {{name: string, search: string}} View
 */

export class Notes {
  /**
   * @param {HTMLElement} host
   * @param {import("../page/timeline.js").Timeline} timeline
   * @param {{visit: (search: string) => void, open: () => void, counted: (n: number) => void}} page
   */
  constructor(host, timeline, page) {
    Object.assign(this, { host, timeline, page });
    /** @type {Note[]} */
    this.notes = [];
    /** @type {View[]} */
    this.views = [];
    this.whyNot = "The notes are still loading.";
    this.show();
    timeline.idle.track("notes", this.load());
  }

  async load() {
    try {
      this.take(await getJson("/api/notes"));
    } catch (error) {
      this.whyNot = error.message;
    }
    this.show();
  }

  take({ content, revision, token, why_not: whyNot }) {
    this.notes = content?.notes ?? [];
    this.views = content?.views ?? [];
    this.revision = revision;
    if (token) this.token = token;
    this.whyNot = whyNot;
    this.timeline.invalidate("overlay");
  }

  /** Opens a field for a note at the range, the selected span, or the middle of the window. */
  begin() {
    this.page.open();
    if (this.whyNot) {
      this.timeline.toast(this.whyNot);
      return;
    }
    const {
      range,
      selection: { current },
      view,
      laneById,
    } = this.timeline;
    const middle = Math.round((view.t0 + view.t1) / 2);
    const at = range ?? (current ? { t0: current.start, t1: current.end } : { t0: middle, t1: middle });
    const lane = !range && current ? laneById.get(current.lane).key : null;
    this.ask("Note", (text) => {
      this.notes.push({ id: crypto.randomUUID(), t0: Math.round(at.t0), t1: Math.round(at.t1), lane, text });
      this.notes.sort((a, b) => a.t0 - b.t0);
    });
  }

  /** Opens a field for the name of the current view. */
  beginView() {
    this.page.open();
    if (this.whyNot) {
      this.timeline.toast(this.whyNot);
      return;
    }
    this.ask("Name of the view", (name) => this.views.push({ name, search: location.search }));
  }

  ask(what, done) {
    const input = element("input", "", "note-input");
    Object.assign(input, { type: "text", placeholder: `${what} …`, maxLength: 2000 });
    input.setAttribute("aria-label", what);
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.stopPropagation();
      event.preventDefault();
      const text = input.value.trim();
      if (event.key === "Enter" && text) {
        done(text);
        this.save();
      } else this.show();
      this.timeline.dom.host.focus();
    });
    this.host.prepend(input);
    input.focus();
  }

  async save() {
    const { timeline } = this;
    const content = { format: 1, notes: this.notes, views: this.views };
    const sent = {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-LaneScope-Token": this.token },
      body: JSON.stringify({ content, revision: this.revision }),
    };
    this.show();
    try {
      const response = await timeline.idle.track("notes", fetch(`/api/notes/${timeline.run.etag}`, sent));
      const answer = await response.json();
      if (answer.content) this.take(answer);
      if (!response.ok) throw new Error(`Not saved: ${answer.error}.`);
      this.revision = answer.revision;
    } catch (error) {
      timeline.toast(error.message);
    }
    this.show();
    timeline.invalidate("overlay");
  }

  show() {
    const { notes, views, whyNot } = this;
    const list = element("ul", "", "notes");
    for (const note of notes)
      list.append(
        this.row(
          note.text,
          instant(note.t0),
          () => this.visit(note),
          () => notes.splice(notes.indexOf(note), 1),
        ),
      );
    for (const view of views)
      list.append(
        this.row(
          view.name,
          "view",
          () => this.page.visit(view.search),
          () => views.splice(views.indexOf(view), 1),
        ),
      );
    const parts = [];
    if (whyNot) parts.push(element("p", whyNot, "hint"));
    else {
      const bar = element("div", "", "note-bar");
      bar.append(
        button("Add a note (B)", () => this.begin()),
        button("Save this view", () => this.beginView()),
      );
      parts.push(bar);
    }
    if (notes.length || views.length) parts.push(list);
    else if (!whyNot)
      parts.push(element("p", "Notes are placed at the selected slice or range and stored with the run.", "hint"));
    this.host.replaceChildren(...parts);
    this.page.counted(notes.length + views.length);
  }

  row(text, where, go, remove) {
    const row = element("li", "");
    const away = button("×", () => {
      remove();
      this.save();
    });
    away.setAttribute("aria-label", `Remove ${text}`);
    away.hidden = Boolean(this.whyNot);
    row.append(button(text, go), element("span", where, "muted"), away);
    return row;
  }

  visit({ t0, t1, lane }) {
    const { timeline } = this;
    const span = timeline.view.t1 - timeline.view.t0;
    const half = Math.max(t1 - t0, Math.min(span, timeline.duration / 20)) * 0.75;
    const middle = (t0 + t1) / 2;
    timeline.glideTo({ t0: middle - half, t1: middle + half });
    if (t1 > t0) timeline.setRange(t0, t1);
    const there = timeline.lanes.find((one) => one.key === lane);
    if (there) timeline.revealRow(there.id, 0);
  }
}

function button(text, act) {
  const node = element("button", text, "link");
  node.type = "button";
  node.addEventListener("click", act);
  return node;
}

/** Returns the tab's title. @param {number} n */
export const notesTitle = (n) => (n ? `Notes ${count(n)}` : "Notes");
