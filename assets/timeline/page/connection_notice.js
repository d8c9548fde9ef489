/**
 * Shows on the other pages that the server does not answer: Dash would leave them blank without a
 * message. The timeline has its own message and retries.
 * @module
 */

import { element } from "../base/dom.js";

const SENTENCE = "The server does not answer. Is `lanescope view` still running? Reload this page when it is.";

/** Watches all requests of the page from now on. */
export function listenConnection() {
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
