"""The page of a run that is being recorded, when the recording ends: it shows the last state."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Route

from lanescope.collector.compaction.compact import advance, compact
from lanescope.webapp.analysis.checks import DEFAULTS
from lanescope.webapp.runs import units
from lanescope.webapp.runs.growing import growing
from lanescope.webapp.runs.run import Run, open_run
from lanescope.webapp.server.http_server import Server, Wsgi
from lanescope.webapp.server.live_run import Following
from lanescope.webapp.server.server import make_app
from lanescope.webapp.timeline.timeline import Timeline
from tests.browser.conftest import Opener
from tests.support.growing import begin, write_ops
from tests.support.processes import TIME_LIMIT_S

pytestmark = pytest.mark.browser

OPS = 500
FRAMES = """new Promise((done) => {
    let left = 30;
    const frame = () => (left-- ? requestAnimationFrame(frame) : done());
    frame();
})"""


@contextmanager
def followed(first: Run, opened: Any) -> Iterator[str]:
    """Address of a run that is followed, `opened` in its own way."""

    def make(timeline: Timeline, answer: Any) -> Wsgi:
        application: Wsgi = make_app(timeline.run, index=timeline, live=answer).server
        return application

    following = Following(Timeline.open(first), make, DEFAULTS, opened)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Server(following, listener)
        threads = [threading.Thread(target=server.serve), *following.start()]
        threads[0].start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.stop()
            for thread in threads:
                thread.join()


def comes(page: Page, there: Callable[[], bool]) -> None:
    """Lets the page work until it is there."""
    end = time.monotonic() + TIME_LIMIT_S
    while not there():
        assert time.monotonic() < end, "it never came"
        page.wait_for_timeout(20)


@pytest.mark.slow
def test_a_recording_that_ends_while_a_state_is_opened(tmp_path: Path, opened: Opener) -> None:
    run = tmp_path / "run"
    recorder = begin(run)
    write_ops(recorder, 0, OPS)
    ends = [
        lambda: write_ops(recorder, OPS, OPS),
        recorder.close,
        lambda: advance(run),
        lambda: compact(run),
    ]
    seen = threading.Event()

    def open_before(title: str) -> Run:
        """The state before the next thing that happens, once the page was seen."""
        found = open_run(title)
        if seen.is_set() and ends:
            ends.pop(0)()
        return found

    with followed(open_run(run), open_before) as address:
        try:
            lanes = opened("/overview", at=address)
            page = lanes.page
            page.locator("text=did not close its log").wait_for()
            page.locator("#health", has_text="1 warning").wait_for()
        finally:
            seen.set()  # or it would be followed for ever
        page.locator(".pill.live[data-state=ended]").wait_for()
        page.locator("text=did not close its log").wait_for(state="detached")
        page.locator("#health", has_text="nothing found").wait_for()
        lanes.idle()
        last = open_run(run)
        facts = page.evaluate("fetch('/api/run').then(answer => answer.json())")
        assert page.evaluate("lanescope.debugState().etag") == facts["etag"]
        assert facts["etag"] == Timeline.open(last).etag
        assert last.complete
        assert (
            units.count(last.counts["op"]) in page.locator("details.recording summary").inner_text()
        )
        lanes.close()


@pytest.mark.slow
def test_a_slice_that_is_asked_for_while_the_state_is_replaced(
    tmp_path: Path, opened: Opener
) -> None:
    """Its number is another one in the new state: the row above has more slices."""
    run = tmp_path / "run"
    recorder = begin(run)
    write_ops(recorder, 0, OPS)
    first = open_run(run)
    ends = [lambda: write_ops(recorder, OPS, OPS)]
    seen, done = threading.Event(), threading.Event()

    def open_later(title: str) -> Run:
        if seen.is_set() and ends:
            ends.pop()()
        if done.is_set() and growing(run):
            recorder.close()
            compact(run)
        return open_run(title)

    held: list[Route] = []
    with followed(first, open_later) as address:
        try:
            lanes = opened("/timeline?t=0-1000", at=address)
            page = lanes.page
            before = lanes.state["etag"]
            lane = next(one["id"] for one in lanes.state["lanes"] if one["kind"] == "thread")
            page.route("**/api/slice/**", lambda route: held.append(route))
            x = lanes.state["viewport"]["width"] * 0.32  # the child at 310 to 330 ns
            page.mouse.click(*lanes.at(x, lanes.lane_y(lane, 1)))
            comes(page, lambda: bool(held))
            with page.expect_response("**/api/run"):
                seen.set()
            with page.expect_response(lambda answer: "/tile/" in answer.url):
                pass
            page.evaluate(FRAMES)  # nothing else would keep it from showing the new state
            assert lanes.state["etag"] == before  # it waits for the slice
            held[0].continue_()
            page.unroute("**/api/slice/**")
            comes(page, lambda: lanes.state["etag"] != before)
            lanes.idle()
            chosen = lanes.state["selection"]
            assert (chosen["name"], chosen["lane"], chosen["row"]) == ("child", lane, 1)
            place = f"{lanes.state['etag']}/{lane}/{chosen['ref']}"
            facts = page.evaluate(f"fetch('/api/slice/{place}').then(answer => answer.json())")
            assert (facts["name"], facts["drawn"]) == ("child", [chosen["start"], chosen["end"]])
            assert "child" in page.locator("#slice-panel").inner_text()
        finally:
            seen.set()
            done.set()
        page.locator(".pill.live[data-state=ended]").wait_for()
        lanes.close()
