"""The categories of a step on timelines whose answer is worked out on paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lanescope.webapp.plugins.time.breakdown import CATEGORIES, mean_steps, step_time
from lanescope.webapp.plugins.time.critical_path import critical_path
from lanescope.webapp.runs.run import open_run
from tests.support.synthetic import START_NS, Builder

MS = 1_000_000
COLUMNS = [f"{name}_ns" for name in CATEGORIES]


def ms(row: pd.Series) -> dict[str, float]:
    """Categories of a row that are not zero, ms."""
    assert row[COLUMNS].sum() == row["duration_ns"]
    return {name: row[f"{name}_ns"] / MS for name in CATEGORIES if row[f"{name}_ns"]}


def phase(builder: Builder, kind: str, start: float, end: float, rank: int = 0) -> None:
    thread = f"{1000 + rank}-0"
    length = int((end - start) * MS)
    builder.phase(START_NS + int(start * MS), length, kind, rank=rank, thread=thread)


def op(builder: Builder, start: float, end: float, rank: int = 0, **more: Any) -> None:
    more.setdefault("thread", f"{1000 + rank}-0")
    builder.op(START_NS + int(start * MS), int((end - start) * MS), rank=rank, **more)


def call(builder: Builder, rank: int, start: float, done: float, **more: Any) -> None:
    values: dict[str, Any] = {
        "name": "all_reduce",
        "group": "0",
        "group_size": 2,
        "duration_ns": MS,
        "asynchronous": True,
        **more,
    }
    builder.row(
        "collective",
        rank,
        f"{1000 + rank}-0",
        start_ns=START_NS + int(start * MS),
        complete_ns=START_NS + int(done * MS),
        sequence=0,
        **values,
    )


def training_step(builder: Builder, rank: int = 0) -> None:
    """Fetches for 10 ms, computes 10 to 30 and 30 to 80, steps 80 to 90."""
    for kind, start, end in (
        ("data", 0, 10),
        ("forward", 10, 30),
        ("backward", 30, 80),
        ("optimizer", 80, 90),
    ):
        phase(builder, kind, start, end, rank)
    op(builder, 12, 28, rank)
    op(builder, 81, 89, rank)


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    return Builder(tmp_path / "run", world_size=2)


def test_a_rank_that_waits_and_the_rank_it_waits_for(builder: Builder) -> None:
    for rank in (0, 1):
        training_step(builder, rank)
        op(builder, 76, 80, rank)
    op(builder, 30, 40, rank=0)
    op(builder, 30, 60, rank=1)
    call(builder, 0, 40, 75)
    call(builder, 1, 60, 75)
    first, second = (ms(row) for _, row in step_time(open_run(builder.write())).iterrows())
    common = {"data_loading": 10, "forward": 16, "optimizer": 8, "exposed_communication": 15}
    assert first == {**common, "backward": 14, "waiting_for_ranks": 20, "python": 7}
    assert second == {**common, "backward": 34, "python": 7}


def test_an_evaluation_is_a_category_of_its_own(builder: Builder) -> None:
    phase(builder, "evaluation", 0, 20)
    phase(builder, "optimizer", 20, 30)
    op(builder, 0, 15)
    op(builder, 20, 30)
    run = open_run(builder.write())
    assert ms(step_time(run).iloc[0]) == {"optimizer": 10, "evaluation": 15, "python": 5}
    path = critical_path(run)
    assert path.loc[path["category"] == "evaluation", "duration_ns"].sum() == 15 * MS


def test_communication_under_operators_is_not_exposed(builder: Builder) -> None:
    for rank in (0, 1):
        training_step(builder, rank)
        op(builder, 30, 80, rank)
        call(builder, rank, 40, 75, duration_ns=0)
    found = ms(step_time(open_run(builder.write())).iloc[0])
    assert found == {"data_loading": 10, "forward": 16, "backward": 50, "optimizer": 8, "python": 6}


def test_python_with_a_collective_under_way_does_not_wait(builder: Builder) -> None:
    """It sleeps in forward, 28 to 60, and a collective ends in the middle of that."""
    for rank in (0, 1):
        phase(builder, "forward", 0, 70, rank)
        phase(builder, "optimizer", 70, 80, rank)
        op(builder, 0, 28, rank)
        op(builder, 60, 80, rank)
        call(builder, rank, 20, 40, duration_ns=0)
    assert ms(step_time(open_run(builder.write())).iloc[0]) == {
        "forward": 38,
        "optimizer": 10,
        "python": 32,
    }


def test_a_wait_for_an_asynchronous_call_outside_of_backward(builder: Builder) -> None:
    for rank in (0, 1):
        phase(builder, "optimizer", 50, 80, rank)
        phase(builder, "forward", 0, 20, rank)
        op(builder, 0, 20, rank)
        op(builder, 50, 80, rank)
        call(builder, rank, 20, 49.9, duration_ns=0)
    assert ms(step_time(open_run(builder.write())).iloc[0]) == {
        "forward": 20,
        "optimizer": 30,
        "exposed_communication": 29.9,
        "python": pytest.approx(0.1),
    }


def test_a_wait_for_another_thread_and_helpers_of_backward(builder: Builder) -> None:
    training_step(builder)
    builder.thread(0, ordinal=1, kind="native", name="pt_autograd_0")
    op(builder, 32, 70, thread="1000-1")
    builder.row(
        "sync", 0, "1000-0", start_ns=START_NS + 71 * MS, duration_ns=8 * MS, kind="event_wait"
    )
    assert ms(step_time(open_run(builder.write())).iloc[0]) == {
        "data_loading": 10,
        "forward": 16,
        "backward": 38,
        "optimizer": 8,
        "waiting_for_threads": 8,
        "python": 10,
    }


def test_of_nested_phases_the_innermost_counts(builder: Builder) -> None:
    phase(builder, "optimizer", 0, 100)
    builder.phase(START_NS + 20 * MS, 30 * MS, "forward", depth=1)
    op(builder, 0, 100)
    found = ms(step_time(open_run(builder.write())).iloc[0])
    assert found == {"forward": 30, "optimizer": 70}


def test_a_device_decides_where_it_computes_and_communicates(builder: Builder) -> None:
    training_step(builder)
    builder.thread(0, ordinal=7, kind="stream", name="stream 7")

    def kernel(start: float, end: float, launch: float, name: str = "sgemm") -> None:
        launched = {"launch_ns": START_NS + int(launch * MS), "launch_thread": "1000-0"}
        op(builder, start, end, thread="1000-7", scope="kernel", name=name, **launched)

    kernel(14, 30, 12)  # forward
    kernel(32, 50, 12.5)  # forward, launched long before
    kernel(55, 60, 54, "ncclDevKernel_AllReduce")
    kernel(58, 62, 57)  # backward, hides 2 ms of it
    kernel(70, 72, 66, "Memcpy HtoD")
    kernel(85, 90, 84)
    assert ms(step_time(open_run(builder.write())).iloc[0]) == {
        "forward": 34,
        "backward": 4,
        "optimizer": 5,
        "exposed_communication": 3,
        "copy": 2,
        "launch": 2 + 1 + 4 + 1,
        "data_loading": 10,
        "host_bound": 4 + 4 + 4 + 12,
    }


def test_ranks_are_averaged_and_still_add_up(builder: Builder) -> None:
    for rank, until in ((0, 40), (1, 60)):
        phase(builder, "optimizer", 0, until, rank)
        op(builder, 0, 30, rank)
    mean = mean_steps(open_run(builder.write())).iloc[0]
    assert mean["duration_ns"] == 50 * MS
    assert ms(mean) == {"optimizer": 30, "python": 20}


def test_a_run_without_steps_has_no_rows(builder: Builder) -> None:
    op(builder, 0, 10)
    run = open_run(builder.write())
    assert step_time(run).empty
    assert mean_steps(run).empty


@pytest.mark.parametrize(("tool", "between"), [("chrome", "idle"), ("kineto", "python")])
def test_between_slices_of_any_tool_a_worker_is_idle(
    builder: Builder, tool: str, between: str
) -> None:
    """A bubble of a pipeline is not Python."""
    builder.process(0, engine=tool)
    builder.thread(0, kind="native")
    training_step(builder)
    op(builder, 40, 80)
    run = open_run(builder.write())
    assert ms(step_time(run).iloc[0])[between] == 16
    path = critical_path(run)
    assert path.groupby("category")["duration_ns"].sum()[between] == 16 * MS
    assert "unexplained" not in set(path["category"])


def test_work_of_autograd_threads_is_backward(builder: Builder) -> None:
    training_step(builder)
    builder.thread(0, ordinal=1, kind="native", name="pt_autograd_0")
    op(builder, 32, 50, thread="1000-1", name="MulBackward0")
    op(builder, 55, 70, thread="1000-1", name="MmBackward0")
    path = critical_path(open_run(builder.write()))
    mine = path[path["thread"] == "1000-1"].groupby(["category", "name"])["duration_ns"].sum()
    assert mine["backward", "MulBackward0"] == 18 * MS
    assert {category for category, _ in mine.index} == {"backward"}


def test_a_mark_before_the_first_step_does_not_begin_it(builder: Builder) -> None:
    builder.phase(START_NS, 0, "mark", name="Iteration Start")
    phase(builder, "user", 40, 100)
    phase(builder, "optimizer", 90, 100)
    op(builder, 45, 80)
    assert step_time(open_run(builder.write())).iloc[0]["duration_ns"] == 60 * MS
