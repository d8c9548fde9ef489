"""What is looked for on the timeline: names, modules, overlaps."""

from __future__ import annotations

import pytest

from lanescope.webapp.runs.run import Run
from tests.browser.conftest import Opener, SharedTab

pytestmark = pytest.mark.browser

MS = 1_000_000


def test_search_lights_up_matches_and_steps_through_them(tab: SharedTab, run: Run) -> None:
    page = tab(f"/timeline?t={20 * MS}-{24 * MS}")
    page.press("/")
    page.page.keyboard.type("gelu")
    page.idle()
    # 2 ranks, 2 threads, 8 steps: as many of them as the run holds.
    total = page.state["hits"]["total"]
    assert total == run.events("op").column("name").to_pylist().count("aten::gelu")
    assert page.text(".search .state") == str(total)
    assert {label["name"] for label in page.state["labels"]} <= {"aten::gelu"}
    page.press("Enter")
    first = page.state["selection"]
    assert first["name"] == "aten::gelu"
    page.press("Enter")
    second = page.state["selection"]
    assert second["name"] == "aten::gelu"
    place = page.state["hits"]["position"]
    assert page.text(".search .state") == f"{place} of {total}"
    assert (second["start"], second["lane"]) > (first["start"], first["lane"])
    page.press("Escape")
    assert page.state["query"] == ""
    assert len({label["name"] for label in page.state["labels"]}) > 1


@pytest.mark.slow
def test_the_first_click_on_an_op_says_which_call_is_shown(opened: Opener) -> None:
    page = opened()  # names of modules are not loaded yet, and come after the first answer
    row = page.page.locator("#ops .ag-center-cols-container .ag-row", has_text="aten::gelu").first
    row.locator(".ag-cell").first.click()
    page.idle()
    hits = page.state["hits"]
    assert hits["position"] == 1
    assert page.text(".search .state") == f"1 of {hits['total']}"
    row.locator(".ag-cell").first.click()
    page.idle()
    assert page.text(".search .state") == f"2 of {hits['total']}"


@pytest.mark.slow
def test_an_address_with_a_search_says_how_often_it_is_found(opened: Opener) -> None:
    page = opened("/timeline?q=aten%3A%3Agelu")
    assert page.text(".search .state") == str(page.state["hits"]["total"])


@pytest.mark.slow
def test_search_marks_all_hits_however_far_out(tab: SharedTab) -> None:
    page = tab()
    page.press("/")
    page.page.keyboard.type("/^aten::gelu$/")
    page.idle()
    hits = page.state["hits"]
    assert hits["strip"] > 8
    assert hits["ruler"] > 8
    assert hits["lanes"] == [
        lane["id"] for lane in page.state["lanes"] if lane["visible"] and lane["kind"] == "thread"
    ]


def test_search_finds_modules(tab: SharedTab, run: Run) -> None:
    page = tab(f"/timeline?t={20 * MS}-{24 * MS}")
    page.press("/")
    page.page.keyboard.type("block.0")
    page.idle()
    found = run.events("op").column("module").to_pylist().count("block.0")
    assert page.state["hits"]["total"] == found
    page.press("Enter")
    assert "block.0" in page.text("#slice-panel")


def test_overlaps_are_shaded_and_visited(tab: SharedTab) -> None:
    page = tab()
    page.press("o")
    assert page.state["overlaps"]["on"]
    assert page.state["overlaps"]["shaded"] >= 1
    assert "Overlap" in page.text(".tl-toast")
    first = page.window
    page.press("o")
    assert page.window != first
    page.press("Shift+O")
    assert page.window == pytest.approx(first)


@pytest.mark.slow
def test_overlap_of_a_name_is_hunted_from_its_list(opened: Opener) -> None:
    page = opened()
    page.press("Shift+L")
    page.page.keyboard.type("aten::mul")
    page.page.keyboard.press("Enter")
    page.idle()
    assert "of=%2Faten%3A%3Amul%2F" in page.query
    assert "In window" in page.text("#dock-overlap")
    assert page.page.locator("#dock-overlap .matrix").count() == 2
    first = page.page.locator(".regions button").first
    first.click()
    page.idle()
    assert "Overlap" in page.text(".tl-toast")
    t0, t1 = page.window
    assert t1 - t0 < page.state["viewport"]["duration"] / 10
    again = opened(page.page.url.removeprefix(page.address))
    assert again.page.input_value("#overlap-of input") == "/aten::mul/"
    assert again.state["overlaps"] == page.state["overlaps"]
