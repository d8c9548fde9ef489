"""Arrival, stragglers and communication overlap on intervals whose answer is known on paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lanescope.webapp.analysis.findings import NotApplicable, NotRecorded
from lanescope.webapp.plugins.collectives.collectives import (
    bus_factor,
    collectives,
    operation_bytes,
)
from lanescope.webapp.plugins.collectives.communication import comm_compute_overlap, communication
from lanescope.webapp.plugins.collectives.skew import arrivals, late_map, straggling
from lanescope.webapp.plugins.collectives.stragglers import stragglers
from lanescope.webapp.plugins.time.headlines import waiting_headline
from lanescope.webapp.runs.run import Run, open_run
from tests.support.synthetic import START_NS, Builder

MS = 1_000_000


def builder_of(path: Path, ranks: int = 2) -> Builder:
    builder = Builder(path, world_size=ranks)
    for rank in range(ranks):
        builder.thread(rank)
    return builder


def call(
    builder: Builder, rank: int, sequence: int, start: int, done: int | None, **more: Any
) -> None:
    values: dict[str, Any] = {
        "name": "all_reduce",
        "group": "0",
        "group_size": 2,
        "bytes": 1000,
        "duration_ns": 10,
        "asynchronous": True,
        **more,
    }
    builder.row(
        "collective",
        rank,
        f"{1000 + rank}-0",
        start_ns=START_NS + start,
        sequence=sequence,
        complete_ns=None if done is None else START_NS + done,
        **values,
    )


def optimizer(builder: Builder, rank: int, step: int, start: int) -> None:
    """The end of a step."""
    thread = f"{1000 + rank}-0"
    builder.phase(START_NS + start, MS, kind="optimizer", rank=rank, thread=thread, step=step)


def test_skew_last_comer_and_transfer(tmp_path: Path) -> None:
    builder = builder_of(tmp_path, 3)
    for rank, start, done in ((0, 100, 500), (1, 300, 520), (2, 250, 510)):
        call(builder, rank, 0, start, done, group_size=3)
    row = arrivals(open_run(builder.write())).iloc[0]
    assert (row["first_rank"], row["last_rank"]) == (0, 1)
    assert (row["skew_ns"], row["alone_ns"]) == (200, 50)
    assert row["transfer_ns"] == 220  # all had come at 300, all were done at 520


@pytest.mark.parametrize(
    ("name", "calls", "waited"),
    [
        ("broadcast", ((0, 400), (300, 420), (250, 410)), True),  # the root waited, as in Gloo
        ("broadcast", ((0, 50), (300, 420), (250, 410)), False),  # it did not
        ("broadcast", ((0, 900), (300, 920), (250, 910)), False),  # the rest takes longer
        ("broadcast", ((300, 900), (0, 920), (250, 910)), True),  # nothing arrives without the root
        ("reduce", ((0, 400), (300, 420), (250, 280)), False),  # rank 2 left before rank 1 came
        ("gather", ((0, 400), (300, 420), (250, 410)), True),
    ],
)
def test_calls_with_a_root_in_which_all_waited(
    tmp_path: Path, name: str, calls: tuple[tuple[int, int], ...], waited: bool
) -> None:
    builder = builder_of(tmp_path, 3)
    for rank, (start, done) in enumerate(calls):
        call(builder, rank, 0, start, done, group_size=3, name=name, root=0)
    found = arrivals(open_run(builder.write()))
    last = max(range(3), key=lambda rank: calls[rank][0])
    assert found["last_rank"].tolist() == [last] * waited


def test_a_call_that_a_rank_did_not_make_has_no_arrival(tmp_path: Path) -> None:
    builder = builder_of(tmp_path)
    call(builder, 0, 0, 0, 50)
    call(builder, 1, 0, 10, 50)
    call(builder, 0, 1, 60, None)
    assert arrivals(open_run(builder.write()))["sequence"].tolist() == [0]


def test_who_waits_for_whom_in_sum(tmp_path: Path) -> None:
    builder = builder_of(tmp_path)
    for sequence, (a, b) in enumerate(((0, 30), (100, 110), (240, 200))):
        call(builder, 0, sequence, a, 300)
        call(builder, 1, sequence, b, 300)
    table = straggling(open_run(builder.write())).set_index("rank")
    assert table.loc[1].to_dict() == {"calls": 3, "last": 2, "alone_ns": 40, "wait_ns": 40}
    assert table.loc[0].to_dict() == {"calls": 3, "last": 1, "alone_ns": 40, "wait_ns": 40}


def test_a_group_of_one_rank_makes_no_rank_wait(tmp_path: Path) -> None:
    builder = builder_of(tmp_path)
    call(builder, 0, 0, 0, 50)
    call(builder, 1, 0, 10, 50)
    call(builder, 0, 0, 60, 70, group="1", group_size=1)
    table = straggling(open_run(builder.write())).set_index("rank")
    assert (table["calls"].to_dict(), table["last"].to_dict()) == ({0: 1, 1: 1}, {0: 0, 1: 1})


def test_heat_map_shows_the_latest_of_a_column(tmp_path: Path) -> None:
    builder = builder_of(tmp_path)
    for sequence, late in enumerate((5, 50, 7, 1)):
        call(builder, 0, sequence, 1000 * sequence, 1000 * sequence + 900)
        call(builder, 1, sequence, 1000 * sequence + late, 1000 * sequence + 900)
    run = open_run(builder.write())
    found = late_map(run, "0", columns=2)
    assert (found.ranks, found.per_column, found.first.tolist()) == ((0, 1), 2, [0, 2])
    assert found.late_ns[1].tolist() == [50, 7]
    assert found.sequence[1].tolist() == [1, 2]


def rounds(
    path: Path, delays: list[tuple[int, int]], runnable: tuple[int, int] | None = None
) -> Run:
    """Steps of 100 ms; in each, two ranks come late by the stated times (ms).

    They were ready to run without a processor for `runnable` ms of each.
    """
    builder = builder_of(path)
    for step, late in enumerate(delays):
        for rank in (0, 1):
            start = step * 100 * MS + late[rank] * MS
            ready = None if runnable is None else runnable[rank] * MS
            end = (step * 100 + 90) * MS
            call(builder, rank, step, start, end, step=step, runnable_ns=ready)
            optimizer(builder, rank, step, end)
    return open_run(builder.write())


def test_a_rank_that_is_late_in_every_step_is_a_straggler(tmp_path: Path) -> None:
    (found,) = stragglers(rounds(tmp_path, [(0, 30)] * 10))
    assert (found.kind, found.severity, found.rank) == ("straggler", "warning", 1)
    assert found.evidence["delay_ns"] == 30 * MS
    assert found.evidence["share"] == pytest.approx(0.3)
    assert "30.0 ms of each step (30 %). It came last in 9 of 9 steps" in found.title


@pytest.mark.parametrize(("late", "tone"), [(30, "bad"), (5, "")])
def test_waiting_is_red_where_it_is_for_one_rank(tmp_path: Path, late: int, tone: str) -> None:
    headline = waiting_headline(rounds(tmp_path, [(0, late)] * 10))
    assert headline is not None
    assert headline.tone == tone


def test_a_run_without_steps_shows_the_rank_that_waits_most(tmp_path: Path) -> None:
    builder = builder_of(tmp_path)
    call(builder, 0, 0, 0, 80 * MS)
    call(builder, 1, 0, 60 * MS, 80 * MS)
    builder.op(START_NS + 80 * MS, 40 * MS, thread="1000-0")
    headline = waiting_headline(open_run(builder.write()))
    assert headline is not None
    assert (headline.value, headline.note) == ("50.0 %", "60.0 ms of the run, on rank 0")


def test_a_learner_and_an_actor_wait_by_design(tmp_path: Path) -> None:
    builder = builder_of(tmp_path)
    for step in range(10):
        builder.phase(START_NS + step * 100 * MS, 20 * MS, kind="backward", rank=1, thread="1001-0")
        for rank in (0, 1):
            start, end = (step * 100 + 30 * rank) * MS, (step * 100 + 90) * MS
            call(builder, rank, step, start, end, step=step)
            optimizer(builder, rank, step, end)
    run = open_run(builder.write())
    (found,) = stragglers(run)
    assert (found.severity, found.rank) == ("info", 1)
    headline = waiting_headline(run)
    assert headline is not None
    assert not headline.tone


def test_what_takes_a_straggler_longer(tmp_path: Path) -> None:
    builder = builder_of(tmp_path)
    for step in range(10):
        for rank, late in ((0, 0), (1, 30)):
            start = START_NS + step * 100 * MS
            thread = f"{1000 + rank}-0"
            ops = [("aten::add", "", 2), ("aten::mm", "head", 5 + late), ("aten::tanh", "", 1)]
            for name, module, length in ops:
                builder.op(
                    start,
                    length * MS,
                    name,
                    rank=rank,
                    thread=thread,
                    module=module,
                    self_ns=length * MS,
                )
                start += length * MS
            call(builder, rank, step, start - START_NS, (step * 100 + 90) * MS, step=step)
    (found,) = stragglers(open_run(builder.write()))
    assert ", and is slower at operator aten::mm in head: compare the " in found.title
    assert found.evidence["slower"]["excess_ns"] == pytest.approx(30 * MS, rel=0.1)


@pytest.mark.parametrize(
    "delays",
    [
        [(0, 40), (40, 0)] * 5,  # by turns
        [(0, 15)] * 10,  # less than a fifth of the step
        [(0, 0), (0, 0), (0, 80)] + [(0, 0)] * 7,  # once
    ],
)
def test_chance_does_not_make_a_straggler(tmp_path: Path, delays: list[tuple[int, int]]) -> None:
    assert stragglers(rounds(tmp_path, delays)) == []


def test_a_few_steps_prove_no_straggler(tmp_path: Path) -> None:
    with pytest.raises(NotRecorded, match="record at least 9 steps"):
        stragglers(rounds(tmp_path, [(0, 30)] * 8))


def test_ranks_that_are_late_by_turns_within_steps_are_no_stragglers(tmp_path: Path) -> None:
    builder = builder_of(tmp_path)
    for step in range(10):
        for rank in (0, 1):
            for half, late in enumerate(((40, 0), (0, 45 - step))):
                start, end = step * 100 + half * 50 + late[rank], step * 100 + half * 50 + 46
                call(builder, rank, 2 * step + half, start * MS, end * MS, step=step)
            optimizer(builder, rank, step, (step * 100 + 98) * MS)
    assert stragglers(open_run(builder.write())) == []


def test_a_rank_that_got_no_processor_is_not_a_straggler(tmp_path: Path) -> None:
    assert stragglers(rounds(tmp_path / "none", [(0, 30)] * 10, runnable=(0, 25))) == []
    (found,) = stragglers(rounds(tmp_path / "some", [(0, 30)] * 10, runnable=(0, 5)))
    assert found.evidence["delay_ns"] == 25 * MS
    # Where the other one waited for a processor as long, it would have come earlier as well.
    (found,) = stragglers(rounds(tmp_path / "both", [(0, 30)] * 10, runnable=(20, 25)))
    assert found.evidence["delay_ns"] == 25 * MS


def test_steps_of_a_straggler_may_be_of_unequal_length(tmp_path: Path) -> None:
    delays = [(0, 12 if step % 3 == 2 else 30 + step) for step in range(12)]
    run = rounds(tmp_path, delays)
    (found,) = stragglers(run)
    assert found.rank == 1
    # Both are of the first step that counts; the link leads to the longest wait.
    assert found.step == run.steps(0).index[1]
    assert run.steps(0).start_ns[1] <= (found.time_ns or 0) < run.steps(0).end_ns[1]


def test_what_several_collectives_wait_for_counts_once(tmp_path: Path) -> None:
    builder = builder_of(tmp_path)
    for step in range(10):
        for k in range(10):  # ten buckets that rank 1 enters together, 15 ms after rank 0
            for rank, late in ((0, 0), (1, 15)):
                start = (step * 100 + late) * MS + k
                call(builder, rank, 10 * step + k, start, (step * 100 + 90) * MS, step=step)
    assert stragglers(open_run(builder.write())) == []


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_rank_that_hands_on_a_delay_is_not_a_straggler(
    tmp_path: Path, asynchronous: bool
) -> None:
    # Rank 2 is late. Rank 3 waits for it in their group, then both come to those of ranks 0 and 1.
    # Where rank 3 did not wait within the call, but computed for as long, it is late itself.
    builder = builder_of(tmp_path, 4)
    for step in range(10):
        for rank in range(4):
            begin = step * 100 * MS
            late = begin + (30 * MS if rank >= 2 else 0)
            start, own = (late, rank) if rank == 2 else (begin, rank)
            held = 10 if asynchronous else late - start + 10
            shared: dict[str, Any] = {"step": step, "group_size": 2, "asynchronous": asynchronous}
            call(
                builder,
                own,
                step,
                start,
                late + 20,
                group=f"tp{rank // 2}",
                duration_ns=held,
                **shared,
            )
            call(builder, own, step, late + 30, begin + 40 * MS, group=f"dp{rank % 2}", **shared)
    found = stragglers(open_run(builder.write()))
    assert sorted(one.rank or 0 for one in found) == ([2, 3] if asynchronous else [2])
    assert all(29 * MS < one.evidence["delay_ns"] <= 30 * MS + 100 for one in found)


def test_a_single_rank_has_no_straggler(tmp_path: Path) -> None:
    builder = builder_of(tmp_path, 1)
    builder.op(START_NS, 10)
    with pytest.raises(NotApplicable, match="single rank"):
        stragglers(open_run(builder.write()))


def test_overlap_of_communication_and_computation(tmp_path: Path) -> None:
    builder = builder_of(tmp_path, 1)
    call(builder, 0, 0, 100, 300, group_size=1)  # 200 of communication, its call takes 10
    builder.op(START_NS + 0, 150)
    builder.op(START_NS + 105, 2, "c10d::allreduce_", depth=1)
    builder.op(START_NS + 250, 100)
    run = open_run(builder.write())
    # Computed from 0 to 150 and from 250 to 350, but not while the thread is in the call.
    assert comm_compute_overlap(run, 0) == (40 + 50) / 200


def test_overlap_by_step(tmp_path: Path) -> None:
    builder = builder_of(tmp_path, 1)
    builder.phase(START_NS, 400, "forward", step=0)
    builder.phase(START_NS + 400, 100, "optimizer", step=0)
    call(builder, 0, 0, 100, 300, group_size=1)
    builder.op(START_NS + 200, 200)
    (row,) = communication(open_run(builder.write())).to_dict("records")
    assert row == {
        "rank": 0,
        "step": 0,
        "length_ns": 500,
        "communication_ns": 200,
        "computation_ns": 200,
        "overlap_ns": 100,
        "exposed_ns": 100,
        "idle_ns": 200,
        "overlap": 0.5,
    }


def test_without_communication_there_is_no_overlap(tmp_path: Path) -> None:
    builder = builder_of(tmp_path, 1)
    builder.op(START_NS, 10)
    assert comm_compute_overlap(open_run(builder.write()), 0) is None


@pytest.mark.parametrize(
    ("name", "ranks", "factor"),
    [
        ("all_reduce", 4, 1.5),
        ("all_gather_into_tensor", 4, 0.75),
        ("reduce_scatter_tensor", 8, 0.875),
        ("all_to_all_single", 2, 0.5),
        ("broadcast", 4, 1.0),
        ("send", 2, 1.0),
        ("barrier", 4, None),
    ],
)
def test_bus_factors_of_nccl_tests(name: str, ranks: int, factor: float | None) -> None:
    assert bus_factor(name, ranks) == factor


def test_bandwidth_at_the_transfer_time(tmp_path: Path) -> None:
    builder = builder_of(tmp_path)
    for rank, start in ((0, 0), (1, 500)):
        call(builder, rank, 0, start, 1500, bytes=4000)
    table = collectives(open_run(builder.write()))
    assert table["transfer_p50_ns"].tolist() == [1000]
    assert table["algbw_gbs"].tolist() == [4.0]  # 4000 bytes in 1000 ns
    assert table["busbw_gbs"].tolist() == [4.0]  # 2 (n - 1) / n is 1 for two ranks
    assert operation_bytes("all_gather", 1000, 4) == 4000
