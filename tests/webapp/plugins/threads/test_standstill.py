"""Processes that were stopped while their threads waited for each other: runs made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanescope.collector.format import schema
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.plugins.threads.deadlocks import deadlocks
from lanescope.webapp.runs.run import open_run
from tests.support.synthetic import START_NS, Builder

S = 1_000_000_000
WAITER = {"waiting": "a condition"}


def found(
    path: Path,
    main: str,
    *others: dict[str, object],
    child: str | None = None,
    child_cpu: float = 0.0,
    reason: str = "quiet",
    exception: str = "",
    functions: tuple[tuple[str, str], ...] = (),
) -> list[Finding]:
    """Findings about a process that was stopped 9 s after its last record, and that its
    watchdog had seen at rest for 8 s: what its main thread waited for, its others, its child."""
    stopped = f"{schema.STOPPED}: SIGTERM came while the command ran"
    builder = Builder(path, world_size=1, exit_status=143, notes=[stopped])
    life = {"start_ns": START_NS, "end_ns": START_NS + 10 * S, "closed": False}
    builder.process(ended="signal SIGTERM", exception=exception, **life)
    frames = [{"file": file, "line": 1, "function": name} for file, name in functions]
    builder.row("stack", 0, None, stack=0, frames=frames)
    rows = [(builder.thread(), "MainThread", {"waiting": main, "stack": 0})]
    for ordinal, other in enumerate(others, 1):
        rows.append((builder.thread(ordinal=ordinal, name="waiter"), "waiter", other))
    builder.op(START_NS, S)
    for thread, name, doing in rows:
        builder.row(
            "stall",
            0,
            None,
            time_ns=START_NS + 9 * S,
            duration_ns=8 * S,
            pid=1000,
            thread=thread,
            name=name,
            reason=reason,
            **doing,
        )
    if child is not None:
        builder.process(0, 2000, role="child", ended="signal SIGTERM", **life)
        builder.row(
            "stall",
            0,
            None,
            time_ns=START_NS + 9 * S,
            duration_ns=8 * S,
            pid=2000,
            thread=builder.thread(0, 2000),
            name="MainThread",
            reason="quiet",
            waiting=child,
            cpu=child_cpu,
        )
    return deadlocks(open_run(builder.write()))


def test_threads_that_wait_for_each_other_are_reported_after_seconds(tmp_path: Path) -> None:
    raised = "ValueError: bad batch (/home/u/train.py:12)"
    (finding,) = found(tmp_path, "the end of a thread", WAITER, exception=raised)
    assert (finding.kind, finding.severity) == ("deadlock", "error")
    lead = "Deadlock: every thread is blocked: MainThread waits for the end of a thread"
    assert finding.title.startswith(lead)
    assert "; a thread of it raised ValueError: bad batch (train.py:12). " in finding.title
    assert [one["waits_for"] for one in finding.evidence["threads"]] == [
        "the end of a thread",
        "a condition",
    ]


def test_without_an_exception_a_handler_may_wake_them(tmp_path: Path) -> None:
    (finding,) = found(tmp_path / "both", "the end of a thread", WAITER)
    assert (finding.severity, finding.confidence) == ("warning", "likely")
    (finding,) = found(tmp_path / "alone", "a condition")
    assert (finding.severity, finding.confidence) == ("info", "certain")


RESULT = ("/lib/python3.11/concurrent/futures/_base.py", "result")
LOOP = ("/lib/python3.11/asyncio/base_events.py", "run_forever")


@pytest.mark.parametrize(
    ("waits", "called", "severity"),
    [
        ("a condition or event", RESULT, "warning"),
        ("the result of a future", RESULT, "warning"),
        ("a future of asyncio", ("/lib/python3.11/selectors.py", "select"), "info"),
        ("an event", ("/home/u/serve.py", "ready"), "info"),
    ],
)
def test_a_loop_that_waits_for_its_own_task_runs_no_handler(
    tmp_path: Path, waits: str, called: tuple[str, str], severity: str
) -> None:
    (finding,) = found(tmp_path, waits, functions=(called, LOOP))
    assert finding.severity == severity


def test_a_forked_process_that_waits_for_a_lock(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, "the end of another process", child="a lock")
    assert [(one["name"], one["waits_for"]) for one in finding.evidence["threads"]] == [
        ("MainThread", "the end of another process"),
        ("MainThread of process 2000", "a lock"),
    ]
    assert "a forked process has only the thread that forked it" in finding.evidence["advice"]


@pytest.mark.parametrize(
    ("main", "others", "child"),
    [
        ("input", [WAITER], None),  # from outside
        ("the end of a thread", [{"waiting": "the end of a sleep"}], None),
        ("the end of a thread", [{"waiting": "a lock on a file"}], None),
        ("the end of a thread", [{"waiting": "a condition", "cpu": 0.9}], None),  # works
        ("the end of another process", [], None),  # nothing is known about it
        ("the end of another process", [], "a read of a socket"),
    ],
)
def test_what_may_still_come(
    tmp_path: Path, main: str, others: list[dict[str, object]], child: str | None
) -> None:
    assert found(tmp_path / "seconds", main, *others, child=child) == []
    if not any("cpu" in other for other in others):
        assert found(tmp_path / "timeout", main, *others, child=child, reason="no_progress")


def test_a_child_that_may_be_at_work_can_wake_the_others(tmp_path: Path) -> None:
    main, child = "the end of another process", "a lock"
    assert found(tmp_path / "rest", main, child=child)
    assert not found(tmp_path / "work", main, child=child, child_cpu=0.9)
