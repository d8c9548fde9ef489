"""The flame graph in the dock: made when its tab is opened, and follows the selected range."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.conftest import Opener, Server
from tests.webapp.plugins.flame.test_baseline import recorded

pytestmark = pytest.mark.browser


@pytest.mark.slow
def test_the_flame_graph_of_the_range_and_of_the_baseline(
    opened: Opener, serve: Server, tmp_path: Path
) -> None:
    base = recorded(tmp_path / "base", "/old", 800_000, 0, "aten::sum")
    run = recorded(tmp_path / "run", "/new", 1_600_000, 3, "aten::mean")
    page = opened("/timeline?t=0-3200000", at=serve(run, base), width=1440)
    note, graph = page.page.locator("#flame-note"), page.page.locator("#flame-graph")
    assert graph.count() == 0
    page.page.get_by_role("tab", name="Flame").click()
    note.get_by_text("3.20 ms on 1 thread").wait_for()
    note.get_by_text("twice the time or more, of the baseline").wait_for()
    page.page.locator("#flame-by").click()
    page.page.get_by_role("option", name="Python stack").click()
    graph.get_by_text("step (train.py:14)").first.wait_for()
    page.idle()
    rows = page.page.locator("#flame-table .ag-center-cols-container .ag-row")
    cells = ["step (train.py:14)", "1.60", "0.800", "×2"]
    assert rows.nth(0).locator(".ag-cell").all_inner_texts() == cells
    assert graph.locator(".pathbar").count() == 0
    page.page.locator("#flame-table .ag-header-cell").first.focus()
    page.press("ArrowDown", "Space")
    graph.locator(".pathbar", has_text="all").wait_for()
    page.idle()
    page.visit("/timeline?t=0-3200000&range=1600000-2400000")
    note.get_by_text("800 µs on 1 thread").wait_for()
    page.idle()
