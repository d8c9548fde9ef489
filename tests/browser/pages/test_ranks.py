"""The pages about ranks: Collectives and Hang."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanescope.webapp.runs.run import open_run
from tests.browser.conftest import Opener, Server, SharedTab
from tests.support.synthetic import write_missing_rank

pytestmark = pytest.mark.browser

MS = 1_000_000


def test_collectives_lead_to_their_place(tab: SharedTab) -> None:
    page = tab("/collectives")
    text = page.text(".page")
    for word in ("Arrival", "came last in", "overlapped with compute", "all_reduce", "kB", "16.4"):
        assert word in text
    page.page.locator("#collective-table .ag-row").first.click()
    page.page.wait_for_url("**/timeline?**")
    page.idle()
    assert page.state["selection"] is not None
    assert "sel=" in page.query


@pytest.mark.slow
def test_a_cell_of_the_heat_map_leads_to_its_call(tab: SharedTab) -> None:
    page = tab("/collectives")
    page.chart("collective-heat").locator(".nsewdrag").first.click()
    page.page.wait_for_url("**/timeline?**")
    page.idle()
    assert page.state["selection"] is not None


def test_a_hang_is_shown_by_rank(opened: Opener, serve: Server, tmp_path: Path) -> None:
    path = write_missing_rank(tmp_path / "stuck", MS, 5000 * MS)
    page = opened("/hang", at=serve(open_run(path)))
    rows = page.page.locator(".wide-table tbody tr").all_inner_texts()
    assert ["waits" in rows[0], "missing" in rows[1]] == [True, True]
    assert "all_reduce #1" in rows[0]
    assert "Rank 1 never entered all_reduce #1" in page.text(".findings")
    page.page.get_by_role("link", name="Show on the timeline").click()
    page.idle()
    assert page.state["selection"] is not None


@pytest.mark.slow
def test_a_run_in_which_no_rank_waits_says_so(tab: SharedTab) -> None:
    page = tab("/hang")
    assert "No rank waits for another" in page.text(".page")
