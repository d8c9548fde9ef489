"""What a reader keeps: notes, saved views, pictures, the table of the slices in sight."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lanescope.webapp.runs.run import open_run
from tests.browser.conftest import Opener, Server, SharedTab
from tests.support.synthetic import write_run

pytestmark = pytest.mark.browser

MS = 1_000_000


@pytest.fixture
def own(tmp_path: Path, serve: Server) -> tuple[str, Path]:
    """A run of this test alone, since it is written to."""
    path = write_run(tmp_path / "own", ranks=2, threads=2, steps=3, ops=40, step_ns=10 * MS)
    return serve(open_run(path)), path


@pytest.mark.slow
def test_notes_and_views_are_kept_with_the_run(opened: Opener, own: tuple[str, Path]) -> None:
    address, path = own
    page = opened(f"/timeline?t={2 * MS}-{4 * MS}", at=address)
    page.press("m", "b")
    page.page.keyboard.type("here it is slow")
    page.page.keyboard.press("Enter")
    page.idle()
    page.page.get_by_role("button", name="Save this view").click()
    page.page.keyboard.type("the slow part")
    page.page.keyboard.press("Enter")
    page.idle()
    kept = json.loads((path / "notes.json").read_text())
    assert [(note["t0"], note["t1"], note["text"]) for note in kept["notes"]] == [
        (2 * MS, 4 * MS, "here it is slow")
    ]
    assert page.text("#tab-notes").startswith("Notes 2")
    again = opened("/timeline", at=address)
    again.page.get_by_role("tab", name="Notes").click()
    again.page.get_by_role("button", name="the slow part", exact=True).click()
    again.idle()
    assert again.window == pytest.approx((2 * MS, 4 * MS), abs=1)
    again.page.get_by_role("button", name="Remove here it is slow").click()
    again.idle()
    assert json.loads((path / "notes.json").read_text())["notes"] == []


@pytest.mark.slow
def test_notes_of_another_tab_are_not_lost(opened: Opener, own: tuple[str, Path]) -> None:
    address, path = own
    first, second = opened("/timeline", at=address), opened("/timeline", at=address)
    for page, text in ((first, "one"), (second, "two")):
        page.press("b")
        page.page.keyboard.type(text)
        page.page.keyboard.press("Enter")
        page.idle()
    assert "meanwhile" in second.text(".tl-toast")
    assert [one["text"] for one in json.loads((path / "notes.json").read_text())["notes"]] == [
        "one"
    ]
    assert "one" in second.text("#notes-panel")
    second.problems = [text for text in second.problems if "409" not in text]


@pytest.mark.slow
def test_a_run_that_cannot_be_written_says_so(opened: Opener, own: tuple[str, Path]) -> None:
    address, path = own
    (path / "notes.json").write_text("not notes")
    page = opened("/timeline", at=address)
    page.press("b")
    assert "notes.json cannot be read" in page.text("#notes-panel")
    assert (path / "notes.json").read_text() == "not notes"


@pytest.mark.slow
def test_the_view_as_svg_and_png(tab: SharedTab, tmp_path: Path) -> None:
    page = tab(f"/timeline?t={20 * MS}-{24 * MS}&pin=1")
    names = {label["text"] for label in page.state["labels"]}
    for kind in ("SVG", "PNG"):
        with page.page.expect_download() as download:
            page.press("Control+k")
            page.page.keyboard.type(f"as {kind}")
            page.page.keyboard.press("Enter")
        file = tmp_path / download.value.suggested_filename
        download.value.save_as(file)
        if kind == "SVG":
            root = ElementTree.parse(file).getroot()
            texts = {node.text for node in root.iter("{http://www.w3.org/2000/svg}text")}
            assert names <= texts
            assert "MainThread" in texts
            assert "Thread-1 · rank 0" in texts
        else:
            assert file.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    page.idle()


@pytest.mark.slow
def test_slices_in_sight_as_a_table(tab: SharedTab) -> None:
    page = tab(f"/timeline?t={20 * MS}-{24 * MS}")
    page.press("Shift+T")
    table = page.page.locator("#slices-panel table")
    rows = table.locator("tbody tr")
    listed = {rows.nth(i).locator("td").nth(2).inner_text() for i in range(rows.count())}
    assert {label["name"] for label in page.state["labels"]} <= listed
    rows.locator("button", has_text="aten::").first.click()
    page.idle()
    assert page.state["selection"]["name"].startswith("aten::")
    page.press("d")
    assert "visible slices" in table.locator("caption").inner_text()
