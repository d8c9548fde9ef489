"""The recorder reads stacks of threads that go on meanwhile."""

from __future__ import annotations

import gc
import subprocess
import sys
from textwrap import dedent

import pytest

from lanescope.collector.watchdog.thread_frames import thread_frames

DESTRUCTORS = """
    import gc, random, sys, threading, time
    from lanescope.collector.watchdog.thread_frames import thread_frames

    gc.set_threshold(40)
    sys.setswitchinterval(1e-4)
    ended = False

    class Slow:  # where another thread collects it, the program's thread goes on
        letting_go_on = 0

        def __del__(self):
            if threading.get_ident() != thread.ident and time.monotonic() > Slow.letting_go_on:
                time.sleep(1e-5)
                Slow.letting_go_on = time.monotonic() + 3e-4

    def calls(depth, *flags):
        kept = flag = other = last = True
        if depth:
            return calls(depth - 1, *flags)
        slow = Slow()
        slow.itself = slow
        return sum(range(300))

    def runs():
        while not ended:
            calls(random.randrange(1, 30), True, True, False)

    thread = threading.Thread(target=runs)
    thread.start()
    collections = gc.get_stats()[0]["collections"]
    for _ in range(8_000):
        time.sleep(5e-5)
        with thread_frames() as frames:
            frame = frames[thread.ident]
            while frame is not None:
                assert frame.f_code.co_filename, frame
                frame = frame.f_back
    ended = True
    thread.join()
    print(gc.get_stats()[0]["collections"] - collections > 100, gc.isenabled())
"""


def test_destructors_of_the_program_change_no_stack_of_another_thread() -> None:
    """Python 3.11 crashed, or hung, within some hundred looks without care."""
    program = [sys.executable, "-c", dedent(DESTRUCTORS)]
    ran = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert (ran.returncode, ran.stdout) == (0, "True True\n"), ran.stderr


@pytest.mark.parametrize("collects", [True, False])
def test_the_collector_of_garbage_is_left_as_it_was(collects: bool) -> None:
    before = gc.isenabled()
    (gc.enable if collects else gc.disable)()
    try:
        with thread_frames() as frames:
            assert frames
        assert gc.isenabled() is collects
        assert not frames  # else each would keep what its function holds
    finally:
        (gc.enable if before else gc.disable)()
