"""The journal: stored records come back, torn ones do not."""

from __future__ import annotations

import os
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lanescope.collector.compaction.reader import (
    JournalError,
    read_process,
    read_records,
    read_texts,
)
from lanescope.collector.journal import journal
from lanescope.collector.journal.journal import RecordKind, write_json
from lanescope.collector.journal.segment_ring import Ring
from lanescope.collector.journal.string_table import StringTable
from lanescope.collector.journal.writer import ThreadJournal
from tests.support import ROOT
from tests.support.processes import run_program


def new_journal(folder: Path, ordinal: int = 0, ring: Ring | None = None) -> ThreadJournal:
    write_json(folder / journal.PROCESS_FILE, {"pid": 7, "rank": 0})
    return ThreadJournal(
        folder, pid=7, ordinal=ordinal, native_id=11, kind=1, created_ns=5, ring=ring
    )


def put(target: ThreadJournal, value: int, kind: RecordKind = RecordKind.OP) -> None:
    target.append(kind, 1, 2, value, 10 * value, 10 * value + 5, -1, 3, 4, 5, 6, 7, 8, -9)


def test_every_field_comes_back(tmp_path: Path) -> None:
    written = new_journal(tmp_path, ordinal=3)
    written.append(
        RecordKind.OP, 1, 65535, 2**32 - 1, -(2**63), 2**63 - 1, -1, -2, 4, 5, 6, 7, 8, -9
    )
    written.close()
    (thread,) = read_process(tmp_path).threads
    (records,) = thread.records()
    assert (thread.ordinal, thread.native_id, thread.kind, thread.pid) == (3, 11, 1, 7)
    assert records[0].item() == (
        RecordKind.OP,
        1,
        65535,
        2**32 - 1,
        -(2**63),
        2**63 - 1,
        -1,
        -2,
        4,
        5,
        6,
        7,
        8,
        -9,
    )


def test_records_fill_segment_after_segment_in_order(tmp_path: Path) -> None:
    written = new_journal(tmp_path)
    for value in range(5_000):
        put(written, value)
    written.close()
    (thread,) = read_process(tmp_path).threads
    names = [int(n) for records in thread.records() for n in records["name"]]
    assert names == list(range(5_000))
    assert len(thread.segments) == 3
    # The last segment gave back what it did not need.
    used = sum(p.stat().st_size for p in thread.segments)
    assert used == 3 * journal.HEADER_BYTES + 5_000 * journal.RECORD_BYTES


def test_a_process_that_got_two_signals(tmp_path: Path) -> None:
    new_journal(tmp_path).close()
    (tmp_path / journal.ENDED_FILE).write_text("signal SIGTERMsignal SIGINT")
    assert read_process(tmp_path).process["ended"] == "signal SIGTERM"


def test_a_record_without_its_kind_is_skipped(tmp_path: Path) -> None:
    written = new_journal(tmp_path)
    for value in range(3):
        put(written, value)
    written.close()
    path = tmp_path / journal.segment_file(0, 0)
    data = bytearray(path.read_bytes())
    data[journal.HEADER_BYTES + journal.RECORD_BYTES] = RecordKind.NONE
    path.write_bytes(data[:-1])  # and the third one is cut short
    assert read_records(path)["name"].tolist() == [0]


def test_open_events_are_known_until_they_end(tmp_path: Path) -> None:
    written = new_journal(tmp_path)
    for level in range(journal.OPEN_CAPACITY + 5):  # deeper than there is room for
        written.push_open(level, RecordKind.PHASE, 2, 100 + level, level, 0, 0)
    for level in reversed(range(2, journal.OPEN_CAPACITY + 5)):
        written.pop_open(level)
    for value in range(2_000):  # into the next segment
        put(written, value)
    (thread,) = read_process(tmp_path).threads
    assert thread.open_events()["name"].tolist() == [100, 101]
    assert set(thread.open_events()["end"].tolist()) == {0}


def test_texts_are_on_disk_before_their_id_is_known(tmp_path: Path) -> None:
    texts = StringTable()
    early = texts.intern("before the folder")
    texts.attach(tmp_path)
    late = texts.intern("après")
    assert (texts.intern(""), early, late, texts.intern("après")) == (0, 1, 2, 2)
    assert read_texts(tmp_path) == ("", "before the folder", "après")
    with (tmp_path / journal.STRINGS_FILE).open("ab") as file:
        file.write(b"\xff\x00\x00\x00cut")  # a text that a death cut short
    assert read_texts(tmp_path) == ("", "before the folder", "après")


def test_texts_keep_their_ids_in_a_forked_child(tmp_path: Path) -> None:
    texts = StringTable()
    (tmp_path / "parent").mkdir()
    (tmp_path / "child").mkdir()
    texts.attach(tmp_path / "parent")
    assert texts.intern("a") == 1
    texts.detach()
    texts.attach(tmp_path / "child")
    assert texts.intern("b") == 2
    assert read_texts(tmp_path / "child") == ("", "a", "b")
    assert read_texts(tmp_path / "parent") == ("", "a")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (journal.PROCESS_FILE, b"{"),
        (journal.PROCESS_FILE, b"[]"),
        (journal.PROCESS_FILE, b"\xff\xfe"),
    ],
)
def test_other_files_are_rejected_in_a_sentence(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(JournalError, match=r"process\.json"):
        read_process(tmp_path)


def test_a_damaged_segment_is_left_out_and_named(tmp_path: Path) -> None:
    put(new_journal(tmp_path), 1)
    (tmp_path / journal.segment_file(1, 0)).write_bytes(b"no journal")
    log = read_process(tmp_path)
    assert [t.ordinal for t in log.threads] == [0]
    assert "t00001-00000.lsj: is not a journal segment" in log.damage[0]


@pytest.mark.parametrize(
    ("segment", "length", "said"),
    [
        (0, journal.HEADER_BYTES + 7 * journal.RECORD_BYTES, "4,544"),  # another one follows
        (0, journal.HEADER_BYTES + 7 * journal.RECORD_BYTES + 9, "4,553"),
        (2, journal.HEADER_BYTES + 7 * journal.RECORD_BYTES + 9, "4,553"),
        (2, journal.HEADER_BYTES + 7 * journal.RECORD_BYTES, ""),  # as a thread that ended trims it
    ],
)
def test_a_segment_that_was_cut_off_is_read_up_to_there_and_named(
    tmp_path: Path, segment: int, length: int, said: str
) -> None:
    written = new_journal(tmp_path)
    for value in range(5_000):
        put(written, value)
    assert read_process(tmp_path).damage == ()  # while it is being written
    written.close()
    path = tmp_path / journal.segment_file(0, segment)
    os.truncate(path, length)
    log = read_process(tmp_path)
    assert len(list(log.threads[0].records())[segment]) == 7
    expected = f"{path}: was cut off at {said} bytes; records behind them are missing"
    assert log.damage == ((expected,) if said else ())


def test_a_full_disk_drops_records_and_says_so(tmp_path: Path) -> None:
    """A real limit on file size, in a process of its own: the next segment finds no room."""
    script = f"""
        import resource
        from pathlib import Path
        from tests.collector.journal.test_journal import new_journal, put
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        written = new_journal(Path({str(tmp_path)!r}))
        for value in range(3_000):
            put(written, value)
        written.close()
        print(written.dropped, written.failure.strerror)
    """
    done = run_program([sys.executable, "-c", textwrap.dedent(script)], folder=ROOT)
    assert done.returncode == 0, done.stderr
    kept = (journal.FIRST_SEGMENT_BYTES - journal.HEADER_BYTES) // journal.RECORD_BYTES
    assert done.stdout.split(maxsplit=1) == [str(3_000 - kept), "File too large\n"]
    (thread,) = read_process(tmp_path).threads
    assert [len(r) for r in thread.records()] == [kept]


def test_what_comes_after_the_close_is_neither_stored_nor_counted_as_lost(tmp_path: Path) -> None:
    written = new_journal(tmp_path)
    put(written, 1)
    written.close()
    put(written, 2)
    written.push_open(0, RecordKind.PHASE, 0, 1, 1, 0, 0)
    written.pop_open(0)
    assert (written.dropped, written.failure) == (0, None)
    assert read_records(tmp_path / journal.segment_file(0, 0))["name"].tolist() == [1]


def test_a_thread_that_writes_while_another_closes_is_safe(tmp_path: Path) -> None:
    for trial in range(10):
        folder = tmp_path / str(trial)
        folder.mkdir()
        written = new_journal(folder)
        begun, stop = threading.Event(), threading.Event()
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write_until, written, begun, stop)
            begun.wait()
            written.close()
            stop.set()
            writing.result()
        assert written.dropped == 0


def write_until(written: ThreadJournal, begun: threading.Event, stop: threading.Event) -> None:
    while not stop.is_set():
        put(written, 1)
        written.push_open(0, RecordKind.PHASE, 0, 1, 1, 0, 0)
        written.pop_open(0)
        begun.set()
