"""What is served while the index of a large run is built: how far it is, then the page itself."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from typing import Any

from lanescope.webapp.server.wsgi import Start, Wsgi, answer

Progress = Callable[[int, int], None]

MOST_WAITING = 16
"""Requests that wait at once; the server has twice as many threads."""

_POLICY = ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="1">
<title>LaneScope: indexing {percent} %</title>
<style>:root {{ color-scheme: light dark; font: 15px system-ui, sans-serif }}
main {{ max-width: 26rem; margin: 30vh auto 0; padding: 0 1rem }} progress {{ width: 100% }}</style>
</head><body><main role="status"><p>Indexing the run for the first time: {percent} % of
{events:,} events. It is kept, so that the next time opens at once.</p>
<progress max="{events}" value="{done}">{percent} %</progress></main></body></html>"""


class Preparing:
    """A WSGI application that becomes another one once that is made.

    Until then it answers any page with how far the index is, and asks the browser to come again,
    so an address with a view in it leads there in the end. `/api/progress` tells the same in
    JSON: `{"done": events, "of": events, "ready": bool}`. Pages wait `grace_s` seconds before they
    say so: most runs are ready by then, or have their index stored. What is no page (data that a
    script asks for) waits until it can be answered. Where `MOST_WAITING` requests wait, others are
    told to come again, so that threads are left which can say how far the index is.
    """

    def __init__(self, make: Callable[[Progress], Wsgi], grace_s: float = 4.0) -> None:
        self._places = threading.BoundedSemaphore(MOST_WAITING)
        self._make = make
        self._grace_s = grace_s
        self._made = threading.Event()
        self._app: Wsgi | None = None
        self._done = self._of = 0
        self._moved = threading.Event()  # there is something to answer
        self.error: BaseException | None = None
        self._failed: Callable[[], object] = lambda: None

    def start(self, failed: Callable[[], object]) -> None:
        """Makes the application in a thread; calls `failed` where that raises, with `error` set."""
        self._failed = failed
        threading.Thread(target=self._run, name="lanescope-index", daemon=True).start()

    def __call__(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        """Answers a request."""
        path = environ.get("PATH_INFO", "")
        if path == "/api/progress":
            told = {"done": self._done, "of": self._of, "ready": self._app is not None}
            return _answer(start, "application/json", json.dumps(told))
        if self._app is None and self._places.acquire(blocking=False):
            try:
                self._made.wait(None if path.startswith("/api/") else self._grace_s)
                self._moved.wait()
            finally:
                self._places.release()
        if self._app is not None:
            return self._app(environ, start)
        if path.startswith("/api/"):
            error = {"error": "the run is still being indexed; ask again in a moment"}
            return _answer(start, "application/json", json.dumps(error), "503 Service Unavailable")
        percent = 100 * self._done // max(self._of, 1)
        page = _PAGE.format(percent=min(percent, 99), events=self._of, done=self._done)
        return _answer(start, "text/html; charset=utf-8", page)

    def _run(self) -> None:
        try:
            self._app = self._make(self._progress)
        except BaseException as error:
            self.error = error
            self._failed()
        self._moved.set()
        self._made.set()

    def _progress(self, done: int, of: int) -> None:
        self._done, self._of = done, of
        self._moved.set()


def _answer(start: Start, kind: str, text: str, status: str = "200 OK") -> list[bytes]:
    return answer(start, status, kind, text, [_POLICY])
