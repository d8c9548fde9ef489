"""Locks that threads take in opposite orders: which locks are one lock."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.recording import record_program

_PROGRAM = """
    import sys, threading, time
    import torch

    shared = threading.Lock()
    both = threading.Lock()
    done = []

    def jobs(before):
        while not before and not done:  # nothing that orders threads
            time.sleep(0.001)
        mine = [both if sys.argv[1] == "one" else threading.Lock() for _ in range(50)]
        for number in range(50):
            with shared if before else mine[number]:
                with mine[number] if before else shared:
                    torch.ones(1).add(1)
        del mine
        done.append(True)

    torch.ones(1)
    threads = [threading.Thread(target=jobs, args=(before,)) for before in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


@pytest.mark.parametrize(("locks", "found"), [("one", 1), ("one_each", 0)])
def test_locks_at_the_address_of_a_deleted_one_are_others(
    tmp_path: Path, locks: str, found: int
) -> None:
    recorded = record_program(tmp_path, _PROGRAM, arguments=(locks,))
    assert recorded.status == 0, recorded.stderr
    assert "recorder error" not in recorded.stderr
    orders = [one for one in recorded.findings("deadlock") if "opposite orders" in one.title]
    assert len(orders) == found, orders
