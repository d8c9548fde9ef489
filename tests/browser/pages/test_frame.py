"""What is around all pages: rail, timeline below them, failures, theme, window."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from dash import _callback

from lanescope.webapp.runs.run import Run
from tests.browser.conftest import Opener, SharedTab
from tests.browser.pages.test_pages import MS

pytestmark = pytest.mark.browser


@pytest.mark.slow
def test_the_rail_lists_the_pages_and_lights_the_one_shown(opened: Opener) -> None:
    page = opened()
    links = page.page.locator(".rail a")
    titles = [
        "Overview",
        "Timeline",
        "Time",
        "Collectives",
        "Threads",
        "Gradients",
        "Compare",
        "SQL",
    ]
    assert links.all_inner_texts() == titles
    for title in titles:
        page.follow(title)
        assert page.page.locator(".rail a.here").inner_text() == title
        assert page.page.title().startswith(f"{title} · ")


def test_the_header_shows_the_end_of_a_long_path(tab: SharedTab, run: Run) -> None:
    pill = tab().page.locator(".pill.run")
    assert run.title.endswith(
        pill.locator("b").inner_text().removeprefix("\N{HORIZONTAL ELLIPSIS}")
    )
    assert len(pill.locator("b").inner_text()) < len(run.title)
    assert pill.get_attribute("title") == run.files.place


@pytest.mark.parametrize("path", ["/overview", "/timeline", "/time", "/collectives"])
def test_no_page_is_wider_than_a_phone(tab: SharedTab, path: str) -> None:
    page = tab(path, width=390, height=844)
    assert page.page.evaluate("document.documentElement.scrollWidth") <= 390
    pill = page.page.locator("#health")
    assert pill.evaluate("pill => pill.scrollWidth <= pill.clientWidth + 1")


def test_a_search_without_any_match_says_so(tab: SharedTab) -> None:
    page = tab()
    page.page.keyboard.press("/")
    page.page.keyboard.type("aten::mm > 10 h")
    page.press("Enter")
    assert page.text(".tl-toast") == "No match"


def test_the_timeline_stays_mounted(tab: SharedTab) -> None:
    page = tab(f"/timeline?t={20 * MS}-{24 * MS}")
    page.click_slice("aten::")
    left = page.state
    page.page.evaluate("document.querySelector('.tl-lanes canvas').dataset.mark = 'same'")
    tiles, ops = page.tile_requests(), page.text("#ops")
    page.follow("SQL")
    assert not page.page.locator(".tl-lanes").is_visible()
    assert page.page.locator(".dock .ag-row, .dock .matrix").count() == 0
    page.follow("Timeline")
    assert page.text("#ops") == ops
    assert page.page.locator(".tl-lanes").is_visible()
    assert page.page.locator(".tl-lanes canvas").first.get_attribute("data-mark") == "same"
    assert page.state["viewport"] == left["viewport"]
    assert page.state["selection"] == left["selection"]
    assert page.tile_requests() == tiles
    assert "sel=" in page.query
    page.page.go_back()
    page.idle()
    assert page.page.locator("h1").inner_text() == "SQL"


@pytest.mark.slow
def test_what_fails_says_so_in_its_place(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    page = opened("/sql")
    invoke = _callback._invoke_callback

    def failing(function: Callable[..., Any], *given: Any, **named: Any) -> Any:
        if function.__module__.startswith("lanescope.webapp.plugins"):
            raise ZeroDivisionError("by <b>nothing</b>")
        return invoke(function, *given, **named)

    monkeypatch.setattr(_callback, "_invoke_callback", failing)
    fault = "This could not be computed. Internal error in a "
    for name in ("Overview", "Time", "Collectives", "Threads", "Gradients", "SQL"):
        page.follow(name)
        if name == "SQL":
            page.page.get_by_role("button", name="Run the query").click()
            page.idle()
        assert page.page.locator(".page h1").count() == 1
        text = " ".join(page.text(".page").split())
        assert re.search(rf"{fault}(part of the page|chart) \(ZeroDivisionError: by <b>noth", text)
        assert "Reload the page to try again." in text
        assert page.page.locator(".page .loading").count() == 0
        assert "Computing" not in text, name
        if name == "Gradients":  # its table asks for rows by itself
            assert "could not be computed" in page.text("#parameter-note")
    page.follow("Timeline")
    for part in (".op-table", "#dock-overlap"):
        assert "Internal error in the dock" in page.text(part)


@pytest.mark.slow
def test_charts_follow_the_theme(opened: Opener) -> None:
    page = opened("/overview", theme="dark")
    page.page.locator("#overview-steps .barlayer .trace").first.wait_for()
    colour = "getComputedStyle(document.querySelector('#overview-steps .xtick text')).fill"
    assert page.page.evaluate(colour) == "rgb(147, 160, 176)"
    page.press("t")
    page.page.wait_for_function(f"{colour} === 'rgb(102, 114, 130)'")


def test_an_address_without_a_page(tab: SharedTab) -> None:
    page = tab("/nowhere")
    assert "no such page" in page.text(".page")
    page.page.locator(".page").get_by_role("link", name="SQL").click()
    page.idle()
    assert page.page.locator("h1").inner_text() == "SQL"


@pytest.mark.parametrize("width", [1280, 3840])
def test_nothing_sticks_out_of_the_window(tab: SharedTab, width: int) -> None:
    page = tab(width=width, height=800 if width == 1280 else 2160)
    wide = """() => [...document.querySelectorAll('.header > *, .rail > *, .dock > *, .tl-head')]
        .filter(e => { const b = e.getBoundingClientRect();
                       return b.right > innerWidth + 1 || b.bottom > innerHeight + 1; })
        .map(e => e.className)"""
    assert page.page.evaluate(wide) == []
    cut = """() => [...document.querySelectorAll('.header .pill')]
        .filter(e => e.scrollWidth > e.clientWidth + 1 && !e.classList.contains('run'))
        .map(e => e.textContent)"""
    assert page.page.evaluate(cut) == []


@pytest.mark.slow
def test_a_page_says_that_the_server_is_gone(opened: Opener) -> None:
    page = opened("/sql")
    page.page.context.set_offline(True)
    page.page.get_by_role("navigation", name="Pages").get_by_role("link", name="Gradients").click()
    page.page.wait_for_selector(".absence:not([hidden])")
    assert "server does not answer" in page.text(".absence")
    page.page.context.set_offline(False)
    page.go("/sql")
    assert page.page.locator(".absence").is_hidden()
    said = ("ERR_INTERNET_DISCONNECTED", "the server did not respond")
    page.problems = [text for text in page.problems if not any(one in text for one in said)]
