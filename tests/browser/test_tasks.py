"""What an engineer comes for: each from the first page in at most two actions, on recorded faults.

An action is a click, or a key with the text that is typed after it and sent off with Enter. Reading
the first page takes none.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator

from lanescope.webapp.runs.run import Run, open_run
from tests.browser.conftest import Opener, Server
from tests.support.page import LanePage
from tests.support.synthetic import START_NS, Builder, write_run
from tests.test_cases import cases, forked

pytestmark = [pytest.mark.browser, pytest.mark.slow]

MS = 1_000_000
MAX_ACTIONS = 2
Prepare = Callable[..., "Task"]


class Task:
    """The first page of a run, and how often it was acted on."""

    def __init__(self, page: LanePage) -> None:
        self.page = page
        self.actions = 0
        self.read = ""

    def _act(self) -> None:
        self.actions += 1
        assert self.actions <= MAX_ACTIONS

    def click(self, place: Locator) -> None:
        self._act()
        place.first.click()
        self.page.idle()

    def press(self, key: str, text: str) -> None:
        self._act()
        self.page.press(key)
        self.page.page.keyboard.type(text)
        self.page.idle()
        self.page.press("Enter")

    def show(self) -> None:
        """From the finding that was read to its place."""
        finding = self.page.page.locator("li.finding", has_text=self.read)
        self.click(finding.get_by_role("link", name="Show on the timeline"))

    def reads(self, *words: str) -> None:
        """Whether the page in sight says all of this."""
        text = self.page.text(".stage")
        self.read = words[0]
        assert [word for word in words if word not in text] == []


@pytest.fixture
def prepare(opened: Opener, serve: Server, tmp_path: Path) -> Prepare:
    """Records a guided case, or takes a run, and opens its first page."""

    def prepared(of: str | Run) -> Task:
        base = None
        if isinstance(of, str):
            case = cases.CASES[of]
            if case.baseline is not None:
                base = forked(of, tmp_path / "baseline", case.baseline)
            of = forked(of, tmp_path / "run", case.arguments)
        page = opened("/", at=serve(of, base))
        page.page.locator(".areas, .checks").first.wait_for()
        return Task(page)

    return prepared


def test_where_time_is_lost(prepare: Prepare) -> None:
    task = prepare("straggler")
    task.reads("Rank 1 keeps the other ranks waiting", "straggler.py:20")
    task.show()
    assert task.page.state["selection"] is not None


def test_which_two_threads_run_backward_at_once(prepare: Prepare) -> None:
    task = prepare("overlap")
    task.reads("the longest overlap is of main and second trainer")
    task.show()
    assert task.page.state["overlaps"]["shaded"]


def test_why_it_hangs(prepare: Prepare) -> None:
    task = prepare("hang")
    task.reads("Only rank 0 called all_reduce #7: rank 1 ended without it", "hang.py:12")
    task.show()
    assert task.page.state["selection"]["name"] == "all_reduce"


def test_which_op_differs_first_with_both_values_and_stack(prepare: Prepare) -> None:
    task = prepare("divergence")
    task.reads("aten::native_layer_norm")
    task.click(task.page.page.get_by_role("link", name="Compare", exact=True))
    task.reads("aten::native_layer_norm", "out0 mean", " became ", "Python stack", "divergence.py:")


def test_which_layer_does_not_learn_and_since_when(prepare: Prepare) -> None:
    prepare("stops").reads("encoder.weight", "since step 10", "stops.py:")


def planted(path: Path) -> Run:
    """A run of three ranks with ten steps; one aten::mm among its operators takes 12 ms."""
    builder = Builder(path, world_size=3)
    for rank in range(3):
        for step in range(10):
            base = START_NS + step * 50 * MS
            place = {"rank": rank, "thread": f"{1000 + rank}-0", "step": step}
            builder.phase(base, 45 * MS, "forward", **place)
            builder.phase(base + 45 * MS, 5 * MS, "optimizer", **place)
            slow = (rank, step) == (1, 6)
            builder.op(base, (12 if slow else 2) * MS, name="aten::mm", **place)
    return open_run(builder.write())


def test_all_mm_over_10_ms(prepare: Prepare, tmp_path: Path) -> None:
    task = prepare(planted(tmp_path / "planted"))
    task.press("/", "aten::mm > 10ms")
    state = task.page.state
    assert state["selection"]["name"] == "aten::mm"
    assert state["selection"]["end"] - state["selection"]["start"] == 12 * MS
    assert (state["hits"]["position"], state["hits"]["total"]) == (1, 1)


def test_step_7_of_rank_2_shared_by_address(
    prepare: Prepare, opened: Opener, tmp_path: Path
) -> None:
    task = prepare(planted(tmp_path / "planted"))
    task.press("/", "step 7")
    page = task.page
    low, high = page.window
    assert low <= 350 * MS
    assert high >= 400 * MS
    path = page.page.url[len(page.address) :]
    origin = f"{page.address}#{page.run}"
    other = opened(path, at=origin)
    assert other.window == pytest.approx(page.window, abs=1)
    assert other.state["range"] == page.state["range"]
    assert any(lane["rank"] == 2 and lane["visible"] for lane in other.state["lanes"])


def test_a_note_is_packed_and_reopened(
    prepare: Prepare, opened: Opener, serve: Server, tmp_path: Path
) -> None:
    path = write_run(tmp_path / "own", ranks=1, threads=1, steps=3, ops=20, step_ns=10 * MS)
    task = prepare(open_run(path))
    task.click(task.page.page.get_by_role("link", name="Timeline", exact=True))
    task.press("b", "here it is slow")
    subprocess.run(["lanescope", "pack", path, "-o", tmp_path / "own.zip"], check=True)
    again = opened("/timeline", at=serve(open_run(tmp_path / "own.zip")))
    again.page.get_by_role("tab", name="Notes").click()
    assert "here it is slow" in again.text("#notes-panel")


def test_a_figure_is_downloaded(prepare: Prepare, tmp_path: Path) -> None:
    task = prepare(planted(tmp_path / "planted"))
    button = task.page.page.locator(".modebar-btn[data-title*='Download']").first
    assert button.is_visible()
    with task.page.page.expect_download() as download:
        task.click(button)
    assert download.value.suggested_filename == "lanescope-overview-steps.svg"


def test_with_the_keyboard_only(prepare: Prepare, tmp_path: Path) -> None:
    task = prepare(planted(tmp_path / "planted"))
    task.press("Control+k", "gradients pages")
    task.page.page.wait_for_url("**/gradients")
    task.press("/", "step 7")
    assert task.page.state["range"] is not None
