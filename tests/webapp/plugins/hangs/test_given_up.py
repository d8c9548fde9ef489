"""Calls that a rank was done with before another came, on instants whose answer is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.plugins.hangs.hangs import hangs
from lanescope.webapp.runs.run import open_run
from tests.support.synthetic import START_NS, Builder

MS = 1_000_000


def found(
    path: Path,
    *made: tuple[int, str, int, int, int],
    ended: dict[str, str] | None = None,
    **more: Any,
) -> list[Finding]:
    """What is said of calls (rank, group, sequence, begin, done), times in ms, that all return;
    `ended` is how rank 0 did."""
    builder = Builder(path, world_size=2, exit_status=int(ended is not None))
    for rank in (0, 1):
        if ended is not None:
            how = ({"ended": "signal SIGTERM"}, ended)[rank == 0]
            builder.process(rank, start_ns=START_NS, end_ns=START_NS + 6000 * MS, **how)
        builder.thread(rank)
    for rank, group, sequence, begin, done in made:
        values: dict[str, Any] = {
            "name": "all_reduce",
            "group_size": 2,
            "bytes": 16,
            "duration_ns": 10,
            **more,
        }
        builder.row(
            "collective",
            rank,
            f"{1000 + rank}-0",
            start_ns=START_NS + begin * MS,
            group=group,
            sequence=sequence,
            complete_ns=START_NS + done * MS,
            **values,
        )
        builder.op(START_NS + done * MS, MS, rank=rank, thread=f"{1000 + rank}-0")
    return hangs(open_run(builder.write()))


TOGETHER = [(0, "0", 0, 0, 4), (1, "0", 0, 3, 4)]


def test_who_came_when_the_other_had_given_up(tmp_path: Path) -> None:
    late = [(0, "0", 1, 10, 3010), (1, "0", 1, 5010, 5011)]
    (finding,) = found(tmp_path, *TOGETHER, *late)
    assert (finding.kind, finding.severity) == ("straggler", "error")
    assert (finding.rank, finding.ranks) == (0, (1,))
    assert finding.title.startswith("Rank 0 gave up all_reduce #1 of group 0")
    assert "after 3.00 s, 2.00 s before rank 1 came to it" in finding.title
    assert finding.evidence["waited_ns"] == 3000 * MS
    assert finding.evidence["came_after_ns"] == 2000 * MS


def test_two_groups_in_opposite_order_on_threads_that_gave_up(tmp_path: Path) -> None:
    (finding,) = found(
        tmp_path,
        *TOGETHER,
        (0, "1", 0, 10, 3011),
        (1, "2", 0, 12, 3005),  # each holds what the other's thread needs
        (1, "1", 0, 3008, 3011),
        (0, "2", 0, 3013, 3014),
    )
    assert (finding.kind, finding.severity) == ("collective_mismatch", "error")
    assert finding.ranks == (0, 1)
    assert "rank 0 waited in all_reduce #0 of group 1 for rank 1" in finding.title
    assert "rank 1 waited in all_reduce #0 of group 2 for rank 0" in finding.title
    assert [one["group"] for one in finding.evidence["cycle"]] == ["1", "2"]


def test_who_left_at_once_did_not_wait(tmp_path: Path) -> None:
    refused = [(0, "0", 1, 10, 11), (1, "0", 1, 20, 21)]
    (finding,) = found(tmp_path / "goes on", *TOGETHER, *refused)
    assert (finding.kind, finding.severity, finding.ranks) == ("hang", "error", (0,))
    assert finding.title.startswith("Rank 0 failed in all_reduce #1 of group 0 after 1.00 ms, ")
    ended = {"ended": "exception", "exception": "RuntimeError: enforce fail (train.py:9)"}
    (finding,) = found(tmp_path / "raised", *TOGETHER, *refused, ended=ended)
    assert finding.title.startswith("Rank 0 raised RuntimeError: enforce fail")


@pytest.mark.parametrize(
    ("second", "more"),
    [
        ([(0, "0", 1, 10, 5012), (1, "0", 1, 5010, 5011)], {}),  # it came in time
        ([(0, "0", 1, 10, 3010), (1, "0", 1, 3010, 3011)], {}),  # within the clocks' error
        ([(0, "0", 1, 10, 11), (1, "0", 1, 5010, 5011)], {"bytes": 0}),  # moves nothing
        ([(0, "0", 1, 10, 11), (1, "0", 1, 5010, 5011)], {"name": "broadcast"}),  # by a root
    ],
)
def test_no_rank_gave_up(
    tmp_path: Path, second: list[tuple[int, str, int, int, int]], more: dict[str, Any]
) -> None:
    assert found(tmp_path, *TOGETHER, *second, **more) == []


def test_two_jobs_that_one_program_starts(tmp_path: Path) -> None:
    builder = Builder(tmp_path, world_size=2)

    def process(pid: int, rank: int, begin: int, end: int, group: str, size: int) -> None:
        life = {"start_ns": START_NS + begin * MS, "end_ns": START_NS + end * MS}
        builder.process(rank, pid, parent_pid=900 if pid > 900 else 1, **life)
        builder.row(
            "collective",
            rank,
            builder.thread(rank, pid),
            start_ns=START_NS + (begin + 10) * MS,
            name="all_reduce",
            group=group,
            group_size=size,
            sequence=0,
            complete_ns=START_NS + (begin + 14) * MS,
            bytes=16,
            duration_ns=10,
        )

    process(900, 0, 0, 9000, "0", 1)  # makes calls of its own
    for begin in (1000, 5000):
        for rank in (0, 1):
            process(begin + rank, rank, begin, begin + 1000, "1", 2)
    assert hangs(open_run(builder.write())) == []
