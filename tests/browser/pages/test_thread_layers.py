"""The heat map of layers by thread on the Gradients page."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanescope.webapp.runs.run import open_run
from tests.browser.conftest import Opener, Server
from tests.support.recording import record_program
from tests.webapp.plugins.gradients.test_thread_layers import PROGRAM

pytestmark = pytest.mark.browser


@pytest.mark.slow
def test_layers_by_thread_and_by_step(opened: Opener, serve: Server, tmp_path: Path) -> None:
    run = open_run(record_program(tmp_path, PROGRAM).run)
    tab = opened("/gradients", at=serve(run))
    page, chart = tab.page, tab.chart("threads-heat")
    chart.get_by_text("right", exact=True).wait_for()
    page.locator("#threads-heat-note", has_text="root mean square over the steps").wait_for()
    assert chart.get_by_text("thread", exact=True).count() == 1  # the axis
    page.locator("#threads-across").click()
    page.get_by_role("option", name="by step").first.click()
    page.locator("#threads-heat-note", has_text="this one thread's backward").wait_for()
    chart.get_by_text("step", exact=True).wait_for()
    assert chart.get_by_text("right", exact=True).count() == 0  # this thread adds nothing to it
