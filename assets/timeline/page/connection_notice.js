/**
 * Says on the pages beside the timeline that the server is gone: what Dash asks for in vain leaves
 * them blank without a word. The timeline says it itself, and tries again.
 * @module
 */

import { element } from "../base/dom.js";

const SENTENCE = "The server does not answer. Is `lanescope view` still running? Reload this page when it is.";

/** Watches all that the page asks for from now on. */
export function listenAbsence() {
  const notice = element("p", SENTENCE, "notice absence");
  notice.setAttribute("role", "alert");
  notice.hidden = true;
  document.body.append(notice);
  const asks = globalThis.fetch;
  globalThis.fetch = async (...asked) => {
    try {
      const answer = await asks(...asked);
      notice.hidden = true;
      return answer;
    } catch (error) {
      if (error.name !== "AbortError") notice.hidden = false;
      throw error;
    }
  };
}
