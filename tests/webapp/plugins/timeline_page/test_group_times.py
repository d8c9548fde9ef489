"""Times of groups of ranks by step, on steps whose answer can be worked out on paper."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lanescope.webapp.plugins.timeline_page.group_times import (
    MAX_STEP_COLUMNS,
    Columns,
    group_times,
    rank_times,
)
from lanescope.webapp.runs.run import open_run
from lanescope.webapp.timeline.arguments import BadRequest
from lanescope.webapp.timeline.timeline import NoSuch, Timeline
from tests.support.run_builder import START_NS, Builder

MS = 1_000_000
STEP = 10 * MS
MOST_BYTES = 250_000
"""Of an answer with as many groups and columns as one may have."""


def built(path: Path, ranks: int, steps: int, per_host: int, **manifest: Any) -> Builder:
    """Ranks with steps of 10 ms one after another."""
    builder = Builder(path, **{"world_size": ranks, **manifest})
    starts = START_NS + STEP * np.arange(steps)
    for rank in range(ranks):
        builder.process(rank, host=f"gpu-{rank // per_host:03d}")
        builder.rows(
            "phase",
            rank,
            f"{1000 + rank}-0",
            start_ns=starts,
            duration_ns=STEP,
            kind="optimizer",
            name="optimizer",
            step=np.arange(steps),
        )
    return builder


def call(builder: Builder, rank: int, sequence: int, at: float, until: float, size: int) -> None:
    """A call of a group from one instant to another, ms."""
    builder.row(
        "collective",
        rank,
        f"{1000 + rank}-0",
        start_ns=START_NS + int(at * MS),
        duration_ns=int((until - at) * MS),
        name="all_reduce",
        group="0",
        group_size=size,
        sequence=sequence,
        bytes=1000,
    )


@pytest.fixture(scope="module")
def timeline(tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    """Four ranks on two hosts; rank 3 comes 3 ms after the others to each of five calls."""
    builder = built(tmp_path_factory.mktemp("times") / "run", 4, 5, 2)
    for step in range(5):
        for rank in range(4):
            at = 10 * step + (8 if rank == 3 else 5)
            call(builder, rank, step, at, 10 * step + 9, 4)
    return Timeline.open(open_run(builder.write()))


def asked(timeline: Timeline, **arguments: Any) -> dict[str, Any]:
    whole = {"of": "0,2", "t0": "0", "t1": str(timeline.run.duration_ns)}
    return group_times(timeline, {**whole, **arguments})


def test_waiting_for_a_later_rank_does_not_count_as_own_time(timeline: Timeline) -> None:
    times = rank_times(timeline.run)
    assert times.waits_known
    assert times.own_ns.tolist() == [[7 * MS] * 5] * 3 + [[10 * MS] * 5]
    assert np.flatnonzero(times.slow.any(axis=1)).tolist() == [3]


def test_a_group_has_its_least_median_and_greatest_and_names_who_is_slow(
    timeline: Timeline,
) -> None:
    answer = asked(timeline)
    assert answer["columns"][1] == [STEP, 2 * STEP, 1, 1, 7 * MS]
    first, second = answer["groups"]
    assert first["spread"] == [[7 * MS, 7 * MS, 7 * MS, 0, step] for step in range(5)]
    assert (first["slow"], first["slowest"]) == ([], [])
    assert second["spread"][0] == [7 * MS, 8.5 * MS, 10 * MS, 3, 0]
    assert second["slow"][4] == [4, 1, [3, 4, 10 * MS]]
    assert second["slowest"] == answer["slowest"] == [[3, 5]]


def test_only_steps_of_the_window_come(timeline: Timeline) -> None:
    answer = asked(timeline, t0=str(STEP + 1), t1=str(3 * STEP))
    assert [column[2] for column in answer["columns"]] == [1, 2]


def test_a_rank_that_goes_on_does_not_wait(tmp_path: Path) -> None:
    builder = built(tmp_path / "run", 2, 1, 2)
    for sequence, (early, late) in enumerate(((2, 5), (4, 7))):
        call(builder, 0, sequence, early, early, 2)  # returns at once: the rank computes on
        call(builder, 1, sequence, late, late, 2)
    times = rank_times(open_run(builder.write()))
    assert times.own_ns[:, 0].tolist() == [7 * MS, 10 * MS]


def test_waiting_for_a_rank_that_was_not_recorded_counts_as_waiting(tmp_path: Path) -> None:
    group = {"0": {"ranks": [0, 1, 2], "description": ""}}
    builder = built(tmp_path / "run", 2, 1, 2, world_size=3, groups=group)
    for rank in range(2):
        call(builder, rank, 0, 5, 9, 3)
    times = rank_times(open_run(builder.write()))
    assert times.own_ns[:, 0].tolist() == [6 * MS, 6 * MS]


def test_without_compared_clocks_it_is_the_length_of_the_step(tmp_path: Path) -> None:
    builder = built(tmp_path / "run", 2, 2, 1)
    for rank, process in enumerate(builder.manifest["processes"]):
        process["clock"] |= {"host": f"boot-{rank}/time-1", "calibrated": False}
        call(builder, rank, 0, 5 + rank, 8, 2)
    times = rank_times(open_run(builder.write()))
    assert not times.waits_known
    assert times.own_ns.tolist() == [[10 * MS] * 2] * 2


def test_an_answer_is_bounded_however_many_steps_there_are(tmp_path: Path) -> None:
    run = open_run(built(tmp_path / "run", 33, 500, 1).write())
    timeline = Timeline.open(run)
    most = ",".join(map(str, range(32)))
    answer = asked(timeline, of=most)
    assert 60 <= len(answer["columns"]) <= MAX_STEP_COLUMNS
    assert answer["columns"][0][2] == 0
    assert answer["columns"][-1][3] == 499
    assert len(json.dumps(answer, separators=(",", ":"))) < MOST_BYTES
    with pytest.raises(BadRequest, match="more than 32 groups"):
        asked(timeline, of=f"{most},32")


def test_columns_do_not_depend_on_where_the_window_begins(tmp_path: Path) -> None:
    times = rank_times(open_run(built(tmp_path / "run", 1, 300, 1).write()))
    edges = [
        set(Columns.of(times, (begin * STEP, 299 * STEP), 100).low.tolist()) for begin in (0, 5)
    ]
    assert edges[1] < edges[0]


def test_unknown_ranks_and_dimensions_are_refused(timeline: Timeline) -> None:
    for arguments in ({"of": "4"}, {"by": "tensor"}):
        with pytest.raises(NoSuch):
            asked(timeline, **arguments)
    with pytest.raises(BadRequest):
        asked(timeline, of="x")
