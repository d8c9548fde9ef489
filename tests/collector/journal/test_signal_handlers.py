"""A signal handler runs in the midst of the recorder's own code: no record or text is lost.

Python calls handlers where a function of Python begins and where one of C returns. A profile
function is called there as well: it is the handler, once at each of these places.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from lanescope.collector.compaction.reader import read_process, read_texts
from lanescope.collector.journal import own_files, segment_ring, string_table, writer
from lanescope.collector.journal.journal import FIRST_SEGMENT_BYTES, HEADER_BYTES, RECORD_BYTES
from lanescope.collector.journal.segment_ring import Ring
from lanescope.collector.journal.string_table import StringTable
from lanescope.collector.journal.writer import ThreadJournal
from tests.collector.journal.test_journal import new_journal, put
from tests.support import ROOT
from tests.support.processes import fork_program
from tests.support.recording import write_program

OWN = {module.__file__ for module in (own_files, segment_ring, string_table, writer)}


class Interruption(Exception):
    """What a handler raises."""


def handled_at(place: int, work: Callable[[], None], handler: Callable[[], None]) -> bool:
    """Works, and handles a signal at that place; returns False where the work has fewer places."""
    seen = 0

    def arrives(frame: FrameType, event: str, _: Any) -> None:
        nonlocal seen
        if frame.f_code.co_filename in OWN and event in {"call", "c_return"}:
            seen += 1
            if seen == place + 1:
                sys.setprofile(None)
                handler()

    sys.setprofile(arrives)
    try:
        work()
    finally:
        sys.setprofile(None)
    return seen > place


def interrupt() -> None:
    raise Interruption


def written(folder: Path, records: int, *, bounded: bool) -> ThreadJournal:
    """Returns a journal of several records."""
    folder.mkdir()
    journal = new_journal(folder, ring=Ring(1 << 20) if bounded else None)
    for value in range(records):
        put(journal, value)
    return journal


def names(folder: Path) -> list[int]:
    (thread,) = read_process(folder).threads
    return sorted(int(name) for rows in thread.records() for name in rows["name"])


FULL = (FIRST_SEGMENT_BYTES - HEADER_BYTES) // RECORD_BYTES


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("before", [3, FULL])
def test_records_of_a_handler_and_of_what_it_interrupts(
    tmp_path: Path, before: int, bounded: bool
) -> None:
    for place in count():
        journal = written(tmp_path / str(place), before, bounded=bounded)
        handled = handled_at(
            place, partial(put, journal, before), partial(put, journal, before + 1)
        )
        journal.close()
        if not handled:
            break
        assert names(tmp_path / str(place)) == list(range(before + 2)), place
    assert place > (2 if before == FULL else 0)


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("before", [3, FULL])
def test_records_after_a_handler_that_raised(tmp_path: Path, before: int, bounded: bool) -> None:
    for place in count():
        journal = written(tmp_path / str(place), before, bounded=bounded)
        with suppress(Interruption):
            if not handled_at(place, partial(put, journal, before), interrupt):
                break
        for value in range(before + 1, before + 4):
            put(journal, value)
        assert (journal.failure, journal.dropped) == (None, 0), place
        journal.close()
        found = names(tmp_path / str(place))
        assert [value for value in found if value != before] == [
            *range(before),
            *range(before + 1, before + 4),
        ], place
    assert place > (2 if before == FULL else 0)


LONG = "long " * 1000


def table(folder: Path, texts: int) -> StringTable:
    """Returns a table of several long texts, which fill its file if there are enough."""
    folder.mkdir()
    made = StringTable()
    made.attach(folder)
    for text in range(texts):
        made.intern(f"{text} {LONG}")
    return made


def interns(made: StringTable, raises: bool) -> None:
    made.intern("its own")
    if raises:
        raise Interruption


@pytest.mark.parametrize("texts", [2, 12, 13])
@pytest.mark.parametrize("raises", [False, True])
def test_texts_of_a_handler_and_of_what_it_interrupts(
    tmp_path: Path, texts: int, raises: bool
) -> None:
    for place in count():
        made = table(tmp_path / str(place), texts)
        with suppress(Interruption):
            if not handled_at(place, partial(made.intern, LONG), partial(interns, made, raises)):
                break
        numbers = {text: made.intern(text) for text in ("its own", LONG, "last", f"1 {LONG}")}
        assert made.failure is None, place
        made.close()
        stored = read_texts(tmp_path / str(place))
        assert [stored[number] for number in numbers.values()] == list(numbers), place
    assert place > 2


TRAINS = """
    import signal, sys, threading
    import torch
    import lanescope.collector as ls
    from lanescope.collector.hooks.training.thread_gradients import ThreadGradients

    def step():
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    def put_hooks(self):  # which it does with its lock
        if not handled:
            signal.raise_signal(signal.SIGUSR1)
        original(self)

    def handler(number, frame):
        handled.append(number)
        step()

    original, ThreadGradients._put_hooks = ThreadGradients._put_hooks, put_hooks
    handled = []
    signal.signal(signal.SIGUSR1, handler)
    ls.start(sys.argv[1])
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    other = threading.Thread(target=torch.ones(2, requires_grad=True).sum().backward)
    other.start()
    other.join()
    step()
    step()
    ls.stop()
    print(len(handled))
"""


def test_a_handler_that_trains_waits_for_no_lock_of_the_recorder(tmp_path: Path) -> None:
    done = fork_program(write_program(tmp_path, TRAINS), str(tmp_path / "run"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_all_locks_of_the_recorder_can_be_taken_again() -> None:
    for file in sorted((ROOT / "collector").rglob("*.py")):
        assert "= threading.Lock()" not in file.read_text(), file
