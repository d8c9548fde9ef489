"""No page violates any rule that axe knows, in either theme."""

from __future__ import annotations

import importlib.resources
from typing import Literal
from urllib.parse import urlsplit

import pytest

from lanescope.webapp.analysis.plugin import pages
from tests.browser.conftest import Opener, SharedTab

pytestmark = pytest.mark.browser

AXE = importlib.resources.files("axe_playwright_python").joinpath("axe.min.js")

_RUN = """async () => {
  const { violations } = await axe.run(document, { resultTypes: ["violations"] });
  const named = (one, node) => `${one.id}: ${node.html.slice(0, 150)} ${node.any[0]?.message}`;
  return violations.flatMap((one) => one.nodes.map((node) => named(one, node)));
}"""


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_violation_on_any_page(opened: Opener, theme: Literal["light", "dark"]) -> None:
    page = opened(theme=theme)
    page.page.evaluate(AXE.read_text(encoding="utf-8"))
    found: dict[str, list[str]] = {}
    for one in page.page.locator(".rail a").all():
        one.click()
        page.idle()
        for tab in page.page.locator(".page-tab").all() or [one]:
            tab.click()
            page.idle()
            page.draw_charts()
            found[urlsplit(page.page.url).path] = page.page.evaluate(_RUN)
    assert found == {one.path: [] for one in pages() if not one.shown}


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.soak)])
def test_no_violation_while_at_work(opened: Opener, theme: Literal["light", "dark"]) -> None:
    page = opened("/timeline?q=aten::mul&overlaps=1&pin=0&lanes=rank", theme=theme)
    page.press("ArrowDown", "ArrowDown", "Shift+T")
    page.page.evaluate(AXE.read_text(encoding="utf-8"))
    assert page.page.evaluate(_RUN) == []
    page.page.get_by_role("tab", name="Flame").click()
    page.page.locator("#flame-graph .slice").first.wait_for()
    page.idle()
    assert page.page.evaluate(_RUN) == []
    page.press("Control+k")
    assert page.page.evaluate(_RUN) == []
    page.page.keyboard.press("Escape")
    page.press("?")
    assert page.page.evaluate(_RUN) == []
    page.page.keyboard.press("Escape")


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(1280, 720), (3840, 2160)])
def test_everything_fits_from_a_laptop_to_4k(tab: SharedTab, width: int, height: int) -> None:
    page = tab(width=width, height=height)
    size = page.page.evaluate(
        "[document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
    )
    assert size == [width, height]
    assert page.state["viewport"]["height"] > height * 0.4
    for name in (".search input", ".tl-filter input", "#dock-tabs", "[data-action=help]"):
        box = page.page.locator(name).bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
