"""A rank that never joins the others, and those that wait for it, without any collective."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from lanescope.collector.compaction import manifest
from lanescope.collector.compaction.compact import compact
from lanescope.collector.format.options import Options
from lanescope.collector.hooks.collectives import init_process_group
from lanescope.collector.hooks.stacks import Stacks
from lanescope.collector.recorder.recorder import Recorder
from lanescope.collector.session.session import _process
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.plugins.hangs.hangs import hangs
from lanescope.webapp.runs.run import Run, RunError, open_run

Start = Callable[[int], Recorder]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Begins to record this process as one of two ranks."""
    run = tmp_path / "run"
    manifest.create(run, Options(), ["train.py"], world_size=1)
    monkeypatch.setenv("WORLD_SIZE", "2")

    def as_rank(rank: int) -> Recorder:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        recorder = Recorder(run, Options())
        recorder.describe(**_process(Options()), engine="portable")
        return recorder

    return as_rank


def join(recorder: Recorder, seconds: float = 1.2) -> None:
    """Rank 0 really waits for a rank that does not come, until its patience ends."""
    undo = init_process_group.install(recorder, Stacks(recorder.intern, 15))
    limit = timedelta(seconds=seconds)
    store = f"file://{recorder.run}.store"
    try:
        with pytest.raises(RuntimeError, match=r"(?i)time.?out|timed out") as error:
            dist.init_process_group("gloo", store, limit, rank=0, world_size=2)
        recorder.describe(exception=f"RuntimeError: {error.value}"[:300], ended="exception")
    finally:
        undo()
    recorder.close()


def ended(recorder: Recorder) -> Run:
    compact(recorder.run, exit_status=1)
    return open_run(recorder.run)


def the_finding(run: Run) -> Finding:
    (found,) = hangs(run)
    (link,) = run.events("collective")["name"].to_pylist()
    assert link == "init_process_group"
    assert (found.where or "").startswith(("test_init_process_group.py:", "train.py:"))
    return found


def test_a_rank_that_raised_before_it_joined_is_named(start: Start) -> None:
    join(first := start(0))
    second = start(1)
    init_process_group.install(second, Stacks(second.intern, 15))()
    second.describe(exception="ValueError: no such config (train.py:4)", ended="exception")
    second.close()
    found = the_finding(ended(first))
    assert (found.kind, found.severity, found.where) == ("hang", "error", "train.py:4")
    assert found.title.startswith(
        "Rank 1 never entered init_process_group: raised ValueError: no such config at train.py:4. "
        "Rank 0 waits there"
    )
    assert found.evidence["waiting"] == [0]


def test_a_rank_that_left_without_joining_is_named(start: Start) -> None:
    join(first := start(0))
    second = start(1)
    init_process_group.install(second, Stacks(second.intern, 15))()
    second.close()
    found = the_finding(ended(first))
    assert found.kind == "collective_mismatch"
    assert "rank 1 ended without it" in found.title


def test_a_rank_that_was_never_started_is_named(start: Start) -> None:
    join(first := start(0))
    found = the_finding(ended(first))
    assert found.kind == "hang"
    assert found.title.endswith("Rank 1 was not recorded: record all ranks.")


def test_who_joined_leaves_no_call(start: Start) -> None:
    recorder = start(0)
    undo = init_process_group.install(recorder, Stacks(recorder.intern, 15))
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    dist.destroy_process_group()
    undo()
    recorder.close()
    run = ended(recorder)
    assert (run.ranks, run.counts["collective"]) == ((0,), 0)


def test_what_a_rank_starts_in_turn_is_not_taken_for_it(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = start(0)
    init_process_group.install(rank, Stacks(rank.intern, 15))()
    monkeypatch.setattr("os.getppid", lambda: rank.process["pid"])
    helper = start(0)
    init_process_group.install(helper, Stacks(helper.intern, 15))()
    assert (rank.folder is not None, helper.folder) == (True, None)


def test_a_launcher_does_not_count_as_a_rank(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = start(0)
    monkeypatch.delenv("LOCAL_RANK")
    init_process_group.install(launcher, Stacks(launcher.intern, 15))()
    launcher.close()
    assert launcher.folder is None
    with pytest.raises(RunError):
        ended(launcher)
