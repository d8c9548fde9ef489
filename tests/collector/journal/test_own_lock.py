"""A forked process waits for no lock that a thread of its parent has."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

from lanescope.collector.journal.own_lock import own_lock
from tests.support import ROOT
from tests.support.processes import fork_program
from tests.support.recording import UNCOMPACTED, write_program


def test_a_forked_child_finds_it_free() -> None:
    lock, taken, ends = own_lock(), threading.Event(), threading.Event()
    lock_of_this_thread: Any = own_lock()

    def takes() -> None:
        with lock:
            taken.set()
            ends.wait()

    thread = threading.Thread(target=takes)
    thread.start()
    try:
        taken.wait()
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            status = 1
            try:
                with lock, lock:
                    status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        with lock_of_this_thread:
            child = os.fork()
            if child == 0:
                os._exit(0 if lock_of_this_thread._is_owned() else 1)  # as the block goes on in it
        assert os.waitpid(child, 0)[1] == 0
    finally:
        ends.set()
        thread.join()


WORKERS = """
    import os, signal, sys, threading
    import torch
    import lanescope.collector as ls
    from lanescope.collector.journal import own_lock

    ls.start(sys.argv[1], engine="portable", level="numerics")
    x = torch.ones(8)
    x.add(1)
    taken, takes = os.pipe()  # no lock, which the recorder would look at
    waits, ends = os.pipe()

    def holds(lock):
        with lock:
            os.write(takes, b"x")
            os.read(waits, 1)

    for lock in list(own_lock._all):
        thread = threading.Thread(target=holds, args=[lock])
        thread.start()
        os.read(taken, 1)
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            x.mul(2)
            os._exit(0)
        os.write(ends, b"x")
        thread.join()
        if os.waitpid(child, 0)[1]:
            print("a child hangs")
            break
    ls.stop()
"""


def test_forked_processes_wait_for_no_thread_of_their_parent(tmp_path: Path) -> None:
    done = fork_program(
        write_program(tmp_path, WORKERS), str(tmp_path / "run"), environment=UNCOMPACTED
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_locks_of_the_recorder_are_made_so() -> None:
    known = {"own_lock.py", "device_readback.py", "watchdog.py"}
    found = {
        file.name
        for file in (ROOT / "collector").rglob("*.py")
        if "= threading.RLock()" in file.read_text(encoding="utf-8")
    }
    assert found == known
