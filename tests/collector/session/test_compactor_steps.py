"""A compactor that has nothing to do reads nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanescope.collector.compaction.chunks import chunks_of
from lanescope.collector.compaction.manifest import load_manifest
from lanescope.collector.compaction.reader import ThreadLog
from lanescope.collector.format.file_names import JOURNAL_FOLDER
from lanescope.collector.session.compactor_process import CompactionSteps
from tests.support.growing import begin, write_ops


def test_a_step_is_taken_where_something_has_changed(tmp_path: Path) -> None:
    recorder = begin(tmp_path)
    write_ops(recorder, 0, 10)
    steps = CompactionSteps(tmp_path)
    first = steps.next()
    assert (first.done, first.behind) == (False, False)
    assert steps.next() is first
    write_ops(recorder, 10, 10)  # into the same segment
    assert steps.next() is first
    write_ops(recorder, 20, 200_000)  # into others
    assert steps.next() is not first
    recorder.close()
    assert steps.next().done
    assert not any((tmp_path / JOURNAL_FOLDER).iterdir())
    rows = [of["rows"] for name, of in load_manifest(tmp_path)["files"].items() if "/op-" in name]
    assert sum(rows) == 2 * 200_020


def test_segments_that_hold_too_little_are_not_read(tmp_path: Path) -> None:
    paths = (tmp_path / "full", tmp_path / "written to")
    for path in paths:
        path.mkdir()  # has a size, and cannot be read
    thread = ThreadLog(0, 1, 0, 1, paths, 0)
    assert not list(chunks_of(thread, ended=False))
    with pytest.raises(OSError, match="full"):
        list(chunks_of(thread, ended=True))
