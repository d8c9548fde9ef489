"""The HTTP server: one thread reads and writes connections, a pool of threads answers requests.

Connections are kept, so that a page's hundred requests do not cost a connection and a thread each.
"""

from __future__ import annotations

import logging
import socket

from waitress import wasyncore
from waitress.server import create_server

from lanescope.webapp.server.wsgi import Wsgi

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
        self, application: Wsgi, listener: socket.socket, connections: int = CONNECTIONS
    ) -> None:
        # What goes to standard error is for the user: neither a queue that is long for a moment
        # nor a page that was closed while it loaded is a matter of theirs.
        for name in ("waitress", "waitress.queue"):
            logging.getLogger(name).setLevel(logging.ERROR)
        self._stopped = False
        self._most = connections - ROOM
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
            self._server.task_dispatcher.shutdown(timeout=FINISH_S)
            wasyncore.loop(timeout=0, use_poll=True, map=self._map, count=1)  # sends what is left
            wasyncore.close_all(self._map)

    def _make_room(self) -> None:
        """Closes connections of which no request is being answered, the most silent first.

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
