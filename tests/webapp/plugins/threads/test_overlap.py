"""Overlap on hand-made phases whose answer can be worked out on paper."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanescope.webapp.analysis.check_limits import Allowed, Settings
from lanescope.webapp.analysis.checks import check
from lanescope.webapp.analysis.findings import AnalysisResult, NotApplicable, acknowledged
from lanescope.webapp.plugins.threads.headlines import backward_overlap
from lanescope.webapp.plugins.threads.overlap import (
    Region,
    overlap,
    overlap_over_time,
    overlap_rate,
    overlap_regions,
    phase_lanes,
    take_phases,
)
from lanescope.webapp.plugins.threads.overlap_findings import overlapping_backwards
from lanescope.webapp.runs.run import Run, RunError, open_run
from lanescope.webapp.timeline.timeline import Timeline
from lanescope.webapp.ui import matrices
from lanescope.webapp.ui.context import Context
from lanescope.webapp.ui.finding_places import address_of
from tests.support.recording import record_program
from tests.support.synthetic import START_NS, Builder, write_run

T = START_NS


def run_of(path: Path, *backward: tuple[int, str, int, int | None], **more: int) -> Run:
    """A run of backward phases (rank, thread, start, duration)."""
    builder = Builder(path, world_size=1 + max(rank for rank, *_ in backward))
    for rank, thread, start, duration in backward:
        builder.phase(T + start, duration, rank=rank, thread=thread)
    for thread, end in more.items():
        builder.op(T + end - 1, 1, thread=thread.replace("t", "1000-"))
    return open_run(builder.write())


def test_rate_of_a_pair(tmp_path: Path) -> None:
    # A: [0, 100) and [200, 300); B: [50, 120) and [290, 300). A & B: 50 + 10 of |B| = 80.
    run = run_of(
        tmp_path,
        (0, "1000-0", 0, 100),
        (0, "1000-0", 200, 100),
        (0, "1000-1", 50, 70),
        (0, "1000-1", 290, 10),
    )
    (row,) = overlap(run).to_dict("records")
    assert row == {
        "rank": 0,
        "a": "1000-0",
        "b": "1000-1",
        "name_a": "MainThread",
        "name_b": "Thread-1",
        "a_ns": 200,
        "b_ns": 80,
        "overlap_ns": 60,
        "rate": 0.75,
    }
    # Two or more: 60. One or more: 200 + 80 - 60 = 220.
    assert overlap_rate(run) == 60 / 220
    assert overlap_regions(run) == [
        Region(0, 50, 100, ("1000-0", "1000-1")),
        Region(0, 290, 300, ("1000-0", "1000-1")),
    ]


def test_more_than_the_limit_is_reported_with_its_longest_place(tmp_path: Path) -> None:
    # Of [0, 100) and [200, 300) on rank 1, both threads have [60, 70) and [200, 230).
    far = run_of(
        tmp_path / "far",
        (0, "1000-0", 0, 200),
        (1, "1001-0", 0, 100),
        (1, "1001-0", 200, 100),
        (1, "1001-1", 60, 10),
        (1, "1001-1", 200, 30),
    )
    (answer,) = overlapping_backwards(far)
    assert (answer.kind, answer.severity, answer.rank, answer.ranks) == (
        "overlap",
        "error",
        1,
        (1,),
    )
    assert (answer.thread, answer.time_ns, answer.where) == ("1001-0", 200, None)
    assert answer.title == (
        "Threads run backward at the same time for 10 % of the time in backward, on rank 1; "
        "the longest overlap is of MainThread and Thread-1, 30 ns. Let one backward end before the "
        "next begins if the threads share parameters."
    )
    assert answer.link == "/timeline?t=150-280&overlaps=1"
    assert answer.evidence["pairs"] == [
        {"rank": 1, "a": "1001-0", "b": "1001-1", "rate": 1.0, "overlap_ns": 40}
    ]
    assert answer.evidence["threads"] == ["1001-0", "1001-1"]
    for limit, kept in ((0.05, (answer,)), (0.5, ())):
        settings = Settings({"thread_overlap_rate": limit})
        assert acknowledged(AnalysisResult("?", (answer,)), settings).findings == kept
    report = check(far)
    assert [one.passed for one in report.checks] == [False]
    assert (report.errors, report.unexplained) == (1, ())  # of one thing, once
    meant = check(far, settings=Settings(allowed=(Allowed(kind="overlap"),)))
    assert (meant.errors, meant.unexplained) == (1, meant.checks)
    headlines = (backward_overlap(far, limit) for limit in (0.05, 0.5))
    assert [(one.note, one.tone) for one in headlines if one] == [
        ("limit 5 %", "bad"),
        ("limit 50 %", "good"),
    ]


def test_the_threads_of_the_longest_region_are_pinned(tmp_path: Path) -> None:
    phases = (("1000-0", 0, 1000), ("1000-1", 500, 200), ("1000-2", 2000, 1000))
    run = run_of(tmp_path / "run", *((0, *one) for one in (*phases, ("1000-3", 2100, 1400))))
    (finding,) = overlapping_backwards(run)
    highest = finding.evidence["pairs"][0]
    assert (highest["a"], highest["b"]) == ("1000-0", "1000-1")
    context = Context(run, timeline=Timeline.open(run))
    pinned = parse_qs(urlsplit(address_of(context, finding, 0)).query)["pin"]
    assert context.timeline is not None
    threads = {lane.id: lane.thread for lane in context.timeline.index.lanes}
    assert [threads[int(one)] for one in pinned[0].split(".")] == ["1000-2", "1000-3"]


def test_less_than_the_limit_is_not_reported(tmp_path: Path) -> None:
    near = run_of(tmp_path / "near", (0, "1000-0", 0, 100), (0, "1000-1", 96, 104))
    assert overlapping_backwards(near) == []
    turns = run_of(tmp_path / "turns", (0, "1000-0", 0, 100), (0, "1000-1", 100, 100))
    assert overlapping_backwards(turns) == []
    builder = Builder(tmp_path / "none")
    builder.op(T, 1)
    with pytest.raises(NotApplicable, match="no thread was in backward"):
        overlapping_backwards(open_run(builder.write()))


def test_nested_and_repeated_phases_count_once(tmp_path: Path) -> None:
    run = run_of(
        tmp_path,
        (0, "1000-0", 0, 100),
        (0, "1000-0", 20, 30),
        (0, "1000-0", 90, 30),
        (0, "1000-1", 0, 60),
        (0, "1000-1", 0, 60),
    )
    (row,) = overlap(run).to_dict("records")
    assert (row["a_ns"], row["b_ns"], row["overlap_ns"], row["rate"]) == (120, 60, 60, 1.0)
    assert overlap_rate(run) == 0.5


def test_three_threads_make_three_pairs_highest_first(tmp_path: Path) -> None:
    run = run_of(tmp_path, (0, "1000-0", 0, 100), (0, "1000-1", 90, 100), (0, "1000-2", 0, 100))
    found = overlap(run)
    assert found[["a", "b", "rate"]].values.tolist() == [
        ["1000-0", "1000-2", 1.0],
        ["1000-0", "1000-1", 0.1],
        ["1000-1", "1000-2", 0.1],
    ]
    # [0, 100) has two, [90, 100) three; the third thread is in one region with both others.
    assert overlap_rate(run) == 100 / 190
    assert overlap_regions(run) == [Region(0, 0, 100, ("1000-0", "1000-1", "1000-2"))]


def test_threads_of_different_ranks_are_no_pair(tmp_path: Path) -> None:
    run = run_of(tmp_path, (0, "1000-0", 0, 100), (1, "1001-0", 0, 100))
    assert overlap(run).empty
    assert list(overlap(run).columns) == [
        "rank",
        "a",
        "b",
        "name_a",
        "name_b",
        "a_ns",
        "b_ns",
        "overlap_ns",
        "rate",
    ]
    assert overlap_rate(run) == 0.0
    assert overlap_regions(run) == []


def test_the_rate_of_the_run_sums_over_ranks(tmp_path: Path) -> None:
    run = run_of(
        tmp_path,
        (0, "1000-0", 0, 100),
        (0, "1000-1", 0, 100),
        (1, "1001-0", 0, 300),
        (1, "1001-1", 250, 50),
    )
    assert overlap_rate(run) == (100 + 50) / (100 + 300)
    assert overlap(run)[["rank", "overlap_ns"]].values.tolist() == [[0, 100], [1, 50]]


def test_touching_phases_do_not_overlap(tmp_path: Path) -> None:
    run = run_of(tmp_path, (0, "1000-0", 0, 100), (0, "1000-1", 100, 100))
    assert overlap(run)["overlap_ns"].tolist() == [0]
    assert overlap_rate(run) == 0.0


def test_a_phase_that_never_ended_lasts_to_the_end(tmp_path: Path) -> None:
    run = run_of(tmp_path, (0, "1000-0", 0, None), (0, "1000-1", 50, 20), t0=200)
    assert overlap(run)[["a_ns", "b_ns", "overlap_ns"]].values.tolist() == [[200, 20, 20]]


def test_a_window_cuts(tmp_path: Path) -> None:
    run = run_of(tmp_path, (0, "1000-0", 0, 100), (0, "1000-1", 50, 100))
    assert overlap(run, window=(80, 120))["overlap_ns"].tolist() == [20]
    assert overlap_rate(run, window=(80, 120)) == 0.5
    assert overlap_regions(run, window=(80, 90)) == [Region(0, 80, 90, ("1000-0", "1000-1"))]
    assert overlap(run, window=(200, 300)).empty
    assert overlap_rate(run, window=(200, 300)) is None


def test_the_index_holds_the_same_phases(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run", ranks=2, threads=3, steps=4, ops=30))
    index = Timeline.open(run).index
    for phase in ("forward", "backward", "optimizer"):
        read = [phase_lanes(run, rank, phase) for rank in run.ranks]
        again = open_run(tmp_path / "run")
        take_phases(again, index, phase)
        (tmp_path / "run").rename(tmp_path / "gone")  # so that no file can be read
        assert [phase_lanes(again, rank, phase) for rank in run.ranks] == read
        assert [list(lanes) for lanes in read if lanes]
        (tmp_path / "gone").rename(tmp_path / "run")


def test_another_phase_may_be_asked_for(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run", ranks=1, threads=2, steps=2, step_ns=1_000_000))
    # Thread 1 runs 50 us behind; forward takes 300 us of each step.
    (row,) = overlap(run, "forward").to_dict("records")
    assert row["rate"] == 250 / 300
    assert overlap_rate(run, "forward") == 250 / 350
    assert overlap_rate(run, "evaluation") is None
    assert set(phase_lanes(run, 0, "optimizer")) == {"1000-0", "1000-1"}
    with pytest.raises(RunError, match="no phase 'sleep', expected one of user, forward"):
        overlap(run, "sleep")


def test_rates_over_time(tmp_path: Path) -> None:
    # One thread: [30, 130) and [230, 280). The other: [80, 180). Stretches of 50 of the phase.
    backward = ((0, "1000-0", 30, 100), (0, "1000-1", 80, 100), (0, "1000-0", 230, 50))
    run = run_of(tmp_path, *backward, t0=400, t2=1)
    table = overlap_over_time(run, parts=5)
    starts = [30, 80, 130, 180, 230]
    assert table[["start_ns", "end_ns"]].values.tolist() == [[at, at + 50] for at in starts]
    assert table["rate"].fillna(-1).tolist() == [0.0, 1.0, 0.0, -1, 0.0]
    (half,) = overlap_over_time(run, parts=1)["rate"]
    assert half == overlap_rate(run)


SLICES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(0, 20)), min_size=1, max_size=14
)


@given(SLICES)
@settings(max_examples=40)
def test_rates_are_those_of_the_definition(
    tmp_path_factory: pytest.TempPathFactory, slices: list[tuple[int, int, int]]
) -> None:
    run = run_of(
        tmp_path_factory.mktemp("run"), *((0, f"1000-{k}", at, long) for k, at, long in slices)
    )
    first = min(at for _, at, _ in slices)
    sets: dict[str, set[int]] = {}
    for k, at, long in slices:
        sets.setdefault(f"1000-{k}", set()).update(range(at - first, at + long - first))
    inside = [sum(t in one for one in sets.values()) for t in range(70)]
    several, one = sum(n >= 2 for n in inside), sum(n >= 1 for n in inside)
    assert overlap_rate(run) == (several / one if one else None)
    assert sum(r.end_ns - r.start_ns for r in overlap_regions(run)) == several
    for row in overlap(run).to_dict("records"):
        a, b = sets[row["a"]], sets[row["b"]]
        assert (row["a_ns"], row["b_ns"], row["overlap_ns"]) == (len(a), len(b), len(a & b))
        assert row["rate"] == len(a & b) / min(len(a), len(b))


@pytest.mark.parametrize("count", [3, 40])
def test_matrix_of_many_threads_holds_those_that_overlap_most(tmp_path: Path, count: int) -> None:
    builder = Builder(tmp_path / "run")
    for ordinal in range(count):
        thread = builder.thread(ordinal=ordinal, name=f"worker {ordinal}")
        # Each is in backward 100 ns longer than the one before: the last ones overlap most.
        builder.phase(START_NS, 1_000 + 100 * ordinal, thread=thread)
    run = open_run(builder.write())
    (made,) = matrices.matrices(run, overlap(run))
    caption, head, body = made.children.children
    shown = min(count, matrices.MAX_COMPARED)
    assert len(body.children) == shown
    assert len(head.children.children) == shown + 1
    first = body.children[0].children[0].children[1]
    assert first == f"worker {count - shown}"
    assert ("32 of 40 threads" in caption.children) is (count == 40)


POOL = """
import threading
import torch
from torch import nn

shared = nn.Linear(64, 64)
together = threading.Barrier(2)

class Meets(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        together.wait()  # both threads are in backward
        return grad

def work(model, into_grad):
    for _ in range(20):
        loss = Meets.apply(model(torch.ones(64, 64))).square().mean()
        if into_grad:
            loss.backward()
        else:
            torch.autograd.grad(loss, list(model.parameters()))

def both(first, second, into_grad):
    threads = [threading.Thread(target=work, args=(m, into_grad)) for m in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


@pytest.mark.parametrize(
    ("call", "severity"),
    [
        ("both(shared, shared, False)", "info"),
        ("both(nn.Linear(64, 64), nn.Linear(64, 64), True)", "info"),
        ("both(shared, shared, True)", "error"),
    ],
)
def test_overlap_into_no_common_gradient_is_information(
    tmp_path: Path, native: Path, call: str, severity: str
) -> None:
    recorded = record_program(tmp_path, POOL + call)
    assert recorded.status == 0, recorded.stderr
    run = open_run(recorded.run)
    report = check(run)
    (found,) = (one for one in report.findings if one.kind == "overlap")
    assert found.severity == severity
    assert (found.evidence["shared_gradients"] == 0) == (severity == "info")
    (limit,) = (one for one in report.checks if one.name == "thread_overlap_rate")
    assert limit.value >= limit.limit
    assert limit.passed == (severity == "info")
    assert limit.note == ("; over the limit, and harmless here" if limit.passed else "")
    headline = backward_overlap(run, limit.limit)
    assert headline is not None
    assert headline.tone == ("" if limit.passed else "bad")
