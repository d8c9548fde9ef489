"""A copy of the skeleton in the browser: its page, its finding and its icon."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanescope.webapp.runs.run import open_run
from tests.browser.conftest import Opener, Server
from tests.support.plugin_copy import NAME, added, copy_skeleton, write_slow_run

pytestmark = pytest.mark.browser


@pytest.mark.slow
def test_page_finding_and_icon_appear(opened: Opener, serve: Server, tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    copy_skeleton(folder)
    with added(folder):
        address = serve(open_run(write_slow_run(tmp_path / "run")))
        page = opened("/overview", at=address)
        found = page.page.locator(".finding", has_text="500 times its median")
        assert found.count() == 1
        link = page.page.get_by_role("navigation", name="Pages").get_by_role(
            "link", name="Long calls"
        )
        icon = link.locator("i.icon").evaluate("one => getComputedStyle(one).maskImage")
        assert icon.startswith('url("data:image/svg+xml')
        link.click()
        page.idle()
        assert page.page.locator("#page h1").inner_text() == "Long calls"
        assert page.page.locator("#page td", has_text="aten::mm").count() == 1
        assert page.chart(f"{NAME}-chart").locator(".bars path").count() == 1
