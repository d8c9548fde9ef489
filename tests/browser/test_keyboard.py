"""Without a mouse: past the header, into the search from any page, and a query that runs."""

from __future__ import annotations

import pytest

from tests.browser.conftest import Opener

pytestmark = pytest.mark.browser


def test_the_first_tab_leads_past_the_header(opened: Opener) -> None:
    page = opened("/sql")
    page.press("Tab")
    focus = "document.activeElement.textContent"
    assert page.page.evaluate(focus) == "Skip to the page"
    page.press("Enter")
    assert page.page.evaluate("document.activeElement.id") == "page"
    page.press("Tab")
    assert page.page.evaluate("document.activeElement.closest('#page') !== null")
    assert "#" not in page.page.url


@pytest.mark.slow
def test_slash_searches_from_any_page_and_keys_run_a_query(opened: Opener) -> None:
    page = opened("/sql")
    page.page.locator("textarea").click()
    page.press("Control+Enter")
    page.page.locator(".grid .ag-row").first.wait_for()
    page.page.locator("h1").click()
    page.press("/")
    page.page.keyboard.type("aten::addmm")
    page.press("Enter")
    assert page.page.url.partition("?")[0].endswith("/timeline")
    assert page.state["selection"]["name"] == "aten::addmm"
