"""Times that cannot be are said of a run, and harm nothing that is computed of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanescope.webapp.analysis.checks import check
from lanescope.webapp.runs.run import Run, open_run
from lanescope.webapp.timeline.timeline import Timeline
from tests.support.synthetic import START_NS, Builder
from tests.support.trace_files import imported, slice_, write_trace

FAR = 2**63


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Ops of two threads; of the first one three have times that cannot be."""
    builder = Builder(tmp_path / "run")
    for thread in ("1000-0", "1000-1"):
        builder.phase(START_NS, 1_000, thread=thread)
        builder.op(START_NS + 10, 100, thread=thread)
    builder.op(-FAR, 5)
    builder.op(FAR - 1, 5)
    builder.op(START_NS + 300, -7)
    builder.op(START_NS + 400, 5, "after")
    return open_run(builder.write())


def test_they_are_counted_in_a_sentence(run: Run) -> None:
    (said,) = run.warnings
    assert said.startswith("rank 0: 3 rows of op have impossible times (more than 416 days ")


def test_their_rows_stay_and_are_put_where_nothing_overflows(run: Run) -> None:
    assert run.duration_ns == 1_000
    rows = run.events("op", thread="1000-0").to_pylist()
    assert [(row["start_ns"], row["duration_ns"]) for row in rows] == [
        (0, 5),
        (0, 5),
        (10, 100),
        (300, 0),
        (400, 5),
    ]
    assert len(rows) + 1 == run.counts["op"]
    part = run.events("op", thread="1000-0", window=(0, 5)).to_pylist()
    assert [row["start_ns"] for row in part] == [0, 0]
    timeline = Timeline.open(run)
    assert timeline.tile(12, 0, list(range(len(timeline.index.lanes))))
    report = check(run)
    assert not report.faults
    assert report.metrics["thread_overlap_rate"] == 1.0


@pytest.mark.parametrize("instant_us", [0, 2**60 // 1000, -(10**14)])
def test_an_imported_event_far_from_all_others(tmp_path: Path, instant_us: int) -> None:
    usual = 1_700_000_000_000_000
    events = [slice_("aten::mm", usual + 10 * k, 5, cat="cpu_op") for k in range(5)]
    odd = slice_("odd", instant_us, 5, cat="cpu_op")
    run = imported(tmp_path / "run", write_trace(tmp_path / "trace.json", [odd, *events]))
    assert run.duration_ns == 45_000
    assert [row["start_ns"] for row in run.events("op").to_pylist()][-4:] == [
        10_000,
        20_000,
        30_000,
        40_000,
    ]
    assert "rank 0: 1 row of op has impossible times" in run.warnings[-1]


@pytest.mark.parametrize("length_us", [-7, 2**60 // 1000, 9223372036854775807])
def test_imported_lengths_that_cannot_be(tmp_path: Path, length_us: int) -> None:
    events = [slice_("aten::mm", 5, 5, cat="cpu_op"), slice_("x", 7, length_us, cat="cpu_op")]
    run = imported(tmp_path / "run", write_trace(tmp_path / "trace.json", events))
    assert run.events("op")["name"].to_pylist() == ["aten::mm"]
    assert any("could not be imported: 1 (no time)" in warning for warning in run.warnings)


def test_a_thread_that_ends_at_no_instant_ends_with_its_events(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    builder.thread(start_ns=-FAR, end_ns=FAR - 1)
    builder.op(START_NS + 10, 100)
    run = open_run(builder.write())
    assert [(one.start_ns, one.end_ns) for one in run.threads] == [(0, 100)]
    assert run.warnings == ()
