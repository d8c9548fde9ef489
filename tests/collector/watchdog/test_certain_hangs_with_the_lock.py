"""`--on-hang abort` where Python's lock is held: the observer looks without it.

A file of its own, so that its long wait is beside those of test_certain_hangs.py.
"""

from __future__ import annotations

from pathlib import Path

from tests.collector.watchdog.test_certain_hangs import ABORT
from tests.support.recording import WATCHED, record_program

HOLDS_THE_LOCK = """
    import ctypes, torch
    library = ctypes.PyDLL(None)  # unlike CDLL, keeps the interpreter's lock
    torch.ones(2).sum()
    watched()
    library.sleep(7)
    print("goes on", flush=True)
    torch.ones(2).sum()
    mutex = ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)
"""


def test_pythons_lock_is_held_for_long_and_then_for_good(tmp_path: Path) -> None:
    recorded = record_program(tmp_path, WATCHED + HOLDS_THE_LOCK, "--engine", "native", *ABORT)
    assert (recorded.status, recorded.stdout) == (1, "goes on\n"), recorded.stderr
    assert "abort" in {row["reason"] for row in recorded.rows("stall")}
