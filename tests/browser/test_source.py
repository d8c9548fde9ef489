"""The lines of the program on cards, in the panel of a slice and on the Hangs page."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Locator

from lanescope.webapp.runs.run import open_run
from tests.browser.conftest import Opener, Server
from tests.support.page import LanePage
from tests.support.recording import Recorded, record_program
from tests.support.run_builder import START_NS, Builder

pytestmark = pytest.mark.browser

EVIL = '</script><img src=x onerror="globalThis.hacked = 1"> &lt;b>'
RACE = f"""
    import threading, torch
    weight = torch.zeros(4)
    def train():
        for _ in range(3):
            weight.add_(1)  # {EVIL}
    threads = [threading.Thread(target=train) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def check_lines(page: LanePage, place: Locator) -> None:
    """Opens a place's lines: the named one among its neighbours, as plain text."""
    summary = place.locator("summary")
    assert summary.locator("code").inner_text() == f"weight.add_(1)  # {EVIL}"
    assert not place.locator("pre").is_visible()
    summary.click()
    assert place.locator("pre").is_visible()
    assert place.locator(".named").inner_text() == f"        weight.add_(1)  # {EVIL}"
    copied = page.page.evaluate(
        """pre => {
          getSelection().selectAllChildren(pre);
          return getSelection().toString();
        }""",
        place.locator("pre").element_handle(),
    )
    # The numbers of the lines are not copied.
    assert copied.splitlines()[2:4] == [
        "    for _ in range(3):",
        f"        weight.add_(1)  # {EVIL}",
    ]
    assert page.page.evaluate("globalThis.hacked") is None
    assert page.page.locator("img[src='x']").count() == 0


@pytest.fixture(scope="module")
def racing(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return record_program(tmp_path_factory.mktemp("racing"), RACE, "--stacks", "all")


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_a_card_and_the_panel_show_the_line(
    opened: Opener, serve: Server, racing: Recorded, theme: str
) -> None:
    race = racing.findings("race")[0]
    page = opened("/", at=serve(open_run(racing.run)), theme=theme)
    page.page.locator(".finding").first.wait_for()
    check_lines(page, page.page.locator(".finding .source").first)
    page.go(race.link)
    check_lines(page, page.page.locator("#slice-panel .source").first)


@pytest.mark.slow
def test_without_text_there_is_no_empty_box(opened: Opener, serve: Server, tmp_path: Path) -> None:
    recorded = record_program(tmp_path, RACE, "--stacks", "all", "--no-source")
    race = recorded.findings("race")[0]
    page = opened("/", at=serve(open_run(recorded.run)))
    page.page.locator(".finding").first.wait_for()
    assert page.page.locator(".source").count() == 0
    page.go(race.link)
    assert "program.py:6 train" in page.text("#slice-panel")
    assert page.page.locator(".source").count() == 0


@pytest.mark.slow
def test_stacks_of_a_hang_show_their_lines(opened: Opener, serve: Server, tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run", world_size=2)
    frames = [
        {"file": "/a/train.py", "line": 6, "function": "train"},
        {"file": "/a/other.py", "line": 2, "function": "f"},
    ]
    builder.rows("stack", 0, None, stack=[3], frames=[frames])
    lines = ["    for _ in range(3):", f"        weight.add_(1)  # {EVIL}", "", "end()"]
    texts = ["import torch", "def train():", *lines]
    builder.rows("source", 0, None, file=["/a/train.py"] * 6, line=list(range(3, 9)), text=texts)
    for rank, waiting in enumerate(["", "an item of a queue with a name of its own"]):
        thread = builder.thread(rank)
        builder.op(START_NS, 10, rank=rank, thread=thread)
        builder.row(
            "stall",
            rank,
            None,
            time_ns=START_NS + 10**9,
            duration_ns=10**9,
            pid=int(thread.partition("-")[0]),
            thread=thread,
            name="main",
            reason="no_progress",
            waiting=waiting,
            stack=3,
        )
    page = opened("/hang", at=serve(open_run(builder.write())))
    places = page.page.locator(".stack .source")
    assert places.count() == 1
    assert "other.py:2 f" in page.text(".stack")
    assert places.first.locator("pre span").first.get_attribute("data-line") == "3"
    heads = page.page.get_by_role("columnheader", name="last op")
    places_of_heads = [head.bounding_box() for head in heads.all()]
    assert len({box["x"] for box in places_of_heads if box}) == 1  # below each other
    assert len(places_of_heads) == 2
