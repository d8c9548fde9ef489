"""The Time page: another step, a change of one's own, and the way to the timeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanescope.webapp.runs.run import open_run
from tests.browser.conftest import Opener, Server
from tests.browser.test_finding_strip import straggling

pytestmark = pytest.mark.browser


def test_a_step_its_path_and_what_would_help(opened: Opener, serve: Server, tmp_path: Path) -> None:
    page = opened("/time", at=serve(open_run(straggling(tmp_path / "run").write())))
    rows = page.page.locator("#time-path-table tbody tr")
    rows.first.wait_for()
    assert page.chart("time-path").locator(".barlayer .trace").count() >= 3
    page.page.locator("#time-step").fill("7")
    page.page.locator("#time-predictions .share").first.wait_for()
    page.idle()
    assert "50.0 ms" in page.text("#time-about")
    assert "rank 2 as fast as the others" in page.text("#time-predictions")
    page.page.locator("#time-slowdown table").wait_for()
    assert "due to the slowest, rank 2." in page.text("#time-slowdown")
    page.page.locator("#time-spec").fill("speed=2")
    page.page.locator("#time-predict").click()
    page.page.locator("#time-predictions .note", has_text="is not a what-if").wait_for()
    page.page.locator("#time-spec").fill("transfer=0")
    page.page.locator("#time-predict").click()
    page.page.locator("#time-predictions", has_text="transfers free").wait_for()
    page.idle()
    rows.first.get_by_role("link").click()
    page.page.wait_for_url("**/timeline?t=*")
    page.idle()
    low, high = page.window
    assert 300_000_000 <= low < high <= 450_000_000  # about step 7


@pytest.mark.slow
def test_what_got_longer_than_in_the_baseline(
    opened: Opener, serve: Server, tmp_path: Path
) -> None:
    run = open_run(straggling(tmp_path / "run").write())
    page = opened("/time", at=serve(run, run))
    assert "0 % longer than in the baseline" in page.text(".page")
    page.chart("time-changes").locator(".scatterlayer .trace").first.wait_for()


@pytest.mark.slow
def test_a_run_without_steps_says_what_ends_one(
    opened: Opener, serve: Server, tmp_path: Path
) -> None:
    builder = straggling(tmp_path / "run")
    builder._tables = {key: rows for key, rows in builder._tables.items() if key[2] != "phase"}
    page = opened("/time", at=serve(open_run(builder.write())))
    assert "holds no training step" in page.text(".page")
