"""From a finding to its place: lanes pinned, the cause drawn, on to the next finding."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanescope.webapp.runs.run import open_run
from tests.browser.conftest import Opener, Server, SharedTab
from tests.support.synthetic import START_NS, Builder

pytestmark = pytest.mark.browser

MS = 1_000_000


def straggling(folder: Path) -> Builder:
    """Three ranks, twelve steps of 50 ms; rank 2 comes 30 ms late to the collective of each."""
    builder = Builder(folder, world_size=3)
    for rank in range(3):
        thread = f"{1000 + rank}-0"
        for step in range(12):
            base = START_NS + step * 50 * MS
            builder.phase(base, 45 * MS, "backward", rank=rank, thread=thread, step=step)
            builder.phase(base + 45 * MS, 5 * MS, "optimizer", rank=rank, thread=thread, step=step)
            builder.op(base, 2 * MS, rank=rank, thread=thread, step=step)
            builder.row(
                "collective",
                rank,
                thread,
                start_ns=base + (35 if rank == 2 else 5) * MS,
                duration_ns=MS,
                complete_ns=base + 40 * MS,
                name="all_reduce",
                group="0",
                group_size=3,
                sequence=step,
                step=step,
                asynchronous=True,
            )
    return builder


def test_a_finding_shows_its_lanes_and_its_cause(
    opened: Opener, serve: Server, tmp_path: Path
) -> None:
    page = opened("/overview", at=serve(open_run(straggling(tmp_path / "run").write())))
    ways = page.page.locator(".finding .ways a")
    assert ways.all_inner_texts() == ["Show on the timeline", "Collectives"]
    ways.first.click()
    page.page.wait_for_url("**/timeline?*finding=*")
    strip = page.page.locator(".tl-finding")
    strip.wait_for()
    page.idle()
    assert "1 of " in strip.inner_text()
    assert "ank 2 keeps the other ranks waiting" in strip.inner_text()
    state = page.state
    (mark,) = state["marks"]
    assert "rank 2 is 30.0 ms late" in mark["words"]
    assert mark["t1"] - mark["t0"] == 30 * MS
    low, high = page.window
    assert low <= mark["t0"] < mark["t1"] <= high
    pinned = page.query.partition("pin=")[2].partition("&")[0].split(".")
    assert str(mark["lane"]) in pinned
    assert len(pinned) == 4  # the collectives of three ranks, and the late thread
    page.page.get_by_role("button", name="Close").click()
    page.idle()
    assert strip.is_hidden()
    assert "pin=" not in page.query
    assert "finding=" not in page.query


@pytest.mark.slow
def test_the_strip_leads_from_finding_to_finding(
    opened: Opener, serve: Server, tmp_path: Path
) -> None:
    builder = straggling(tmp_path / "run")
    helper = builder.thread(0, ordinal=1)  # in backward together with the main thread
    for step in range(12):
        builder.phase(START_NS + step * 50 * MS, 20 * MS, "backward", thread=helper, step=step)
    page = opened("/timeline?finding=0", at=serve(open_run(builder.write())))
    strip = page.page.locator(".tl-finding")
    strip.wait_for()
    page.idle()
    first = strip.inner_text()
    page.page.get_by_role("button", name="Next finding").click()
    page.idle()
    second = strip.inner_text()
    assert second != first
    page.page.get_by_role("button", name="Previous finding").click()
    page.idle()
    assert strip.inner_text() == first
    page.visit("/timeline?finding=999")
    page.idle()
    assert strip.is_hidden()


@pytest.mark.slow
def test_a_length_narrows_the_search_and_a_step_is_found(tab: SharedTab) -> None:
    page = tab()
    page.press("/")
    page.page.keyboard.type("aten:: > 100 us")
    page.idle()
    page.page.keyboard.press("Enter")
    page.idle()
    chosen = page.state["selection"]
    assert chosen["end"] - chosen["start"] >= 100_000
    total = page.state["hits"]["total"]
    page.press("Escape", "Escape")
    page.press("/")
    page.page.keyboard.type("aten::")
    page.idle()
    assert page.state["hits"]["total"] > total > 0
    page.press("Escape", "Escape", "/")
    page.page.keyboard.type("step 3")
    page.page.keyboard.press("Enter")
    page.idle()
    (bounds,) = [(low, high) for step, low, high in page.state["stepBounds"] if step == 3]
    assert (page.state["range"]["t0"], page.state["range"]["t1"]) == bounds
    assert page.state["labels"]  # none fade, as with a name
