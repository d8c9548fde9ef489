"""A receive waits for the rank that sends, and a send for the rank that receives, on paper."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanescope.webapp.plugins.time.breakdown import step_time
from lanescope.webapp.runs.run import Run, open_run
from tests.support.synthetic import Builder
from tests.webapp.plugins.time.test_breakdown import MS, call, op, phase, training_step
from tests.webapp.plugins.time.test_critical_path import legs


def exchanged(path: Path, late: tuple[str, int], early: tuple[str, int]) -> Run:
    """Rank 1 comes to an exchange at 60 ms, rank 0 at 40 ms; it ends at 75 ms. A collective of the
    same group with the same number was done at 30 ms, on rank 1 first."""
    builder = Builder(path, world_size=2)
    for rank in (0, 1):
        training_step(builder, rank)
        op(builder, 76, 80, rank)
    op(builder, 31, 40, rank=0)
    op(builder, 31, 60, rank=1, name="aten::slow")
    phase(builder, "optimizer", 90, 95, rank=0)
    call(builder, 0, 29.5, 30, duration_ns=MS // 2, asynchronous=False)
    call(builder, 1, 29, 30, duration_ns=MS, asynchronous=False)
    for rank, (name, peer), start in ((0, early, 40), (1, late, 60)):
        call(
            builder,
            rank,
            start,
            75,
            name=name,
            peer=peer,
            duration_ns=(75 - start) * MS,
            asynchronous=False,
        )
    return open_run(builder.write())


@pytest.mark.parametrize("names", [("send", "recv"), ("recv", "send")])
def test_the_path_goes_to_the_later_partner(names: tuple[str, str], tmp_path: Path) -> None:
    late, early = names
    run = exchanged(tmp_path / "run", (late, 0), (early, 1))
    assert legs(run) == [(0, 0, 0, 29.5), (1, 0, 29.5, 60), (0, 0, 60, 95)]
    times = step_time(run).set_index("rank")
    assert times.loc[0, "waiting_for_ranks_ns"] == 20 * MS
    assert times.loc[0, "exposed_communication_ns"] == 15 * MS + MS // 2
    assert times.loc[1, "waiting_for_ranks_ns"] == MS // 2


def test_a_send_that_ended_before_its_receiver_came_did_not_wait(tmp_path: Path) -> None:
    """The bytes were on their way; rank 0 sends from 20 to 29 ms, rank 1 receives from 60 ms."""
    builder = Builder(tmp_path / "run", world_size=2)
    for rank in (0, 1):
        training_step(builder, rank)
    phase(builder, "optimizer", 90, 95, rank=0)
    for rank, name, start, end in ((0, "send", 20, 29), (1, "recv", 60, 61)):
        length = (end - start) * MS
        call(
            builder,
            rank,
            start,
            end,
            name=name,
            peer=1 - rank,
            duration_ns=length,
            asynchronous=False,
        )
    run = open_run(builder.write())
    assert legs(run) == [(0, 0, 0, 95)]
    assert not step_time(run)["waiting_for_ranks_ns"].any()
