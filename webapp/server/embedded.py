"""The page of a run in a cell of a notebook: a server in this process, and a frame around it.

Only documents whose address has the server's token may be framed, see `server.make_app`.
"""

from __future__ import annotations

import atexit
import secrets
import socket
import threading
from collections import OrderedDict
from html import escape
from urllib.parse import urlencode

from lanescope.webapp.analysis.check_limits import load_settings
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.server.auth import TOKEN_PARAMETER
from lanescope.webapp.server.http_server import Server
from lanescope.webapp.timeline.timeline import Timeline

HEIGHT = 640
"""Of the frame, in CSS pixels."""

MAX_SERVERS = 8
"""Views served at once; the one that was shown longest ago is closed for the next."""

LAST_ANSWER_S = 60
"""What is being answered has so long to end. The program goes on, and may end, after it: a thread
that is within Arrow then would make Arrow's own end wait for ever."""


class View:
    """A page that a notebook shows in a cell, until `close`."""

    def __init__(self, run: Run, baseline: Run | None, port: int) -> None:
        from lanescope.webapp.server.server import make_app  # loads Dash

        token = secrets.token_urlsafe(24)
        index = Timeline.open(run, baseline)
        settings = load_settings(run.path)
        app = make_app(run, baseline, index=index, settings=settings, frame_token=token)
        self._listener = socket.create_server(("127.0.0.1", port))
        self._port = self._listener.getsockname()[1]
        self._server = Server(app.server, self._listener, finish_s=LAST_ANSWER_S)
        self._thread = threading.Thread(
            target=self._server.serve, name="lanescope-view", daemon=True
        )
        self._thread.start()
        self._token = token
        self.title = run.title
        self.height = HEIGHT

    @property
    def address(self) -> str:
        """The page's address, to open in a tab of its own."""
        return f"http://127.0.0.1:{self._port}/timeline"

    @property
    def open(self) -> bool:
        """True until `close`."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Ends the server; the frame stays, and shows nothing new."""
        if self.open:
            self._server.stop()
            self._thread.join()
            self._listener.close()

    def __repr__(self) -> str:
        return f"<timeline of {units.printable(self.title)} at {self.address}>"

    def _repr_html_(self) -> str:
        address = f"{self.address}?{urlencode({TOKEN_PARAMETER: self._token})}"
        return (
            f'<iframe src="{escape(address)}" width="100%" height="{self.height}" '
            f'title="{escape(units.printable(self.title))}" style="border:1px solid #8888" '
            "allowfullscreen></iframe>"
            f'<div><small><a href="{escape(self.address)}" target="_blank" rel="noopener">'
            "open in a tab</a></small></div>"
        )


_views: OrderedDict[tuple[str, str], View] = OrderedDict()
_lock = threading.Lock()


def view(run: Run, baseline: Run | None = None, *, height: int = HEIGHT, port: int = 0) -> View:
    """Opens the timeline of a run; a notebook shows it in the cell.

    `height`: of the frame, pixels. `port`: of 127.0.0.1; 0 takes a free one. Calls for the same
    run share one server. Raises RunError where the run cannot be read, OSError where the port
    cannot be bound.
    """
    key = run.etag, "" if baseline is None else baseline.etag
    with _lock:
        known = _views.pop(key, None)
        if known is None or not known.open:
            known = View(run, baseline, port)
        _views[key] = known
        if len(_views) > MAX_SERVERS:
            _views.popitem(last=False)[1].close()
    known.height = height
    return known


@atexit.register
def _close_all() -> None:
    """Ends all servers before the interpreter does, so that no thread is cut off at work."""
    while _views:
        _views.popitem()[1].close()
