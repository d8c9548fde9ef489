"""A run beside its baseline: the lane above, the colours, N and Shift + N."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import BrowserContext

from tests.browser.conftest import Pages, SharedTab
from tests.support.beside import RUN_STEP, US, pair

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def beside(
    context: BrowserContext, pages: Pages, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SharedTab]:
    """One tab for the run with its baseline."""
    base, run = pair(tmp_path_factory.mktemp("beside"))
    with pages.served(run, base) as address:
        tab = SharedTab(context, address)
        yield tab
        tab.close()


@pytest.mark.slow
def test_differences_are_drawn_and_visited(beside: SharedTab) -> None:
    page = beside(height=900)
    kinds = [lane["kind"] for lane in page.state["lanes"]]
    assert kinds == ["baseline", "thread", "baseline", "thread"]
    legend = page.text(".beside-legend")
    for word in ("base", "identical", "within tolerance", "different", "added", "removed"):
        assert word in legend
    page.press("n")
    state = page.state
    assert state["selection"]["name"] == "b"
    assert state["selection"]["lane"] == 1
    assert "Difference 1 of 4 · different · rank 1" in page.text(".tl-toast")
    panel = page.text("#slice-panel")
    for words in (
        "different",
        "b of baseline MainThread",
        "out0, float32 [4]: not bitwise identical",
    ):
        assert words in panel
    rows = page.page.locator("#slice-panel .beside tr").all_inner_texts()
    assert [row.split("\t") for row in rows if row.startswith(("mean", "L2"))] == [
        ["mean", "0.5", "0.75"],
        ["L2 norm", "1", "1.5"],
    ]
    start, end = page.window
    assert start < RUN_STEP + 200 * US < end
    # The baseline's lane is moved so that its b, at half the time, begins where the run's does.
    assert page.state["shifts"] == {"3": 100 * US}
    assert "+100 µs" in page.text(".tl-labels")
    x = (RUN_STEP + 225 * US - start) / (end - start) * page.state["viewport"]["width"]
    for lane in (1, 3):
        found, wanted = page.pixel(x, page.lane_y(lane, 1)), page.token("different")
        assert all(abs(a - b) <= 40 for a, b in zip(found, wanted, strict=True)), (lane, found)
    page.click(x, page.lane_y(3, 1))  # a click finds the slice drawn there
    assert page.state["selection"]["name"] == "b"
    assert page.state["selection"]["lane"] == 3
    page.page.locator("#slice-panel button.link", has_text="b of MainThread").click()
    page.idle()
    assert page.state["selection"]["lane"] == 1
    page.press("n")
    assert page.state["selection"]["name"] == "new"
    assert page.state["shifts"] == {}  # the baseline has no such operator
    assert "the other run has no such operator" in page.text("#slice-panel")
    page.press("Shift+n")
    assert page.state["selection"]["name"] == "b"
    page.press("Shift+n")
    assert "No difference before this one." in page.text(".tl-toast")
    page.press("Escape", "Home")
    width = page.state["viewport"]["width"]
    for lane, row, at, token in (
        (1, 1, RUN_STEP + 250 * US, "different"),
        (3, 1, RUN_STEP + 125 * US, "different"),
        (0, 1, RUN_STEP + 750 * US, "added"),
        (3, 1, 2 * RUN_STEP + 375 * US, "removed"),
        (0, 1, 2 * RUN_STEP + 50 * US, "within"),
        (0, 1, 2 * RUN_STEP + 500 * US, "slower"),
    ):
        x = at / (3 * RUN_STEP) * width
        found, wanted = page.pixel(x, page.lane_y(lane, row)), page.token(token)
        # The second row is drawn a little softer than the token.
        assert all(abs(a - b) <= 40 for a, b in zip(found, wanted, strict=True)), (token, found)
    # A search takes the key, and gives it back.
    page.page.keyboard.press("/")
    page.page.keyboard.type("gone")
    page.press("Enter")
    page.press("Escape")
    page.press("n")
    assert page.state["selection"]["name"] == "gone"


@pytest.mark.slow
def test_rows_of_compare_lead_to_their_calls(beside: SharedTab) -> None:
    """Of the ops that ran more or less often, and of those that took longer."""
    page = beside("/compare", height=900)
    for table in ("diff-timing", "diff-op"):
        row = page.page.locator(f"#{table} .ag-center-cols-container .ag-row", has_text="new")
        row.first.locator(".ag-cell").first.click()
        page.page.wait_for_url("**/timeline?*")
        page.idle()
        state = page.state
        assert state["query"] == "/^new$/"
        assert state["hits"]["total"] == 1
        if table == "diff-op":  # a row of a step: the window is there
            start, end = page.window
            assert start < RUN_STEP + 700 * US < end
            assert end - start < 2 * RUN_STEP
        page.visit("/compare")
    # An op that only the baseline ran is found in its lane.
    gone = page.page.locator("#diff-op .ag-center-cols-container .ag-row", has_text="gone")
    gone.first.locator(".ag-cell").first.click()
    page.page.wait_for_url("**/timeline?*")
    page.idle()
    assert (page.state["query"], page.state["hits"]["total"]) == ("/^gone$/", 1)


@pytest.mark.slow
def test_diff_shows_the_rank_that_parted_first(beside: SharedTab) -> None:
    page = beside("/diff", height=900)
    page.page.locator("#diff-rank", has_text="rank 1").wait_for()
    # Another mode leaves a rank that was chosen.
    page.page.locator("#diff-rank").click()
    page.page.get_by_role("option", name="rank 0").click()
    page.page.locator("#diff-mode").click()
    page.page.get_by_role("option").nth(1).click()
    page.page.locator("#diff-body", has_text="step 1, rank 1").wait_for()
    page.idle()
    assert "rank 0" in page.text("#diff-rank")
