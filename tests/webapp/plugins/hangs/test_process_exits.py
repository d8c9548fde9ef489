"""Which rank ended a job, by how all of them ended, on runs made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lanescope.collector.format import schema
from lanescope.webapp.analysis.process_exits import endings
from lanescope.webapp.analysis.rank_state import rank_states
from lanescope.webapp.plugins.hangs.hangs import hangs
from lanescope.webapp.runs.run import Run, open_run
from tests.support.synthetic import START_NS, Builder

MS = 1_000_000
LIFE = 4_000 * MS
"""All ranks live so long, or a little less or longer."""

LOST = "RuntimeError: Read error [127.0.0.1]:41135: Connection reset by peer (train.py:9)"
RAISED = "ValueError: bad batch (/home/u/train.py:12)"
STOPPED = f"{schema.STOPPED}: SIGTERM came while the command ran"


def rank(ended: str, *, calls: int = 10, after_ms: int = 0, exception: str = "") -> dict[str, Any]:
    """A rank with some calls that ended at LIFE and some ms, as `ended` says."""
    return {"ended": ended, "calls": calls, "after_ms": after_ms, "exception": exception}


KILLED = rank("")
"""SIGKILL leaves no word."""


def begin(builder: Builder, number: int, one: dict[str, Any], end: int) -> str:
    """Lists the process of a rank and returns its thread."""
    builder.process(
        number,
        engine="native",
        start_ns=START_NS,
        end_ns=end,
        ended=one["ended"],
        closed=one["ended"] in ("exit", "exception"),
        exception=one["exception"],
    )
    return builder.thread(number)


def stall(builder: Builder, number: int, at: int, duration: int, **columns: str) -> None:
    """Adds what the watchdog of a rank saw of its main thread."""
    pid = 1000 + number
    thread = schema.thread_id(pid, 0)
    place = {"time_ns": at, "duration_ns": duration, "pid": pid, "thread": thread}
    builder.row("stall", number, None, **place, **columns)


def job(
    path: Path,
    *ranks: dict[str, Any],
    stuck: tuple[int, str] | None = None,
    working: int | None = None,
    **manifest: Any,
) -> Run:
    """A job whose ranks make a call every 400 ms, all of them complete but one that others miss.

    What one of them waits for may be seen by its watchdog as it ends: (rank, what). One may work
    until it ends.
    """
    builder = Builder(path, world_size=len(ranks), **{"exit_status": 1, **manifest})
    least = min(one["calls"] for one in ranks)
    for number, one in enumerate(ranks):
        end = START_NS + LIFE + one["after_ms"] * MS
        thread = begin(builder, number, one, end)
        starts = START_NS + np.arange(one["calls"]) * 400 * MS
        complete = [at + 5 * MS if at < starts[0] + least * 400 * MS else None for at in starts]
        builder.rows(
            "collective",
            number,
            thread,
            start_ns=starts,
            duration_ns=MS,
            complete_ns=complete,
            name="all_reduce",
            group="0",
            group_size=len(ranks),
            sequence=np.arange(one["calls"]),
        )
        if one["ended"].startswith("signal"):
            last_op = "aten::mm" if number == working else ""
            stall(builder, number, end, 0, name="main", reason="signal", last_op=last_op)
        if number == working:
            builder.rows(
                "op",
                number,
                thread,
                start_ns=np.arange(START_NS, end, 100 * MS),
                duration_ns=MS,
                name="aten::mm",
            )
        if stuck is not None and stuck[0] == number:
            at = end - 500 * MS
            stall(builder, number, at, LIFE, name="MainThread", reason="quiet", waiting=stuck[1])
    return open_run(builder.write())


def findings_of(run: Run) -> list[tuple[str, tuple[int, ...]]]:
    return [(one.kind, one.ranks) for one in hangs(run)]


TERM = rank("signal SIGTERM", after_ms=90)


@pytest.mark.parametrize(
    ("ranks", "how"),
    [
        # The launcher ended the others before they came to the next call, or in it.
        ((TERM, KILLED, TERM), "died"),
        ((rank("signal SIGTERM", calls=11, after_ms=90), KILLED, TERM), "died"),
        ((TERM, rank("signal SIGSEGV"), TERM), "died"),
        ((TERM, rank("exception", exception=RAISED), TERM), "raised"),
        # They lost the connection.
        ((rank("exception", calls=11, exception=LOST), KILLED), "died"),
    ],
)
def test_the_rank_that_began_is_named(
    tmp_path: Path, ranks: tuple[dict[str, Any], ...], how: str
) -> None:
    run = job(tmp_path / "run", *ranks)
    assert endings(run)[1].how == how
    assert findings_of(run) == [("hang", (1,))]
    (found,) = hangs(run)
    assert (found.severity, found.evidence["group"], found.evidence["sequence"]) == (
        "error",
        "0",
        10,
    )
    assert found.title.startswith("Rank 1 ")


@pytest.mark.parametrize(
    ("after_ms", "waits_for", "said"),
    [
        # Killed at the end of a long wait, a moment before the rank that lost its connection.
        (
            9_000,
            "an item of a queue",
            "died after 9.40 s without a record; MainThread waits for an item of a queue",
        ),
        # Killed as it worked; the other one noticed long afterwards.
        (0, "", "died, last seen 9.30 s before the recording ended; did all_reduce last"),
        # The same, noticed at once.
        (8_900, "", "died after 9.30 s without a record; did all_reduce last"),
    ],
)
def test_a_death_is_distinguished_from_the_silence_before_it(
    tmp_path: Path, after_ms: int, waits_for: str, said: str
) -> None:
    lost = rank("exception", calls=11, exception=LOST, after_ms=9_300)
    stuck = (1, waits_for) if waits_for else None
    (found,) = hangs(job(tmp_path, lost, rank("", after_ms=after_ms), stuck=stuck))
    (missing,) = found.evidence["missing"]
    assert missing["doing"] == said
    assert said in found.title


def test_ranks_that_were_killed_together_did_not_die_before_each_other(tmp_path: Path) -> None:
    """The watchdog of one looked a second later than that of the other."""
    killed = [rank("", calls=11, after_ms=9_800), rank("", after_ms=9_000)]
    (found,) = hangs(job(tmp_path, *killed, stuck=(1, "queue.get")))
    (missing,) = found.evidence["missing"]
    assert missing["doing"] == "MainThread waits for queue.get"


def test_a_rank_that_worked_until_another_gave_up_is_said_to_have_worked(tmp_path: Path) -> None:
    timed_out = "RuntimeError: Timed out waiting 7000ms for recv operation (train.py:9)"
    gave_up = rank("exception", calls=11, exception=timed_out, after_ms=7_000)
    ended = rank("signal SIGTERM", after_ms=7_090)
    (found,) = hangs(job(tmp_path, gave_up, ended, working=1))
    assert (found.kind, found.severity, found.rank) == ("straggler", "error", 1)
    assert found.title == (
        "Rank 1 had not come to all_reduce #10 when rank 0 gave up, 7.00 s after rank 0 came, but "
        "was still at work: MainThread did aten::mm last. Shorten that work, or raise the timeout "
        "of the process group."
    )


INTERRUPTED = rank("exception", exception="KeyboardInterrupt: (train.py:7)")


@pytest.mark.parametrize(
    ("ranks", "notes"),
    [
        # Stopped by a signal to all, which comes to one a little earlier than to another.
        ((TERM, rank("signal SIGTERM", calls=11, after_ms=95), TERM), []),
        ((INTERRUPTED, rank("exception", calls=11, exception=LOST)), []),
        ((INTERRUPTED, {**INTERRUPTED, "calls": 11, "after_ms": 1500}), []),
        # With a handler of its own, which ends one at once and lets another lose its connection.
        ((rank("exit"), rank("exception", calls=11, exception=LOST, after_ms=700)), [STOPPED]),
        # Who has a handler that leaves without a word has not died.
        ((TERM, KILLED), [STOPPED]),
        # Killed as a whole: nothing was left to note anything.
        ((KILLED, KILLED), []),
        # It went on after SIGTERM had come, and was killed when the launcher's patience ended.
        ((TERM, rank("", after_ms=30_000)), []),
    ],
)
def test_a_job_that_was_stopped_has_no_rank_that_died(
    tmp_path: Path, ranks: tuple[dict[str, Any], ...], notes: list[str]
) -> None:
    assert findings_of(job(tmp_path / "run", *ranks, notes=notes)) == []


def test_a_rank_that_ended_early_was_not_stopped(tmp_path: Path) -> None:
    waits = rank(
        "exception", calls=11, exception="KeyboardInterrupt: (train.py:7)", after_ms=60_000
    )
    run = job(tmp_path / "run", waits, rank("exit"))
    assert endings(run)[1].how == "exit"
    assert findings_of(run) == [("collective_mismatch", (0, 1))]


def test_a_rank_that_alone_was_asked_to_end_is_said_to_have_been(tmp_path: Path) -> None:
    alone = rank("signal SIGTERM")
    run = job(tmp_path / "run", rank("exception", calls=11, exception=LOST, after_ms=40), alone)
    (found,) = hangs(run)
    assert "; rank 1 was stopped by SIGTERM." in found.title


def test_workers_of_rpc_lose_the_one_that_crashed(tmp_path: Path) -> None:
    eof = "RuntimeError: eof (this error originated at shm/connection_impl.cc:259) (train.py:9)"
    run = job(tmp_path, rank("signal SIGSEGV", calls=0), rank("exception", calls=0, exception=eof))
    assert endings(run)[1].how == "gave up"
    (found,) = hangs(run)
    assert found.title.startswith("Rank 0 died of SIGSEGV")


@pytest.mark.parametrize(
    ("crashed", "thread", "said"),
    [
        (1000, "1000-0", "; did all_reduce last"),
        (1001, "1000-1", "; its thread Thread-1 did aten::add_ last"),
        (7, "1000-0", "; in a thread that recorded nothing; main did all_reduce last"),
    ],
)
def test_the_thread_that_crashed_is_named(
    tmp_path: Path, crashed: int, thread: str, said: str
) -> None:
    builder = Builder(tmp_path, exit_status=1)
    main = begin(builder, 0, rank("signal SIGSEGV"), START_NS + MS)
    builder.manifest["processes"][0]["ended_thread"] = crashed
    other = builder.thread(0, ordinal=1)
    for table, one, name in (("collective", main, "all_reduce"), ("op", other, "aten::add_")):
        builder.rows(table, 0, one, start_ns=[START_NS], duration_ns=[MS], name=name)
    state = rank_states(open_run(builder.write()))[0]
    assert state.activity == f"died of SIGSEGV{said}"
    assert state.thread == thread


MONITORED = (
    "RuntimeError: [Rank 0]: Ranks 1 failed to pass monitoredBarrier in 3000 ms (train.py:9)"
)


def test_who_waited_in_a_monitored_barrier_did_not_fail_by_itself(tmp_path: Path) -> None:
    run = job(tmp_path, rank("exception", exception=MONITORED), rank("signal SIGTERM", calls=9))
    assert endings(run)[0].how == "gave up"
    assert findings_of(run) == [("hang", (1,))]


@pytest.mark.parametrize(("stopped_after_ms", "kinds"), [(0, []), (90, ["hang"])])
def test_who_lost_a_peer_that_was_ended_did_not_hang(
    tmp_path: Path, stopped_after_ms: int, kinds: list[str]
) -> None:
    """A launcher is asked to stop, unrecorded: it ends its ranks one after the other."""
    stopped = rank("signal SIGTERM", after_ms=stopped_after_ms)
    lost = rank("exception", after_ms=26, exception=LOST)
    assert [kind for kind, _ in findings_of(job(tmp_path, stopped, lost))] == kinds
