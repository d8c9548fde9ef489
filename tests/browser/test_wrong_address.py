"""An address that asks for what the run does not hold: the page says so, and shows the rest."""

from __future__ import annotations

from urllib.parse import parse_qs

import pytest

from lanescope.webapp.runs.run import Run
from tests.browser.conftest import Opener

pytestmark = pytest.mark.browser

NOTICE = ".notice.unused"


def test_the_timeline_names_what_it_cannot_use(opened: Opener, run: Run) -> None:
    middle = run.duration_ns // 2
    page = opened(f"/timeline?rank=9&sel=x&closed=1..2&t={middle}-{middle + 1000}")
    notice = page.page.locator(NOTICE)
    assert notice.get_attribute("role") == "alert"
    words = notice.locator("span").inner_text()
    assert words.startswith("Not used of the address: rank=9 (the run has ranks 0–1), sel=x (")
    assert "closed=1..2 (expected numbers" in words
    low, high = map(round, page.window)
    assert (low, high) == (middle, middle + 1000)  # the rest is used
    notice.get_by_role("button", name="Close").click()
    assert not notice.is_visible()


def test_an_unknown_step_is_named_once(opened: Opener) -> None:
    page = opened("/timeline?step=99")
    assert "step=99 (the run has steps 0–7)" in page.page.locator(NOTICE).inner_text()
    assert not page.page.locator(".tl-toast").is_visible()


def test_other_pages_name_what_they_cannot_use(opened: Opener) -> None:
    page = opened("/gradients?rank=1&step=99")
    notice = page.page.locator(NOTICE)
    assert "step=99 (the run has steps 0–7)" in notice.inner_text()
    assert page.page.locator("#gradient-rank").inner_text() == "rank 1"
    page.visit("/time?rank=1&step=2")
    assert not notice.is_visible()
    page.visit("/time?rank=one")
    assert "rank=one (expected a number)" in notice.inner_text()


def test_a_finding_and_a_slice_that_are_not_there(opened: Opener) -> None:
    page = opened("/timeline?finding=77")
    page.page.locator(NOTICE, has_text="The run has no finding 77: its findings are 0–").wait_for()
    page.idle()
    assert "finding" not in parse_qs(page.query)
    assert not page.page.locator(".tl-finding").is_visible()
    page = opened("/timeline?at=nowhere@5")
    assert "at=nowhere@5 (no slice begins there)" in page.page.locator(NOTICE).inner_text()
    page = opened("/timeline")
    assert not page.page.locator(NOTICE).is_visible()
