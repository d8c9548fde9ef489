"""The report in words and pictures: what it shows is there, and names in it are only text."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from lanescope.webapp.analysis.checks import Report
from lanescope.webapp.analysis.findings import AnalysisResult, Finding
from lanescope.webapp.cli import main
from lanescope.webapp.exporters.pictures import (
    LABELS,
    MAX_LANES,
    PLOT,
    lanes_picture,
    lines_picture,
)
from lanescope.webapp.exporters.report import (
    MAX_PICTURES,
    escaped_markdown,
    pictures_of,
    report_markdown,
)
from lanescope.webapp.runs.run import Run, open_run
from lanescope.webapp.timeline.lanes import COUNTER
from lanescope.webapp.timeline.timeline import Timeline
from tests.support.synthetic import START_NS, Builder, write_run

SVG = "{http://www.w3.org/2000/svg}"
EVIL = "<script>alert(1)</script>\x00&\"'"


def drawn(picture: str) -> ElementTree.Element:
    assert "<script" not in picture
    assert "http" not in picture.replace("http://www.w3.org/2000/svg", "")
    return ElementTree.fromstring(picture)


def texts(picture: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in picture.iter(f"{SVG}text")]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """10 us: a long op, a hundred short ones that cover half of their time, one of an evil name."""
    builder = Builder(tmp_path_factory.mktemp("small") / "run")
    builder.thread(name=EVIL)
    builder.op(START_NS, 2_000, EVIL)
    for k in range(100):
        builder.op(START_NS + 5_000 + 2 * k, 1, "aten::add")
    builder.op(START_NS + 9_999, 1, "end")
    return open_run(builder.write())


def test_slices_are_where_they_were(small: Run) -> None:
    timeline = Timeline.open(small)
    lanes = timeline.index.lanes
    picture = drawn(lanes_picture(timeline, (0, 10_000), lanes, instant_ns=5_000))
    wide = [r for r in picture.iter(f"{SVG}rect") if r.get("class") != "ground"]
    assert [(float(r.get("x", 0)), float(r.get("width", 0))) for r in wide] == [
        (LABELS, pytest.approx(PLOT / 5, abs=0.5))
    ]
    short = [p for p in picture.iter(f"{SVG}path") if " o" in str(p.get("class"))]
    half = [p.get("d", "") for p in short if str(p.get("class")).endswith(("o2", "o3"))]
    begins = [float(x) for d in half for x in re.findall(r"M([\d.]+) ", d)]
    assert begins
    assert min(begins) >= LABELS + int(PLOT / 2)
    assert max(begins) <= LABELS + PLOT * 0.52
    (instant,) = (p for p in picture.iter(f"{SVG}path") if p.get("class") == "instant")
    assert instant.get("d", "").startswith(f"M{LABELS + PLOT / 2:g} ")
    assert any(text.startswith("<script>") and "\x00" not in text for text in texts(picture))
    closer = drawn(lanes_picture(timeline, (5_000, 5_010), lanes))
    assert "from 5.00 us" in texts(closer)
    assert sum(r.get("class") != "ground" for r in closer.iter(f"{SVG}rect")) == 5
    nothing = drawn(lanes_picture(timeline, (3_000, 4_000), lanes))
    assert "nothing was recorded here" in texts(nothing)


def test_lines_leave_out_what_has_no_logarithm() -> None:
    nan, inf = float("nan"), float("inf")
    picture = drawn(lines_picture(EVIL, {EVIL: ([0, 1, 2, 3, 4], [1.0, 10.0, nan, inf, 0.0])}))
    lines = [p for p in picture.iter(f"{SVG}path") if p.get("class") == "line c0"]
    assert re.findall("[ML]", lines[0].get("d", "")) == ["M", "L"]
    assert sum(p.get("class") == "instant" for p in picture.iter(f"{SVG}path")) == 2
    drawn(lines_picture("nothing", {"x": ([], [])}))
    drawn(lines_picture("one", {"x": ([7], [1e300])}))


def test_a_report_shows_the_run_and_its_worst_findings(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run", ranks=2, threads=16, steps=2, ops=8))
    found = [
        Finding("deadlock", "error", EVIL, rank=1, time_ns=k, link=f"/timeline?t={k}-{k + 500}")
        for k in range(MAX_PICTURES + 3)
    ]
    found.append(Finding("nan", "info", "without a place"))
    found.insert(0, Finding("deadlock", "error", "an empty window", link="/timeline?t=5-5&at=x@"))
    report = Report(str(run.path), {}, (), (AnalysisResult("Why?", tuple(found)),))
    pictures = pictures_of(run, report)
    assert sorted(pictures) == sorted(
        ["run.svg", "gradient-norm.svg", *(f"finding-{k + 2}.svg" for k in range(MAX_PICTURES))]
    )
    whole = texts(drawn(pictures["run.svg"]))
    assert {"rank 0", "rank 1"} <= set(whole)  # both, though one alone has more lanes than fit
    slices = [lane for lane in Timeline.open(run).index.lanes if lane.kind != COUNTER]
    assert f"and {len(slices) - MAX_LANES} more lanes" in whole
    assert "rank 0" not in texts(drawn(pictures["finding-3.svg"]))
    text = report_markdown(run, report, pictures, "a b(")
    shown = re.findall(r"^!\[[^]]*\]\(([^)\s]*)\)$", text, re.MULTILINE)
    assert {unquote(place) for place in shown} == {f"a b(/{name}" for name in pictures}
    assert escaped_markdown(EVIL) in text
    assert "![" not in report_markdown(run, report)


def test_pictures_are_beside_the_report(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", ranks=1, threads=2, steps=2, ops=8)
    target = tmp_path / "my report.md"
    command = ["export", str(run), "--to", "markdown", "-o", str(target)]
    for _ in range(2):  # a second time over the first
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 0, result.output
        (folder,) = (path for path in tmp_path.iterdir() if path.is_dir() and path != run)
        names = {unquote(n) for n in re.findall(r"\]\((\S+\.svg)\)", target.read_text())}
        assert names == {f"my report-pictures/{path.name}" for path in folder.iterdir()}
        assert len(names) >= 2
    folder.rename(tmp_path / "elsewhere")
    folder.write_text("a file in its place")
    refused = CliRunner().invoke(main, command)
    assert refused.exit_code == 2
    assert "cannot be written" in refused.stderr
