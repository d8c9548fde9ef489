"""What is served while an index is built."""

from __future__ import annotations

import json
import threading
from typing import Any

from lanescope.webapp.runs.types import Progress
from lanescope.webapp.server.http_server import Preparing, Wsgi


def get(app: Wsgi, path: str) -> tuple[dict[str, str], str]:
    headers: dict[str, str] = {}

    def start(status: str, found: list[tuple[str, str]]) -> None:
        headers.update({"status": status, **dict(found)})

    body = b"".join(app({"PATH_INFO": path, "REQUEST_METHOD": "GET"}, start))
    return headers, body.decode()


def page(environ: dict[str, Any], start: Any) -> list[bytes]:
    start("200 OK", [])
    return [b"the page"]


def test_progress_then_the_page() -> None:
    answer, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def make(progress: Progress) -> Wsgi:
        progress(250, 1000)
        answer.set()
        go_on.wait()
        return page

    app = Preparing(make, grace_s=0)
    app.start(failed=done.set)
    answer.wait()
    headers, text = get(app, "/timeline")
    assert headers["Cache-Control"] == "no-store"
    assert 'http-equiv="refresh"' in text
    assert "25 % of\n1,000 events" in text
    assert json.loads(get(app, "/api/progress")[1]) == {"done": 250, "of": 1000, "ready": False}
    data: list[str] = []  # no page: it waits
    asking = threading.Thread(target=lambda: data.append(get(app, "/api/run")[1]))
    asking.start()
    go_on.set()
    (working,) = (one for one in threading.enumerate() if one.name == "lanescope-index")
    working.join()
    assert json.loads(get(app, "/api/progress")[1])["ready"]
    assert get(app, "/timeline")[1] == "the page"
    asking.join()
    assert data == ["the page"]
    assert not done.is_set()


def test_requests_wait_where_there_is_nothing_to_index() -> None:
    go_on = threading.Event()
    found: list[str] = []

    def make(_: Progress) -> Wsgi:
        go_on.wait()
        return page

    app = Preparing(make)
    app.start(failed=lambda: None)
    asking = threading.Thread(target=lambda: found.append(get(app, "/")[1]))
    asking.start()
    assert json.loads(get(app, "/api/progress")[1]) == {"done": 0, "of": 0, "ready": False}
    assert not found
    go_on.set()
    asking.join()
    assert found == ["the page"]


def test_what_goes_wrong_is_handed_on() -> None:
    failed = threading.Event()

    def make(_: Progress) -> Wsgi:
        raise ValueError("no such thing")

    app = Preparing(make)
    app.start(failed=failed.set)
    failed.wait()
    assert str(app.error) == "no such thing"
