"""The recorder's own threads leave the collection of garbage as the program wants it."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator

import pytest

from lanescope.collector.journal.own_threads import pause_collection, resume_collection


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    before = gc.isenabled()
    gc.enable()
    yield
    (gc.enable if before else gc.disable)()


def test_it_goes_on_once_the_last_thread_has_ended() -> None:
    first, other = pause_collection(), pause_collection()
    resume_collection(first)
    assert not gc.isenabled()
    resume_collection(other)
    assert gc.isenabled()


def test_it_stays_off_where_the_program_has_turned_it_off() -> None:
    gc.disable()
    resume_collection(pause_collection())
    assert not gc.isenabled()


def test_it_is_on_in_a_process_that_is_forked_meanwhile() -> None:
    paused, ends = threading.Event(), threading.Event()

    def works() -> None:
        collects = pause_collection()
        paused.set()
        ends.wait()
        resume_collection(collects)

    thread = threading.Thread(target=works)
    thread.start()
    try:
        paused.wait()
        child = os.fork()
        if child == 0:
            resumed = gc.isenabled()
            resume_collection(pause_collection())
            os._exit(0 if resumed and gc.isenabled() else 1)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        ends.set()
        thread.join()
    assert gc.isenabled()
