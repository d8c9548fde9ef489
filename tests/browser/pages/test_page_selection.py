"""One selection of rank, thread, step and window goes from page to page in the address."""

from __future__ import annotations

from urllib.parse import parse_qs

import pytest

from lanescope.webapp.runs.run import Run
from tests.browser.conftest import Opener, SharedTab

pytestmark = pytest.mark.browser


@pytest.mark.slow
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


def test_a_row_of_the_op_table_steps_through_its_calls(tab: SharedTab) -> None:
    page = tab("/timeline")
    row = page.page.locator(".op-table .ag-row").nth(1)
    name = row.locator("[col-id=op]").inner_text()
    row.click()
    page.idle()
    first = page.state["selection"]
    assert (first["name"], page.state["query"]) == (name, f"/^{name}$/")
    row.click()
    page.idle()
    second = page.state["selection"]
    assert second["name"] == name
    assert second["start"] >= first["start"]
    assert second["ref"] != first["ref"] or second["lane"] != first["lane"]
    row.click(modifiers=["Shift"])
    page.idle()
    assert page.state["selection"]["start"] == first["start"]


@pytest.mark.slow
def test_rows_of_tables_lead_to_the_timeline(opened: Opener) -> None:
    page = opened("/threads")
    page.page.locator("#overlap-pairs .ag-row").first.click()
    page.page.wait_for_url("**/timeline?**")
    page.idle()
    page.follow("SQL")
    sql = "SELECT rank, thread, start_ns, duration_ns FROM op LIMIT 3"
    page.page.locator("#sql-query").fill(sql)
    page.page.locator("button.run").click()
    page.page.locator("#sql-table .ag-row").first.click()
    page.page.wait_for_url("**/timeline?**")
    page.idle()
    assert page.state["selection"] is not None
