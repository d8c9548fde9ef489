"""The pages around the timeline."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lanescope.webapp.analysis.checks import Report
from lanescope.webapp.plugins.gradients.layer_map import layer_map
from lanescope.webapp.runs.run import Run, open_run
from lanescope.webapp.ui.context import Context
from tests.browser.conftest import Opener, Pages, Server, SharedTab
from tests.support.page import LanePage
from tests.support.synthetic import Builder, write_wide_run

pytestmark = pytest.mark.browser

MS = 1_000_000


@pytest.fixture(scope="module")
def compared(pages: Pages, run: Run, other: Run) -> Iterator[str]:
    with pages.served(run, other) as address:
        yield address


def click_point(page: LanePage, chart: str) -> None:
    """A click exactly on the first point that the chart draws."""
    x, y = page.page.evaluate(
        """id => { const drawn = document.querySelector(`#${id} .js-plotly-plot`);
        drawn.scrollIntoView({ block: "center" });
        const { x, y } = drawn.getBoundingClientRect();
        const { _size: size, xaxis, yaxis } = drawn._fullLayout;
        const [trace] = drawn._fullData;
        const first = trace.y.findIndex(Number.isFinite);
        return [x + size.l + xaxis.d2p(trace.x[first]), y + size.t + yaxis.d2p(trace.y[first])];
        }""",
        chart,
    )
    page.page.mouse.move(x, y)  # Plotly clicks on what it found under the pointer
    page.page.mouse.click(x, y)


def click_rate(page: LanePage) -> None:
    """A click on the first pair of the Overlap page's matrix that leads anywhere."""
    page.chart("overlap-matrix").locator(".heatmaplayer .hm").first.wait_for()
    x, y = page.page.evaluate(
        """() => { const drawn = document.querySelector("#overlap-matrix .js-plotly-plot");
        drawn.scrollIntoView({ block: "center" });
        const box = drawn.getBoundingClientRect();
        const { _size: size, xaxis, yaxis } = drawn._fullLayout;
        const [{ customdata: to }] = drawn._fullData;
        const row = to.findIndex((cells) => cells.some(Boolean));
        const column = to[row].findIndex(Boolean);
        return [box.x + size.l + xaxis.d2p(column), box.y + size.t + yaxis.d2p(row)];
        }"""
    )
    page.page.mouse.move(x, y)
    page.page.mouse.click(x, y)


def test_overview_shows_figures_time_findings_and_the_recording(tab: SharedTab, run: Run) -> None:
    page = tab("/")
    page.page.locator("#overview-steps .barlayer .trace").first.wait_for()
    text = page.text(".page")
    assert run.title in text
    cards = page.page.locator(".cards .card")
    assert cards.count() == 6
    for word in ("Step time, median", "Backward overlap", "Gradient norm"):
        assert word in text
    assert page.page.locator(".cards .spark").count() == 6
    assert "Critical path of a median step" in text
    # The threads' backward phases overlap by construction, which is said once.
    found = page.text("ol.findings")
    assert found.count("Threads run backward at the same time for") == 1
    assert page.page.locator("#overview-examined > .note.bad").count() == 0
    recording = page.page.locator("details.recording")
    assert "Recording: complete" in recording.locator("summary").inner_text()
    assert recording.locator("tr").count() == 0  # a row per rank and thread is drawn when asked for
    recording.locator("summary").click()
    page.idle()
    opened_text = recording.inner_text()
    for word in ("MainThread", "node-0", "collectives", "gradients", "No event was dropped"):
        assert word in opened_text


def test_the_first_finding_is_in_sight_on_a_low_screen(tab: SharedTab) -> None:
    page = tab("/", width=1280, height=720)
    title = page.page.locator("ol.findings li").first.bounding_box()
    assert title is not None
    assert title["y"] < 720 - 60  # where it is, and the first line of what


def test_a_step_of_the_first_page_leads_to_the_timeline(tab: SharedTab, run: Run) -> None:
    page = tab("/overview")
    bars = page.page.locator("#overview-steps .barlayer .trace").first.locator(".point path")
    bars.first.wait_for()
    bars.nth(2).click(force=True)
    page.page.wait_for_url("**/timeline?t=*")
    page.idle()
    t0, t1 = page.window
    steps = run.steps(0)
    assert t0 <= steps.start_ns[2] < steps.end_ns[2] <= t1 < steps.end_ns[5]


def test_pages_do_not_wait_for_the_report_of_the_run(
    tab: SharedTab, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, within = threading.Event(), Context.report_within

    def when_made(context: Context, seconds: float) -> Report | None:
        return within(context, seconds) if made.is_set() else None

    page = tab()
    monkeypatch.setattr(Context, "report_within", when_made)
    links = page.page.get_by_role("navigation", name="Pages")
    links.get_by_role("link", name="Gradients").click()
    page.page.locator("#gradient-table").wait_for()
    assert not page.page.locator("ol.findings").count()
    links.get_by_role("link", name="Overview").click()
    page.page.locator(".page .cards .card").first.wait_for()
    assert page.text("#overview-examined") == "Examining the run …"
    assert run.title in page.text(".page")
    assert not page.page.locator("#checks").count()
    made.set()
    page.idle()
    assert page.page.locator("#checks").count() == 1
    assert not page.page.locator("#overview-examined .loading").count()


def test_what_draws_tables_comes_with_the_first_table(tab: SharedTab) -> None:
    loaded = "performance.getEntriesByType('resource').map(({ name }) => name).join()"
    page = tab("/overview")
    page.page.reload()
    page.idle()
    assert "dash_ag_grid." not in page.page.evaluate(loaded)
    page.follow("Gradients")
    page.idle()
    assert "dash_ag_grid." in page.page.evaluate(loaded)
    assert page.page.locator("#gradient-table .ag-row").count()


def test_overview_says_what_is_missing(opened: Opener, serve: Server, tmp_path: Path) -> None:
    builder = Builder(tmp_path / "partial", world_size=3, complete=False)
    builder.process(0, coverage={"dropped: journal full": 7, "filtered": 3})
    builder.op(5_000_000_000_000, 1000)
    page = opened("/overview", at=serve(open_run(builder.write())))
    assert "Ranks 1-2 of 3 missing" in page.text("#overview-examined")
    page.page.locator("details.recording summary").click()
    page.idle()
    text = page.text("details.recording")
    assert "Recording: incomplete" in text
    assert "7 dropped" in text
    assert "not recorded" in text
    assert "dropped: journal full" in text
    assert "warning" in page.text(".header")
    page.follow("Gradients")
    assert "holds no gradient norms" in page.text(".page")
    page.follow("Threads")
    assert "No thread was ever in the backward phase" in page.text(".page")


def test_overlap_page_and_its_way_to_the_timeline(tab: SharedTab) -> None:
    page = tab("/overlap")
    text = page.text(".page")
    assert "88.9 %" in text  # 4.0 of 4.5 ms, see write_run
    assert "Thread-1" in text
    assert page.chart("overlap-chart").locator(".scatterlayer .trace").count() == 2  # ranks
    assert page.chart("windows-chart").locator(".scatterlayer .trace").count() == 4  # threads
    assert "From forward to backward" in text
    regions, rates = (
        page.page.locator(f"#overlap-{part}").bounding_box() for part in ("regions", "rates")
    )
    assert regions is not None
    assert rates is not None
    right = regions["x"] + regions["width"]
    assert right < rates["x"] < right + 60  # side by side, with nothing left empty between them
    assert regions["y"] == rates["y"]
    page.page.locator("table.plain a").first.click()
    page.idle()
    assert page.page.locator(".tl-lanes").is_visible()
    t0, t1 = page.window
    assert t1 - t0 < 20 * MS
    assert page.state["overlaps"]["shaded"] > 0
    page.follow("Threads")
    click_rate(page)
    page.page.wait_for_url("**/timeline?t=*")
    page.idle()
    assert page.window[1] - page.window[0] < 20 * MS
    assert page.state["overlaps"]["shaded"] > 0
    for chart in ("overlap-chart", "windows-chart"):
        page.follow("Threads")
        page.chart(chart).locator(".scatterlayer .trace").first.wait_for()
        click_point(page, chart)
        page.page.wait_for_url("**/timeline?t=*")
        page.idle()
        assert page.page.locator(".tl-lanes").is_visible()
        t0, t1 = page.window
        assert t1 - t0 < MS


@pytest.mark.slow
def test_checks_are_folded_by_area(opened: Opener) -> None:
    page = opened("/checks")  # the address of an earlier version
    assert page.page.url.endswith("/overview")
    areas = page.page.locator("details.area")
    areas.first.wait_for()
    threads, repeats = (
        areas.filter(has=page.page.locator("summary", has_text=re.compile(f"^{area}")))
        for area in ("Threads", "Repeatability")
    )
    assert "1 error" in threads.locator("summary").inner_text()
    threads.locator("summary").click()
    rows = threads.locator("tbody tr").all_inner_texts()
    (overlap,) = [row for row in rows if "in backward at the same time" in row]
    assert "below 5 %" in overlap
    assert "over the limit" in overlap
    passed = threads.get_by_text("Passed:").locator("+ ul li").all_inner_texts()
    assert "Deadlocks between threads" in passed
    assert not any("Deadlocks between threads" in row for row in rows)
    assert "passed" not in repeats.locator("summary").inner_text()  # nothing was checked
    threads.get_by_role("link").first.click()
    page.idle()
    assert "Pairs of threads" in page.text(".page")


@pytest.mark.slow
def test_a_chart_as_svg_and_with_shift_as_png(tab: SharedTab, tmp_path: Path) -> None:
    page = tab("/overview")
    page.page.locator("#overview-steps .barlayer .trace").first.wait_for()
    button = page.page.locator('#overview-steps .modebar-btn[data-title*="SVG"]')
    begins = {}
    for held in ([], ["Shift"]):
        with page.page.expect_download() as download:
            button.click(modifiers=held)
        file = tmp_path / download.value.suggested_filename
        download.value.save_as(file)
        begins[file.name] = file.read_bytes()[:4]
    assert begins == {
        "lanescope-overview-steps.svg": b"<svg",
        "lanescope-overview-steps.png": b"\x89PNG",
    }
    page.idle()


def test_gradients_page_and_its_way_to_the_timeline(tab: SharedTab, run: Run) -> None:
    page = tab("/gradients")
    assert page.chart("gradient-chart").locator(".scatterlayer .trace").count() == 1
    page.page.get_by_text("All ranks have the same norms: one line is drawn for all.").wait_for()
    assert "gradient norm" in page.text("#gradient-chart")
    ticks = page.page.locator("#gradient-chart .xtick text").all_text_contents()
    assert ticks == [str(step) for step in range(len(ticks))]
    assert len(ticks) == 8
    # The app's own icons are boxes of one colour with a mask; a chart's buttons are drawings.
    drawn = "getComputedStyle(document.querySelector('.modebar-btn svg')).backgroundColor"
    assert page.page.evaluate(drawn) == "rgba(0, 0, 0, 0)"
    # A click into the heat map chooses a layer; its backward is a link away.
    heat = page.chart("layer-heat").locator(".nsewdrag").first
    heat.scroll_into_view_if_needed()
    box = heat.bounding_box()
    assert box is not None
    assert page.text("#layer-note").startswith("Click a cell")
    page.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] * 0.9)
    page.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] * 0.9)
    last = layer_map(run, 0, "gradient").index[-1]
    page.page.locator("#layer-note", has_text=f"{last} at step").wait_for()
    page.idle()
    assert page.chart("layer-curves").locator(".scatterlayer .trace").count() == 2
    assert page.chart("depth-chart").locator(".scatterlayer .trace").count() == 6
    page.page.locator("#gradient-of").click()
    page.page.get_by_role("option", name="per parameter").click()
    page.idle()
    page.page.locator("#gradient-chart .scatterlayer .trace").nth(3).wait_for()
    assert "head.weight" in page.text("#gradient-chart")
    page.page.locator("#gradient-chart .points path").nth(3).click(force=True)
    page.page.wait_for_url("**/timeline?t=*")
    page.idle()
    steps = run.steps(0)
    t0, t1 = page.window
    assert any(
        t0 <= start and end <= t1 for start, end in zip(steps.start_ns, steps.end_ns, strict=True)
    )
    assert t1 - t0 < 23 * MS


@pytest.mark.slow
def test_ten_thousand_parameters(opened: Opener, serve: Server, tmp_path: Path) -> None:
    wide = open_run(write_wide_run(tmp_path / "run", steps=3, ranks=1))
    page = opened("/gradients", at=serve(wide))
    answers: list[int] = []
    page.page.on("response", lambda one: answers.append(one.request.sizes()["responseBodySize"]))
    elements = "document.querySelectorAll('*').length"
    assert page.page.evaluate(elements) <= 3000
    page.page.locator("#layer-depth").click()
    page.page.get_by_role("option", name="every layer").click()
    page.chart("depth-chart").get_by_text("in blocks").first.wait_for()
    page.idle()
    assert page.page.evaluate(elements) <= 3000
    page.page.locator("#parameter-find").fill("no optimizer")
    page.page.locator("#gradient-table").get_by_text("head.attn.q.weight").wait_for()
    page.idle()
    assert sum(answers) < 300_000


def test_diff_without_a_baseline_says_how(tab: SharedTab) -> None:
    page = tab("/diff")
    assert "no baseline" in page.text(".page")
    assert "--baseline" in page.text(".page")


def test_diff_with_a_baseline(opened: Opener, compared: str, other: Run) -> None:
    page = opened("/diff", at=compared)
    text = page.text(".page")
    assert "Diverged" in text
    assert "First difference" in text
    assert "step 0, rank 0, embed.weight" in text
    assert f"/{Path(other.title).name}" in page.text(".header")
    assert "All ops ran equally often" in text
    assert page.chart("diff-chart").locator(".scatterlayer .trace").count() == 2


@pytest.mark.slow
def test_sql_page_asks_and_says_what_is_wrong(tab: SharedTab, run: Run) -> None:
    page = tab("/sql")
    field = page.page.locator("#sql-query")
    field.fill("SELECT rank, count(*) AS ops FROM op GROUP BY rank ORDER BY rank -- WASD?")
    page.page.locator("#sql-run").click()
    page.page.wait_for_selector("#sql-table .ag-row")
    page.idle()
    cells = page.page.locator("#sql-table .ag-cell").all_inner_texts()
    assert cells == ["0", str(run.counts["op"] // 2), "1", str(run.counts["op"] // 2)]
    assert "2 rows" in page.text("#sql-answer")
    with page.page.expect_download() as download:
        page.page.locator("#sql-answer a", has_text="CSV").click()
    assert download.value.path().read_text().splitlines()[0] == '"rank","ops"'
    field.fill("SELECT * FROM read_csv('/etc/passwd')")
    page.page.locator("#sql-run").click()
    page.page.wait_for_selector("#sql-answer .note.bad")
    assert "file system operations are disabled" in page.text("#sql-answer")
