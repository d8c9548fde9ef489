"""A journal with a damaged record opens, or is rejected in one sentence."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from itertools import islice
from pathlib import Path

import pytest

from lanescope.collector.compaction.compact import compact
from lanescope.collector.compaction.decode import Decoder
from lanescope.collector.compaction.reader import JournalError, read_process
from lanescope.webapp.analysis.checks import check
from lanescope.webapp.commands.info import summary
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.run import open_run
from lanescope.webapp.timeline.timeline import Timeline
from tests.support.damaged_journals import (
    Change,
    changed,
    changes,
    changes_of_all,
    failures,
    write_journal,
)


class Journal:
    """A run with one journal that is damaged in another way each time."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.segment = write_journal(run)
        self.data = self.segment.read_bytes()

    def decoded(self, change: Change) -> None:
        self.segment.write_bytes(changed(self.data, change))
        try:
            decoder = Decoder(read_process(self.segment.parent))
        except JournalError:
            return
        for _ in decoder.thread_tables():
            pass
        decoder.rank_tables()

    def opened(self, change: Change, *, whole: bool = False) -> None:
        self.segment.write_bytes(changed(self.data, change))
        try:
            run = open_run(self.run)
        except RunError as error:
            if "\n" in str(error):
                raise
            return
        json.dumps(summary(run), allow_nan=False)
        for table in filter(run.counts.get, run.counts):
            run.events(table)
        timeline = Timeline.open(run)
        timeline.tile(12, 0, list(range(len(timeline.index.lanes))))
        if whole:
            report = check(run)
            json.dumps(report.to_json(), allow_nan=False)
            assert not report.faults, report.faults

    def checked(self, change: Change) -> None:
        self.opened(change, whole=True)


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Journal:
    return Journal(tmp_path_factory.mktemp("journal") / "run")


@pytest.mark.slow
def test_every_field_of_every_kind_of_record(journal: Journal) -> None:
    wanted = list(changes(journal.data))
    assert len(wanted) > 3000
    assert failures(journal.decoded, wanted[::20]) == []


@pytest.mark.slow
def test_a_run_with_such_a_journal(journal: Journal) -> None:
    wanted = list(changes_of_all(journal.data))
    assert failures(journal.opened, wanted[::14]) == []
    assert failures(journal.checked, islice(wanted, 3, None, 70)) == []


def test_a_damaged_header_is_named(journal: Journal) -> None:
    journal.segment.write_bytes(b"\0" * 8 + journal.data[8:])
    with pytest.raises(RunError, match=r"no event can be read; .*\.lsj: is not a journal segment"):
        open_run(journal.run)


WRONG = (None, -1, 2**63, 10**400, 1.5, float("nan"), "x", [], {"a": [1]}, True)


def test_a_damaged_description_of_the_process(journal: Journal, tmp_path: Path) -> None:
    file = journal.segment.parent / "process.json"
    whole = file.read_text()
    journal.segment.write_bytes(journal.data)
    try:
        for name in json.loads(whole):
            for value in WRONG:
                file.write_text(json.dumps({**json.loads(whole), name: value}))
                with suppress(RunError):
                    summary(open_run(journal.run))
        for name in ("rank", "end_ns", "coverage"):
            file.write_text(json.dumps({**json.loads(whole), name: "x"}))
            run = tmp_path / name
            ended = run / "journal" / "4194305-1"  # no process has that number
            shutil.copytree(journal.segment.parent, ended)
            shutil.copy(journal.run / "manifest.json", run)
            compact(run)  # sets it aside, and finishes the run without it
            assert list(run.glob("journal/unreadable-*"))
    finally:
        file.write_text(whole)


@pytest.mark.slow
@pytest.mark.soak
def test_all_of_that(journal: Journal) -> None:
    assert failures(journal.decoded, changes(journal.data)) == []
    assert failures(journal.checked, islice(changes_of_all(journal.data), 0, None, 3)) == []
