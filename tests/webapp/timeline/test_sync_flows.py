"""What ties a stretch of one thread to others: starts, joins, and hand-overs."""

from __future__ import annotations

import pytest

from lanescope.webapp.runs.run import open_run
from lanescope.webapp.timeline.flows import SyncFlow, sync_flows
from lanescope.webapp.timeline.span_details import slice_facts
from lanescope.webapp.timeline.timeline import Timeline
from tests.support.synthetic import START_NS, Builder


@pytest.fixture(scope="module")
def timeline(tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    """Main starts a worker at 100, holds a lock until 500, and waits for its end until 900."""
    builder = Builder(tmp_path_factory.mktemp("handovers") / "run")
    pid = builder.process(0)
    main, worker = (builder.thread(0, pid, ordinal) for ordinal in (0, 1))
    rows = [
        (main, 100, 0, "thread_start", worker, None),
        (worker, 150, 0, "thread_begin", main, None),
        (main, 110, 0, "lock_acquire", None, 7),
        (main, 500, 0, "lock_release", None, 7),
        (worker, 300, 210, "lock_acquire", None, 7),
        (worker, 600, 0, "lock_release", None, 7),
        (main, 650, 0, "lock_acquire", None, 7),
        (worker, 800, 0, "thread_end", None, None),
        (main, 700, 200, "thread_join", worker, None),
    ]
    for thread, start, duration, kind, peer, thing in rows:
        builder.row(
            "sync",
            0,
            thread,
            start_ns=START_NS + start,
            duration_ns=duration,
            kind=kind,
            peer=peer,
            object=thing,
        )
    builder.phase(START_NS, 1000, kind="user", name="all of it", thread=main)
    builder.phase(START_NS + 150, 650, kind="user", name="work", thread=worker)
    return Timeline.open(open_run(builder.write()))


def test_everything_that_ties_two_threads(timeline: Timeline) -> None:
    main, worker = (lane for lane in timeline.index.lanes if lane.thread)
    a, b = str(main.thread), str(worker.thread)
    start, lock, join = (
        SyncFlow("start", a, 100, b, 150),
        SyncFlow("lock", a, 500, b, 510),
        SyncFlow("join", b, 800, a, 900),
    )
    assert sync_flows(timeline.run, main, 0, 1000) == [start, lock, join]
    assert sync_flows(timeline.run, worker, 0, 1000) == [start, lock, join]
    assert sync_flows(timeline.run, main, 0, 120) == [start]
    assert sync_flows(timeline.run, worker, 505, 520) == [lock]
    assert sync_flows(timeline.run, main, 850, 1000) == [join]
    assert sync_flows(timeline.run, main, 650, 690) == []  # no thread had to wait for that lock


def test_a_slice_leads_to_what_the_others_did_then(timeline: Timeline) -> None:
    main = next(lane for lane in timeline.index.lanes if lane.label == "MainThread")
    answer = slice_facts(timeline, main.id, 0)["threads"]
    assert [(one["kind"], one["outgoing"], one["name"]) for one in answer] == [
        ("start", True, "work"),
        ("lock", True, "work"),
        ("join", False, "work"),
    ]
