"""Layers by rank on the Gradients page: which rank is apart, and the way to its backward."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.conftest import Opener, Server
from tests.webapp.plugins.gradients.test_rank_map import run_of

pytestmark = pytest.mark.browser


@pytest.mark.slow
def test_the_rank_that_is_apart_is_seen_and_leads_to_its_backward(
    opened: Opener, serve: Server, tmp_path: Path
) -> None:
    run = run_of(tmp_path / "run", {("blocks.1", 2): 3.0, ("head", 3): 2.2})
    tab = opened("/gradients", at=serve(run))
    page = tab.page
    page.get_by_text("Norms differ in 2 of 4 layers (blocks.1, head), on rank 2").wait_for()
    cell = tab.chart("ranks-heat").locator(".heatmap-label", has_text="1.5 ×")
    cell.scroll_into_view_if_needed()
    box = cell.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    note = page.locator("#ranks-note", has_text="blocks.1 at step 2. rank 0: 2, rank 1: 2")
    note.wait_for()
    note.get_by_role("link", name="Show its backward pass on rank 2").click()
    page.wait_for_url("**/timeline?t=**")
