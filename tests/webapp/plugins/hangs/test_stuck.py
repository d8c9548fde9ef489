"""Calls that all ranks made and that did not end, sends that meet receives of something else, and
jobs that were started again: on runs made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lanescope.webapp.analysis.collective_calls import group_members
from lanescope.webapp.analysis.findings import NotApplicable, findings
from lanescope.webapp.plugins.collectives.mismatches import mismatches
from lanescope.webapp.plugins.hangs.hangs import hangs
from lanescope.webapp.plugins.learning.consistency import rank_divergence
from lanescope.webapp.runs.run import Run, open_run
from lanescope.webapp.ui.finding_places import marks_of
from tests.support.synthetic import START_NS, Builder

S = 1_000_000_000
GAVE_UP = {
    "ended": "exception",
    "exception": "RuntimeError: Timed out waiting 3000ms (train.py:9)",
}
WENT_WELL = {"ended": "exit"}


def call(builder: Builder, rank: int, at: int, name: str, done: bool, **columns: Any) -> None:
    """A call of 1 ms, `at` seconds after the start."""
    start = START_NS + at * S
    pid = columns.pop("pid", 1000 + rank)
    values = {"group": "0", "group_size": 2, "shapes": "[64]", "dtypes": "float32"}
    values |= {"complete_ns": start + 2_000_000 if done else None, **columns}
    builder.row(
        "collective",
        rank,
        f"{pid}-0",
        start_ns=start,
        duration_ns=1_000_000,
        name=name,
        **values,
    )


def job(path: Path, ending: dict[str, Any], *calls: tuple[int, str, dict[str, Any]]) -> Run:
    """Two ranks after an all_reduce; each call is (rank, name, columns), none of them ends if the
    ranks gave up, 4 s later."""
    failed = ending is GAVE_UP
    builder = Builder(path, world_size=2, exit_status=int(failed))
    for rank in (0, 1):
        builder.process(rank, start_ns=START_NS, end_ns=START_NS + 6 * S, **ending)
        call(builder, rank, 1, "all_reduce", True, sequence=0)
    for rank, name, columns in calls:
        call(builder, rank, 2, name, not failed, **columns)
    return open_run(builder.write())


def both(name: str, shapes: tuple[str, str] = ("[64]", "[64]")) -> list[Any]:
    return [(rank, name, {"sequence": 1, "shapes": shapes[rank]}) for rank in (0, 1)]


def exchange(*columns: dict[str, Any]) -> list[Any]:
    """Sends of rank 0 and receives of rank 1, by turns."""
    return [
        (k % 2, ("send", "recv")[k % 2], {"sequence": k // 2, "peer": 1 - k % 2, **one})
        for k, one in enumerate(columns)
    ]


def test_where_a_rank_never_came_is_marked_on_its_lane(tmp_path: Path) -> None:
    run = job(tmp_path / "short", GAVE_UP, (0, "all_reduce", {"sequence": 1}))
    found = [one for one in findings(run) if one.evidence.get("missing")]
    assert {one.kind for one in found} <= {"hang", "collective_mismatch"}
    (mark,) = marks_of(run, found[0])
    assert (mark.lane, mark.words, mark.missing) == ("1/1001-0", "rank 1 never came", True)
    assert (mark.start_ns, mark.end_ns) == (S, run.duration_ns)  # 1 s after the first record


def test_a_call_that_all_made_and_that_did_not_end_is_a_hang(tmp_path: Path) -> None:
    (found,) = hangs(job(tmp_path / "stuck", GAVE_UP, *both("all_to_all_single")))
    assert (found.kind, found.severity, found.ranks) == ("hang", "error", (0, 1))
    assert "entered all_to_all_single #1, and it did not end for 4.0" in found.title
    assert "Check that the sizes agree" in found.title
    assert (found.evidence["waiting"], found.evidence["missing"]) == ([0, 1], [])
    assert hangs(job(tmp_path / "fine", WENT_WELL, *both("all_to_all_single"))) == []


def test_shapes_that_may_differ_are_named_where_the_call_did_not_end(tmp_path: Path) -> None:
    uneven = both("all_gather", ("[64]", "[128]"))
    run = job(tmp_path / "stuck", GAVE_UP, *uneven)
    (found,) = mismatches(run)
    assert (found.evidence["differs"], found.evidence["sequence"]) == ("shape", 1)
    assert hangs(run) == []
    assert mismatches(job(tmp_path / "fine", WENT_WELL, *uneven)) == []


@pytest.mark.parametrize("name", ["all_gather", "all_to_all"])
def test_shapes_of_lists_are_named_where_a_rank_crashed_in_the_call(
    tmp_path: Path, name: str
) -> None:
    first, second = both(name, ("[64]", "[128]"))
    found = mismatches(job(tmp_path, {}, first, (*second[:2], {**second[2], "complete_ns": None})))
    assert [one.evidence["differs"] for one in found] == ["shape"] * (name == "all_gather")


def test_a_rank_that_evaluates_alone_is_why_calls_differ(tmp_path: Path) -> None:
    calls = [
        (0, "broadcast", {"sequence": 1, "phase": "evaluation"}),
        (1, "barrier", {"sequence": 1}),
    ]
    (found,) = mismatches(job(tmp_path, GAVE_UP, *calls))
    assert found.rank == 0
    assert "Rank 0 evaluates alone" in found.title
    calls[0][2].pop("phase")
    (found,) = mismatches(job(tmp_path / "other", GAVE_UP, *calls))
    assert "look for a branch on the rank" in found.title


def test_a_send_and_a_receive_that_met_and_did_not_end(tmp_path: Path) -> None:
    (found,) = hangs(job(tmp_path, GAVE_UP, *exchange({}, {})))
    assert found.kind == "hang"
    assert "Check that their tags agree" in found.title
    assert found.evidence["op"] == {"0": "send", "1": "recv"}


@pytest.mark.parametrize(
    ("columns", "differs"),
    [
        (({"dtypes": "float64"}, {}), "data type"),
        (({"dtypes": "int32"}, {}), "data type"),
        (({}, {"shapes": "[128]"}), "shape"),
        # The same numbers in another shape, and two that tags brought in another order, are fine.
        (({}, {"shapes": "[8, 8]"}), None),
        (({"shapes": "[1]"}, {}, {}, {"shapes": "[1]"}), None),
        # From any sender: which messages meet is not known.
        (({"shapes": "[1]"}, {"peer": None}), None),
    ],
)
def test_sent_and_received_sizes_agree(
    tmp_path: Path, columns: tuple[dict[str, Any], ...], differs: str | None
) -> None:
    run = job(tmp_path, WENT_WELL, *exchange(*columns))
    found = mismatches(run)
    assert [one.evidence["differs"] for one in found] == ([differs] if differs else [])
    for one in found:
        assert one.title.startswith("Rank 0 sends ")
        assert (one.kind, one.evidence["sequence"]) == ("collective_mismatch", 0)
    assert hangs(run) == []


def test_two_calls_that_wait_for_the_same_rank_are_one_finding(tmp_path: Path) -> None:
    builder = Builder(tmp_path, world_size=2, exit_status=1)
    for rank, ending in enumerate((GAVE_UP, {"ended": "", "closed": False})):
        builder.process(rank, start_ns=START_NS, end_ns=START_NS + (6 - rank) * S, **ending)
        call(builder, rank, 1, "all_reduce", True, sequence=0)
    call(builder, 0, 2, "send", False, sequence=0, peer=1)
    call(builder, 0, 3, "barrier", False, sequence=1)
    (found,) = hangs(open_run(builder.write()))
    assert (found.evidence["group"], found.evidence["missing"][0]["rank"]) == ("0", 1)
    assert found.title.count("never entered barrier #1") == 1
    assert [one["op"] for one in found.evidence["also_waiting"]] == ["send"]


@pytest.mark.parametrize(("name", "words"), [("send", "received"), ("recv", "sent")])
def test_a_peer_of_a_send_receives(tmp_path: Path, name: str, words: str) -> None:
    builder = Builder(tmp_path, world_size=2, exit_status=1)
    for rank, ending in enumerate((GAVE_UP, {"ended": "", "closed": False})):
        builder.process(rank, start_ns=START_NS, end_ns=START_NS + (6 - rank) * S, **ending)
        call(builder, rank, 1, "all_reduce", True, sequence=0)
    call(builder, 0, 2, name, False, sequence=0, peer=1)
    (found,) = hangs(open_run(builder.write()))
    assert found.title.startswith(f"Rank 1 never {words} {name} #0 of rank 0: ")


@pytest.mark.parametrize("pending_s", [3, 0])
def test_two_ranks_that_send_first_wait_for_each_other(tmp_path: Path, pending_s: int) -> None:
    """Ctrl-C: one rank is killed, and the send of the other one fails then. Its twin was done with
    a message that its transport keeps."""
    builder = Builder(tmp_path, world_size=2, exit_status=1)
    interrupted = {"ended": "exception", "exception": "KeyboardInterrupt: (/a/train.py:7)"}
    for rank, ending in enumerate(({"ended": "", "closed": False}, interrupted)):
        builder.process(rank, start_ns=START_NS, end_ns=START_NS + 6 * S, **ending)
        call(builder, rank, 1, "all_reduce", True, sequence=0)
    call(builder, 0, 2, "send", False, sequence=0, peer=1)
    failed = START_NS + (2 + pending_s) * S + 3_000_000
    call(builder, 1, 2, "send", True, sequence=0, peer=0, complete_ns=failed)
    found = hangs(open_run(builder.write()))
    titles = [one.title for one in found if one.title.startswith("Ranks wait for each other: ")]
    assert len(titles) == (pending_s > 0)
    assert all("Let one rank receive first" in one for one in titles)


def test_a_rank_that_failed_in_a_call_is_why_the_others_wait_in_it(tmp_path: Path) -> None:
    builder = Builder(tmp_path, world_size=2, exit_status=1)
    raised = {"ended": "exception", "exception": "RuntimeError: sizes (/a/train.py:7)"}
    for rank, ending in enumerate((raised, {"ended": "signal SIGTERM", "closed": False})):
        builder.process(rank, start_ns=START_NS, end_ns=START_NS + 4 * S, **ending)
        call(builder, rank, 1, "all_to_all_single", True, sequence=0)
        call(builder, rank, 2, "all_to_all_single", rank == 0, sequence=1)
    (found,) = hangs(open_run(builder.write()))
    assert (found.kind, found.ranks, found.where) == ("hang", (0,), "train.py:7")
    assert found.title.startswith("Rank 0 failed in all_to_all_single #1: raised RuntimeError")
    assert found.evidence["waiting"] == [1]


def test_a_group_of_the_same_name_is_not_held_against_another(tmp_path: Path) -> None:
    groups = {"1": {"ranks": [0, 1], "description": ""}}
    builder = Builder(tmp_path, world_size=4, groups=groups)
    for rank in range(4):
        shapes = "[64]" if rank < 2 else "[32]"
        for number in range(1 + rank // 2):
            call(
                builder,
                rank,
                1 + number,
                "broadcast",
                True,
                group="1",
                sequence=number,
                shapes=shapes,
            )
    run = open_run(builder.write())
    assert mismatches(run) == []
    assert hangs(run) == []
    assert group_members(run) == {"1": ()}


def test_the_main_process_of_a_spawn_does_not_count_as_a_rank(tmp_path: Path) -> None:
    """It has events of its own, where the program ran an operator before."""
    builder = Builder(tmp_path, world_size=2, exit_status=1)
    raised = {"ended": "exception", "exception": "ProcessExitedException: rank 1 (/a/train.py:7)"}
    builder.process(0, 900, start_ns=START_NS, end_ns=START_NS + 6 * S, **raised)
    for rank, ended in enumerate(("signal SIGTERM", "signal SIGSEGV")):
        life = {"start_ns": START_NS + S // 2, "end_ns": START_NS + (5 - rank) * S}
        builder.process(rank, 1000 + rank, parent_pid=900, ended=ended, closed=False, **life)
        call(builder, rank, 1, "all_reduce", True, sequence=0)
    (found,) = hangs(open_run(builder.write()))
    assert found.ranks == (1,)
    assert found.evidence["ended_by_it"] == [0]


def test_the_last_attempt_of_a_job_is_judged_alone(tmp_path: Path) -> None:
    builder = Builder(tmp_path, world_size=2)
    for attempt, (calls, shapes) in enumerate(((3, "[1]"), (2, "[2]"))):
        begin = 20 * attempt
        for rank in (0, 1):
            pid = 1000 + 10 * attempt + rank
            ended = {"ended": "exit", "exception": ""}
            if (attempt, rank) == (0, 1):
                ended = {"ended": "exception", "exception": "ValueError: first (/a/train.py:7)"}
            builder.process(
                rank,
                pid,
                start_ns=START_NS + begin * S,
                end_ns=START_NS + (begin + 10) * S,
                **ended,
            )
            for number in range(calls + (rank == 0 == attempt)):
                call(
                    builder,
                    rank,
                    begin + number + 1,
                    "all_reduce",
                    number < calls,
                    pid=pid,
                    sequence=number,
                    shapes=shapes,
                )
            builder.row(
                "gradient",
                rank,
                f"{pid}-0",
                time_ns=START_NS + (begin + 2) * S,
                step=0,
                parameter="w",
                numel=1,
                dtype="float32",
                grad_hash=attempt,
                param_hash=attempt,
            )
    run = open_run(builder.write())
    assert mismatches(run) == []
    (found,) = hangs(run)
    assert found.severity == "warning"
    assert found.title.startswith("Rank 1 raised ValueError: first, which ended attempt 1 of 2")
    assert found.where == "train.py:7"
    with pytest.raises(NotApplicable, match="replicas"):
        rank_divergence(run)


@pytest.mark.parametrize("joins", [(0, 1), (0,)])
def test_ranks_that_all_wait_to_join_a_second_time(tmp_path: Path, joins: tuple[int, ...]) -> None:
    """A rank without a call of it has joined, or does something else: then nothing is said."""
    builder = Builder(tmp_path / "run", world_size=2)
    for rank in (0, 1):
        builder.process(rank, end_ns=START_NS + 90 * S, closed=False, ended="")
        call(builder, rank, 1, "all_reduce", True, sequence=0)
    for rank in joins:
        again = {"start_ns": START_NS + 2 * S, "name": "init_process_group", "sequence": 0}
        group = {"group": "rendezvous", "group_size": 2}
        builder.row("collective", rank, f"{1000 + rank}-0", **again, **group)
        seen = {"time_ns": START_NS + 80 * S, "duration_ns": 70 * S, "pid": 1000 + rank}
        thread = {"thread": f"{1000 + rank}-0", "name": "main", "reason": "no_progress"}
        builder.row("stall", rank, None, **seen, **thread)
    found = [one for one in hangs(open_run(builder.write())) if one.kind == "hang"]
    titles = [one.title for one in found]
    assert len(titles) == (len(joins) > 1)
    assert all(one.startswith("Ranks 0-1 entered init_process_group, and it") for one in titles)
    assert all("serves the address of init_method" in one for one in titles)
