"""What a page has on paper."""

from __future__ import annotations

import pytest

from tests.browser.conftest import SharedTab

pytestmark = pytest.mark.browser


@pytest.mark.slow
def test_a_printed_page_has_all_of_its_charts(tab: SharedTab) -> None:
    page = tab("/gradients")
    charts = page.page.locator(".in-sight")
    drawn = page.page.locator(".in-sight .js-plotly-plot .plot-container .cartesianlayer")
    assert 0 < drawn.count() < charts.count()
    paper = page.page.pdf(format="A4", landscape=True)
    assert drawn.count() == charts.count()
    assert paper.count(b"/Type /Page\n") > 2
    page.idle()
