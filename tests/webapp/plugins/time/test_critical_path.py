"""The critical path of small graphs that are worked out on paper, one for each kind of edge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lanescope.webapp.analysis.findings import NotApplicable
from lanescope.webapp.plugins.time.critical_path import critical_path, summed
from lanescope.webapp.plugins.time.job_steps import job_steps, median_step
from lanescope.webapp.plugins.time.what_if import ready_made, what_if
from lanescope.webapp.runs.run import Run, RunError, open_run
from tests.support.synthetic import START_NS, Builder
from tests.webapp.plugins.time.test_breakdown import MS, call, op, phase, training_step


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    return Builder(tmp_path / "run", world_size=2)


def sync(builder: Builder, kind: str, thread: int, start: float, end: float, **more: Any) -> None:
    builder.row(
        "sync",
        0,
        f"1000-{thread}",
        kind=kind,
        start_ns=START_NS + int(start * MS),
        duration_ns=int((end - start) * MS),
        **more,
    )


def legs(run: Run) -> list[tuple[int, int, float, float]]:
    """Stretches of the path on one lane: rank, ordinal of the thread, from and to in ms."""
    path = critical_path(run)
    window = job_steps(run)[0]
    assert path["duration_ns"].sum() == window.end_ns - window.start_ns
    assert (path["start_ns"].iloc[1:].to_numpy() == path["end_ns"].iloc[:-1].to_numpy()).all()
    number = path[["rank", "thread"]].ne(path[["rank", "thread"]].shift()).any(axis=1).cumsum()
    parts = path.groupby(number).agg(
        rank=("rank", "first"),
        thread=("thread", "first"),
        a=("start_ns", "min"),
        b=("end_ns", "max"),
    )
    return [
        (int(row.rank), int(row.thread.partition("-")[2]), row.a / MS, row.b / MS)
        for row in parts.itertuples()
    ]


def straggling(builder: Builder) -> Run:
    """Rank 1 comes 20 ms late to a collective; rank 0 ends its step 5 ms later than rank 1."""
    for rank in (0, 1):
        training_step(builder, rank)
        op(builder, 76, 80, rank)
    op(builder, 30, 40, rank=0)
    op(builder, 30, 60, rank=1, name="aten::slow")
    phase(builder, "optimizer", 90, 95, rank=0)
    call(builder, 0, 40, 75, duration_ns=0)
    call(builder, 1, 60, 75, duration_ns=0)
    return open_run(builder.write())


def test_the_path_goes_to_the_last_rank_that_arrives(builder: Builder) -> None:
    run = straggling(builder)
    assert legs(run) == [(1, 0, 0, 60), (0, 0, 60, 95)]
    totals = summed(critical_path(run), ["category", "name", "rank"])
    found = {(r.category, r.name, r.rank): r.duration_ns / MS for r in totals.itertuples()}
    assert found["backward", "aten::slow", 1] == 30
    assert found["exposed_communication", "all_reduce", 0] == 15


def test_without_the_delay_the_step_is_as_long_as_the_replay_says(builder: Builder) -> None:
    run = straggling(builder)
    spec = ["rank=1:delay=0", "transfer=0", "op=aten::slow:x0.5", "data=0", "communication=0"]
    found = {one.spec: one.step_ns / MS for one in what_if(run, spec)}
    assert found == {
        "rank=1:delay=0": 75,  # both arrive at 40
        "transfer=0": 80,
        "op=aten::slow:x0.5": 80,  # it arrives at 45
        "data=0": 85,
        "communication=0": 75,  # rank 1 alone: 60 and 15
    }
    best = ready_made(run)[0]
    assert (best.spec, best.step_ns) == ("rank=1:delay=0", 75 * MS)
    assert best.words == "rank 1 as fast as the others"


@pytest.mark.parametrize("spec", ["", "rank=1", "op=x", "op=aten::mm:xx", "speed=2"])
def test_specifications_that_say_nothing(builder: Builder, spec: str) -> None:
    with pytest.raises(ValueError, match="is not a what-if; expected"):
        what_if(straggling(builder), [spec])


@pytest.mark.parametrize(
    ("wait", "release"),
    [
        ("lock_acquire", "lock_release"),
        ("condition_wait", "condition_notify"),
        ("event_wait", "event_set"),
        ("semaphore_acquire", "semaphore_release"),
        ("queue_get", "queue_put"),
        ("future_get", "future_set"),
    ],
)
def test_the_path_goes_to_the_thread_that_ended_a_wait(
    builder: Builder, wait: str, release: str
) -> None:
    training_step(builder)
    sync(builder, wait, 0, 35, 70, object=7)
    op(builder, 0, 69, thread="1000-1")
    sync(builder, release, 1, 20, 20, object=7)  # an earlier one
    sync(builder, release, 1, 66, 66, object=7)
    sync(builder, release, 1, 67, 67, object=8)  # of something else
    assert legs(open_run(builder.write())) == [(0, 1, 0, 66), (0, 0, 66, 90)]


def test_what_was_there_before_is_not_waited_for(builder: Builder) -> None:
    training_step(builder)
    sync(builder, "queue_get", 0, 35, 36, object=7)
    op(builder, 0, 30, thread="1000-1")
    sync(builder, "queue_put", 1, 20, 20, object=7)
    assert legs(open_run(builder.write())) == [(0, 0, 0, 90)]


def test_a_join_leads_to_the_end_of_the_thread_and_its_begin_to_the_starter(
    builder: Builder,
) -> None:
    training_step(builder)
    sync(builder, "thread_start", 0, 31, 31, peer="1000-1")
    sync(builder, "thread_begin", 1, 33, 33)
    op(builder, 34, 60, thread="1000-1")
    sync(builder, "thread_end", 1, 61, 61)
    sync(builder, "thread_join", 0, 40, 62, peer="1000-1")
    assert legs(open_run(builder.write())) == [(0, 0, 0, 31), (0, 1, 31, 61), (0, 0, 61, 90)]


def test_backward_is_with_the_thread_that_works_for_it(builder: Builder) -> None:
    training_step(builder)
    builder.thread(0, ordinal=1, kind="native", name="pt_autograd_0")
    op(builder, 32, 70, thread="1000-1", name="MulBackward0")
    assert legs(open_run(builder.write())) == [(0, 0, 0, 30), (0, 1, 30, 70), (0, 0, 70, 90)]


def test_a_wait_without_a_known_end_is_unexplained(builder: Builder) -> None:
    training_step(builder)
    sync(builder, "event_wait", 0, 35, 70, object=7)
    run = open_run(builder.write())
    assert legs(run) == [(0, 0, 0, 90)]
    totals = summed(critical_path(run), ["category"]).set_index("category")["duration_ns"]
    assert totals["unexplained"] == 35 * MS


def test_two_waits_that_name_each_other_end(builder: Builder) -> None:
    training_step(builder)
    sync(builder, "event_wait", 0, 35, 70, object=7)
    sync(builder, "event_set", 1, 70, 70, object=7)
    sync(builder, "event_wait", 1, 30, 70, object=8)
    sync(builder, "event_set", 0, 70, 70, object=8)
    assert critical_path(open_run(builder.write()))["duration_ns"].sum() == 90 * MS


def test_steps_of_the_job_and_runs_without_any(builder: Builder, tmp_path: Path) -> None:
    for rank, ends in ((0, (40, 100)), (1, (50, 90))):
        for step, end in enumerate(ends):
            builder.phase(
                START_NS + end * MS - MS,
                MS,
                "optimizer",
                rank=rank,
                thread=f"{1000 + rank}-0",
                step=step,
            )
        op(builder, 0, 30, rank)
    run = open_run(builder.write())
    found = [
        (one.step, one.start_ns // MS, one.end_ns // MS, one.last_rank) for one in job_steps(run)
    ]
    assert found == [(0, 39, 50, 1), (1, 50, 100, 0)]
    assert critical_path(run, 1)["duration_ns"].sum() == 50 * MS
    with pytest.raises(NotApplicable, match="no step 7"):
        critical_path(run, 7)
    empty = Builder(tmp_path / "empty")
    empty.op(START_NS, MS)
    assert median_step(open_run(empty.write())) is None
    with pytest.raises(RunError, match="no training step was recorded"):  # as lw promises
        critical_path(open_run(tmp_path / "empty"))


def test_columns(builder: Builder) -> None:
    path = critical_path(straggling(builder))
    assert isinstance(path, pd.DataFrame)
    assert list(path) == [
        *("rank", "thread", "start_ns", "end_ns", "duration_ns"),
        *("category", "name", "module", "where"),
    ]
