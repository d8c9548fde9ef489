"""The page of a run of many ranks: hosts first, lanes of the ranks that are opened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Response

from benchmarks.generate_job import generate_job
from benchmarks.job_plan import Faults
from lanescope.webapp.analysis import plugin as plugins
from lanescope.webapp.runs.run import open_run
from lanescope.webapp.timeline import lane_pages
from lanescope.webapp.ui import grids
from tests.browser.conftest import Opener, Pages, Server
from tests.support.page import LanePage
from tests.support.synthetic import write_run

MOST_ELEMENTS = 3_000
MOST_BYTES = 10_000
"""Of the times of two groups with two steps, with room for headers."""

SLOW = 10
SLOWER = f"slow: rank {SLOW} in 2 of 2 steps"


@pytest.fixture(scope="module")
def two_hosts(pages: Pages, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a run of 16 ranks on two hosts, rank 10 slower than the others."""
    path = tmp_path_factory.mktemp("runs") / "job"
    generate_job(path, 16, threads=2, steps=2, faults=Faults(straggler=SLOW), processes=1)
    with pages.served(open_run(path)) as address:
        yield address


@pytest.fixture
def page(opened: Opener, two_hosts: str, monkeypatch: pytest.MonkeyPatch) -> LanePage:
    """Its timeline, as if the ranks were too many to list at once."""
    monkeypatch.setattr(lane_pages, "LISTED", 20)
    return opened(at=two_hosts, height=600)  # no host fits open


def elements(page: LanePage) -> int:
    found: int = page.page.evaluate("document.querySelectorAll('*').length")
    return found


@pytest.mark.slow
def test_hosts_come_first_and_ranks_bring_their_lanes_also_for_a_slice(page: LanePage) -> None:
    names = page.page.locator(".tl-group:not(.process)").all_inner_texts()
    assert names[0].split("\n")[0].startswith("gpu-000 · ranks 0-7")
    assert page.state["layout"]["groups"] == 2 + 16
    assert elements(page) < MOST_ELEMENTS
    asked: list[str] = []
    page.page.on("request", lambda request: asked.append(request.url))
    page.page.click(".tl-group:not(.process) >> nth=0")
    page.idle()
    assert {lane["rank"] for lane in page.state["lanes"]} <= {0}
    page.page.click(".tl-group.process >> nth=0")
    page.idle()
    assert [url.partition("?")[2] for url in asked if "/api/lanes/" in url] == ["ranks=0"]
    lanes = [lane for lane in page.state["lanes"] if lane["rank"] == 0]
    assert [lane["label"] for lane in lanes][:2] == ["MainThread", "loader-1"]
    assert any(lane["kind"] == "collectives" for lane in lanes)
    assert elements(page) < MOST_ELEMENTS

    # A slice of a lane that was not listed is shown.
    lane = next(
        lane for lane in page.page.evaluate(_LANES_OF_12) if lane[3] == "thread" and lane[4] != 0
    )
    page.visit(f"/timeline?sel={lane[0]}.1.0")
    page.idle()
    assert page.state["selection"]["lane"] == lane[0]
    assert "rank 12 · loader-1" in page.text("#slice-panel")


def times_of(page: LanePage, host: int) -> tuple[float, float]:
    """A point of the lane of a host's times, in its first step."""
    box = page.page.locator(".tl-group.summed").nth(host).bounding_box()
    lanes = page.page.locator(".tl-lanes").bounding_box()
    assert box is not None
    assert lanes is not None
    return lanes["width"] / 8, box["y"] - lanes["y"] + box["height"] / 2


@pytest.mark.slow
def test_a_group_shows_the_times_of_its_ranks_and_names_the_slow_one(page: LanePage) -> None:
    said = page.page.locator(".tl-group .times").all_inner_texts()
    assert said == ["no slow rank", SLOWER]
    assert "Time of a step in which a rank does not wait for others" in page.text(".tl-legend")
    page.hover(*times_of(page, 1))
    title, spread, longest, slow = page.text(".tl-tip").splitlines()
    assert title == "gpu-001 · ranks 8-15 · step 0"
    assert " ms, median " in spread
    assert longest.startswith(f"longest: rank {SLOW} · all ranks: median ")
    assert slow.startswith(f"slow: rank {SLOW}, ")
    assert slow.endswith(" %)")

    group = page.page.locator(".tl-group.summed").nth(1)
    for opened in ("true", "false"):
        page.click(*times_of(page, 1))
        assert group.get_attribute("aria-expanded") == opened


@pytest.mark.slow
def test_slow_ranks_stand_out_in_both_themes(page: LanePage) -> None:
    for _ in range(2):
        bad = page.token("bad")
        columns = []
        for host in range(2):
            x, y = times_of(page, host)
            columns.append([page.pixel(x, y + dy) for dy in range(-20, 20)])
        assert [bad in pixels for pixels in columns] == [False, True]
        page.press("t")
        page.idle()


@pytest.mark.slow
def test_the_slowest_rank_is_one_key_away_and_groups_open_by_keyboard(page: LanePage) -> None:
    assert page.text(".tl-slowest") == SLOWER
    page.press("j")
    page.idle()
    shown = {lane["rank"] for lane in page.state["lanes"] if lane["visible"]}
    assert SLOW in shown
    page.page.locator(".tl-group.summed").nth(0).press("Enter")
    page.idle()
    assert page.page.locator(".tl-group.summed").nth(0).get_attribute("aria-expanded") == "true"


_FROM_TOP = """() => [...document.querySelectorAll(".tl-group:not(.process)")]
    .map(one => [one.getBoundingClientRect().top, /(rank|gpu-)\\s?\\d+/.exec(one.innerText)[0]])
    .sort(([one], [other]) => one - other).map(([, name]) => name)"""


@pytest.mark.slow
def test_groups_with_slow_ranks_come_first_by_key_and_by_button(page: LanePage) -> None:
    for by_key in (True, False):
        assert page.page.evaluate(_FROM_TOP) == ["gpu-000", "gpu-001"]
        if by_key:
            page.press("Shift+J")
        else:
            page.page.click("text=slow groups first")
            page.idle()
        assert page.page.evaluate(_FROM_TOP) == ["gpu-001", "gpu-000"]
        page.go("/timeline")


@pytest.mark.slow
def test_slow_ranks_come_first_where_no_groups_of_ranks_are_shown(
    opened: Opener, two_hosts: str
) -> None:
    page = opened(at=two_hosts, height=600)
    page.press("j")
    assert page.text(".tl-toast") == SLOWER
    page.press("Shift+J")
    assert page.page.evaluate(_FROM_TOP)[0] == f"rank {SLOW}"


@pytest.mark.slow
def test_times_of_all_groups_in_sight_come_in_one_small_answer(page: LanePage) -> None:
    answers: list[int] = []

    def note(response: Response) -> None:
        if "/api/group_times/" in response.url:
            answers.append(len(response.body()))

    page.page.on("response", note)
    page.page.select_option(".tl-group-by", "pipeline")
    page.idle()
    page.wheel(400, 100, -400, "Control")  # a shorter window whose steps are known
    page.idle()
    assert len(answers) == 1
    assert answers[0] < MOST_BYTES


@pytest.mark.slow
def test_no_page_holds_more_elements_than_a_browser_draws_at_once(
    opened: Opener, serve: Server, tmp_path: Path
) -> None:
    run = open_run(write_run(tmp_path / "run", ranks=64, steps=4, ops=10))
    page = opened("/sql", at=serve(run))
    listed = [one for one in plugins.pages() if not one.shown or plugins.load(one.shown)(run)]
    # The timeline comes last: once shown it stays in the document, hidden.
    for one in sorted(listed, key=lambda one: one.name == "timeline"):
        page.visit(one.path)
        page.draw_charts()
        for fold in page.page.locator("details.recording summary").all():
            fold.click()
            page.idle()
        assert elements(page) <= MOST_ELEMENTS, one.name


@pytest.mark.slow
def test_a_comparison_holds_no_more(opened: Opener, serve: Server, tmp_path: Path) -> None:
    run, baseline = (
        open_run(write_run(tmp_path / str(scale), ranks=4, steps=90, gradient_scale=scale))
        for scale in (1.0, 1.5)
    )
    page = opened("/sql", at=serve(run, baseline))
    for path in ("/compare", "/time", "/gradients"):
        page.visit(path)
        page.draw_charts()
        assert elements(page) <= MOST_ELEMENTS, path


def longest_of(page: LanePage) -> list[float]:
    """The longest windows of the rows in sight, from the top."""
    rows = page.page.locator("#windows-table .ag-row:has([col-id=longest]:not(:empty))")
    rows.first.wait_for()
    found = rows.evaluate_all(
        "rows => rows.map(row => [+row.getAttribute('row-index'), "
        "parseFloat(row.querySelector('[col-id=longest]').textContent)])"
    )
    return [value for _, value in sorted(found)]


def test_a_long_table_asks_for_the_rows_in_sight(
    opened: Opener, two_hosts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grids, "PAGED_ROWS", 20)
    page = opened("/threads", at=two_hosts)
    page.page.locator("#windows-table").scroll_into_view_if_needed()
    assert len(longest_of(page)) > 3
    page.page.click("#windows-table .ag-header-cell[col-id=longest]")
    page.idle()
    shown = longest_of(page)
    assert shown == sorted(shown, reverse=True)
    assert shown[0] > shown[-1]
    page.page.locator("#windows-table .ag-row").first.click()
    page.idle()
    assert page.window[1] - page.window[0] < page.state["viewport"]["duration"]


_LANES_OF_12 = """async () => {
  const etag = lanescope.debugState().etag;
  const page = await (await fetch(`/api/lanes/${etag}?ranks=12`)).json();
  const at = (name) => page.columns.indexOf(name);
  const [id, key, rank, kind] = ["id", "key", "rank", "kind"].map(at);
  return page.rows.map((row, i) => [row[id], row[key], row[rank], row[kind], i]);
}"""


@pytest.mark.slow
def test_ranks_are_grouped_by_parallel_dimension(page: LanePage) -> None:
    choices = page.page.locator(".tl-group-by option").all_inner_texts()
    assert choices == [
        "by host",
        "by data-parallel rank",
        "by tensor-parallel rank",
        "by pipeline stage",
        "by expert-parallel rank",
    ]
    page.page.select_option(".tl-group-by", "pipeline")
    page.idle()
    names = page.page.locator(".tl-group:not(.process)").all_inner_texts()
    assert names[0].split("\n")[0].startswith("pipeline stage 0 · ranks 0-")
    page.visit("/timeline?by=tensor")
    page.idle()
    assert page.page.input_value(".tl-group-by") == "tensor"
    names = page.page.locator(".tl-group:not(.process)").all_inner_texts()
    assert names[0].split("\n")[0].startswith("tensor-parallel rank 0")
    assert page.state["layout"]["groups"] == 2 + 16
