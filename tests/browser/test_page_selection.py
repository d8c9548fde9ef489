"""One selection of rank, thread, step and window goes from page to page in the address."""

from __future__ import annotations

from urllib.parse import parse_qs

import pytest

from lanescope.webapp.runs.run import Run
from tests.browser.conftest import Opener

pytestmark = pytest.mark.browser


def test_the_selection_goes_from_page_to_page(opened: Opener, run: Run) -> None:
    page = opened("/gradients?rank=1&step=2")
    assert page.page.locator("#gradient-rank").inner_text() == "rank 1"
    page.follow("SQL")  # has no use for it
    page.follow("Time")
    assert page.query == "rank=1&step=2"
    assert page.page.locator("#time-step").input_value() == "2"
    assert page.page.locator("#time-flame-lanes").inner_text() == "rank 1"
    page.page.locator("#time-step").fill("3")
    page.press("Tab")
    page.follow("Timeline")
    steps = run.steps(0)
    (at,) = [i for i, step in enumerate(steps.index) if step == 3]
    bounds = {"t0": int(steps.start_ns[at]), "t1": int(steps.end_ns[at])}
    assert page.state["range"] == bounds
    assert any(lane["rank"] == 1 and lane["visible"] for lane in page.state["lanes"])
    label = page.click_slice("ward")
    (lane,) = [lane for lane in page.state["lanes"] if lane["id"] == label["lane"]]
    page.follow("Overview")
    given = parse_qs(page.query)
    low, high = map(round, page.window)
    assert given["rank"] == [str(lane["rank"])]
    assert given["t"] == [f"{low}-{high}"]
    assert {"rank", "thread", "step", "t"} == set(given)
