"""The HTTP server: one thread reads and writes connections, a pool of threads answers requests.

Connections are kept, so that a page's hundred requests do not cost a connection and a thread each.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from waitress import wasyncore
from waitress.server import create_server

from lanescope.webapp.runs.types import Progress

THREADS = 32
"""Requests that are answered at once. A browser keeps six connections to a server; what waits for
an index (see `progress_page`) takes at most half of the threads."""

CONNECTIONS = 512
"""Open at once. Those that have sent nothing for longest make room for the next ones."""

ROOM = 16
"""Connections that are kept free: the system accepts them while others are closed."""

BODY_LIMIT = 4 << 20
"""Bytes of a request; the application refuses more than that too."""

FINISH_S = 1
"""What is being answered when the server stops has so long to end."""

_POLL_S = 1.0


class Server:
    """Answers what comes in on a bound socket by a WSGI application."""

    def __init__(
        self,
        application: Wsgi,
        listener: socket.socket,
        connections: int = CONNECTIONS,
        finish_s: float = FINISH_S,
    ) -> None:
        # What goes to standard error is for the user: neither a queue that is long for a moment
        # nor a page that was closed while it loaded is a matter of theirs.
        for name in ("waitress", "waitress.queue"):
            logging.getLogger(name).setLevel(logging.ERROR)
        self._stopped = False
        self._most = connections - ROOM
        self._finish_s = finish_s
        self._map: dict[int, object] = {}
        self._server = create_server(
            application,
            map=self._map,
            sockets=[listener],
            threads=THREADS,
            connection_limit=connections,
            max_request_body_size=BODY_LIMIT,
            outbuf_overflow=64 << 20,  # beyond it an answer goes through a file
            log_socket_errors=False,
            asyncore_use_poll=True,
            ident=None,
        )

    def serve(self) -> None:
        """Serves until `stop`, or until a signal's handler raises; then closes everything."""
        try:
            while not self._stopped:
                wasyncore.loop(timeout=_POLL_S, use_poll=True, map=self._map, count=1)
                self._make_room()
        finally:
            self._server.task_dispatcher.shutdown(timeout=self._finish_s)
            wasyncore.loop(timeout=0, use_poll=True, map=self._map, count=1)  # sends the rest
            wasyncore.close_all(self._map)

    def _make_room(self) -> None:
        """Closes connections without a request in progress, the most silent first.

        Browsers open such a one again by themselves; who holds hundreds and sends nothing must not
        keep others out.
        """
        channels = list(self._server.active_channels.values())
        if len(channels) <= self._most:
            return
        idle = [one for one in channels if not one.requests]
        idle.sort(key=lambda one: (bool(one.total_outbufs_len), one.last_activity))
        for channel in idle[: len(channels) - self._most]:
            channel.will_close = True  # as waitress closes those that were silent for long

    def stop(self) -> None:
        """Makes `serve` return; from any thread."""
        self._stopped = True
        self._server.pull_trigger()


Start = Callable[..., Any]
Wsgi = Callable[[dict[str, Any], Start], Iterable[bytes]]


def text_response(
    start: Start, status: str, kind: str, text: str, more: Sequence[tuple[str, str]] = ()
) -> list[bytes]:
    """Returns a text of the content type `kind` that is not cached; `more` headers go behind the
    usual."""
    body = text.encode()
    headers = [
        ("Content-Type", kind),
        ("Content-Length", str(len(body))),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
    ]
    start(status, [*headers, *more])
    return [body]


MAX_WAITING = 16
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
    so an address with a view in it leads there in the end. `/api/progress` says the same in
    JSON: `{"done": events, "of": events, "ready": bool}`. Pages wait `grace_s` seconds before they
    say so: most runs are ready by then, or have their index stored. Other addresses (data that a
    script asks for) waits until it can be answered. Where `MAX_WAITING` requests wait, others are
    asked to come again, so that threads are left which can say how far the index is.
    """

    def __init__(self, make: Callable[[Progress], Wsgi], grace_s: float = 4.0) -> None:
        self._places = threading.BoundedSemaphore(MAX_WAITING)
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
            progress = {"done": self._done, "of": self._of, "ready": self._app is not None}
            return _answer(start, "application/json", json.dumps(progress))
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
    return text_response(start, status, kind, text, [_POLICY])
