"""A run that is followed while it is recorded: however it ends, its last state is shown."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lanescope.collector.compaction import manifest
from lanescope.collector.compaction.compact import advance, compact
from lanescope.collector.compaction.journal_folders import UNREADABLE, is_abandoned
from lanescope.collector.format import schema
from lanescope.collector.recorder.recorder import Recorder
from lanescope.webapp.analysis.checks import DEFAULTS
from lanescope.webapp.runs import consistent_read, journal_recovery
from lanescope.webapp.runs.growing import growing
from lanescope.webapp.runs.run import Run, open_run
from lanescope.webapp.server import live_run
from lanescope.webapp.server.live_run import Following
from lanescope.webapp.timeline.timeline import Timeline
from tests.support.growing import begin, write_ops
from tests.support.processes import started

OPS = 500


@pytest.fixture(autouse=True)
def in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_run, "POLL_S", 0.01)


def begun(run: Path, **process: Any) -> Recorder:
    recorder = begin(run, **process)
    write_ops(recorder, 0, OPS)
    return recorder


def followed(run: Path, *happens: Callable[[], object]) -> Following:
    """Followed to its end; one thing after the other happens, each while a state opens:
    that state is from before."""
    coming = list(happens)

    def opened(title: str) -> Run:
        found = open_run(title)
        if coming:
            coming.pop(0)()
        return found

    assert growing(run)
    result = Following(Timeline.open(open_run(run)), _answers_nothing, DEFAULTS, opened)
    for thread in result.start():
        thread.join(60)
        assert not thread.is_alive()
    assert not coming
    return result


def _answers_nothing(*_: object) -> Callable[..., list[bytes]]:
    return lambda *_: []


def check_final(found: Following, run: Path, *, complete: bool) -> None:
    answer = found.state()
    last = open_run(run)
    final = Timeline.open(last).etag
    assert not growing(run)
    assert not last.read_at_ns
    assert (answer["etag"], answer["state"], answer["final"]) == (final, "ended", True)
    assert answer["findings"] is not None
    assert last.complete is complete
    assert last.counts["op"] == 4 * OPS


def test_a_run_that_is_finished_while_a_state_is_opened(tmp_path: Path) -> None:
    run = tmp_path / "run"
    recorder = begun(run)
    assert set(open_run(run).read_at_ns) == {(0, os.getpid())}

    def ends() -> None:
        write_ops(recorder, OPS, OPS)
        recorder.close()
        compact(run)

    check_final(followed(run, ends), run, complete=True)


def test_a_compactor_that_goes_on_after_the_end_of_the_program(tmp_path: Path) -> None:
    run = tmp_path / "run"
    recorder = begun(run)

    def ends() -> None:
        write_ops(recorder, OPS, OPS)
        recorder.close()

    check_final(
        followed(run, ends, lambda: advance(run), lambda: None, lambda: compact(run)),
        run,
        complete=True,
    )


def test_a_killed_program_whose_run_is_finished(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with started("true") as gone:
        pass
    recorder = begun(run, pid=gone.pid)
    write_ops(recorder, OPS, OPS)
    check_final(followed(run, lambda: compact(run, exit_status=137)), run, complete=False)


def test_a_killed_program_whose_run_is_never_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_run, "ABANDONED_S", 0.2)
    run = tmp_path / "run"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    recorder = begun(run, pid=gone.pid)
    found = followed(run, lambda: write_ops(recorder, OPS, OPS))
    said, last = found.state(), open_run(run)
    assert growing(run)
    assert (said["state"], said["final"]) == ("unfinished", True)
    assert said["etag"] == Timeline.open(last).etag
    assert said["findings"] is not None
    assert last.counts["op"] == 4 * OPS
    assert not last.read_at_ns  # nothing of it is still to come


def test_a_run_is_not_given_up_while_it_may_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_run, "ABANDONED_S", 0.0)
    run = tmp_path / "run"
    recorder = begun(run)  # of this process, which lives

    def ends() -> None:
        write_ops(recorder, OPS, OPS)
        recorder.close()
        compact(run)

    check_final(followed(run, lambda: None, lambda: None, ends), run, complete=True)


def test_a_dead_program_is_not_given_up_while_its_run_is_converted(tmp_path: Path) -> None:
    run = tmp_path / "run"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    begun(run, pid=gone.pid)
    assert is_abandoned(run)
    with manifest.locked(run):
        assert not is_abandoned(run)
    (journal,) = (run / schema.JOURNAL_FOLDER).iterdir()
    set_aside = journal.rename(journal.with_name(UNREADABLE + journal.name))
    assert is_abandoned(run)
    set_aside.rename(journal)
    compact(run)
    assert not is_abandoned(run)


def test_a_state_that_cannot_be_shown_keeps_back_none_after_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    recorder = begun(run)

    def fails() -> None:
        raise ArithmeticError("of this state alone")

    def ends() -> None:
        write_ops(recorder, OPS, OPS)
        recorder.close()
        compact(run)

    check_final(followed(run, fails, ends), run, complete=True)


def test_a_run_that_is_taken_away_ends_with_what_was_seen(tmp_path: Path) -> None:
    run = tmp_path / "run"
    begun(run)
    found = followed(run, lambda: os.rename(run, tmp_path / "elsewhere"))
    assert (found.state()["state"], found.state()["final"]) == ("ended", True)


def test_rows_that_move_while_a_run_is_read_are_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = begun(tmp_path / "run")
    recorder.close()
    moving = [lambda: compact(tmp_path / "run")]

    def moved(*given: Any) -> journal_recovery.RecoveredJournals:
        if moving:
            moving.pop()()
        return journal_recovery.leftovers(*given)

    monkeypatch.setattr(consistent_read, "leftovers", moved)
    found = open_run(tmp_path / "run")
    assert found.counts["op"] == 2 * OPS
    assert found.complete
