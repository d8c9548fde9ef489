"""`--on-hang abort` ends real programs that cannot go on, and none that only seem to hang.

Each program first waits in many ways that come to an end, all longer than the timeout, and hangs
for good at last: so one process shows both.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.recording import OBSERVERS, record_program

ABORT = ("--hang-timeout", "1", "--on-hang", "abort")

PATIENT = """
    import asyncio, os, queue, signal, socket, subprocess, sys, threading, time, torch

    LONG = 2  # seconds

    def later(command):
        return subprocess.Popen(["sh", "-c", f"sleep {LONG}; {command}"], stdout=subprocess.PIPE)

    def sleeps():
        time.sleep(LONG)

    def waits_with_a_limit():
        assert not threading.Event().wait(LONG)

    def waits_for_a_command():
        later("true").wait()

    def reads():
        assert later("echo answer").stdout.readline() == b"answer\\n"

    def listens():
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            client = f"import socket; socket.create_connection(('127.0.0.1', {port}))"
            asked = later(f'{sys.executable} -S -c "{client}"')
            server.accept()[0].close()
            asked.wait()

    def waits_for_a_signal():
        came = threading.Event()
        signal.signal(signal.SIGUSR1, lambda *_: came.set())
        later(f"kill -USR1 {os.getpid()}")
        came.wait()
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)

    def is_stopped():
        later(f"kill -CONT {os.getpid()}")
        os.kill(os.getpid(), signal.SIGSTOP)

    def awaits():
        asyncio.run(asyncio.sleep(LONG))

    def waits_for_a_thread_that_sleeps():
        thread = threading.Thread(target=sleeps)
        thread.start()
        thread.join()

    def is_starved():
        core = {min(os.sched_getaffinity(0))}
        all_cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, core)  # of this thread alone
        hog = subprocess.Popen(["sh", "-c", "while :; do :; done"])
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        end = time.monotonic() + LONG
        while time.monotonic() < end:
            pass
        hog.kill()
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        os.sched_setaffinity(0, all_cores)

    def deadlock():
        # Beside threads that work on for others.
        server = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=server.accept, daemon=True).start()
        one, other, both = threading.Lock(), threading.Lock(), threading.Barrier(2)
        def back():
            with other:
                both.wait()
                with one:
                    pass
        threading.Thread(target=back, daemon=True).start()
        with one:
            both.wait()
            with other:
                pass

    for wait in (sleeps, waits_with_a_limit, waits_for_a_command, reads, listens,
                 waits_for_a_signal, is_stopped, awaits, waits_for_a_thread_that_sleeps,
                 is_starved, deadlock):
        torch.ones(2).sum()
        print(wait.__name__, flush=True)
        wait()
"""


@pytest.mark.slow
@pytest.mark.parametrize("engine", OBSERVERS)
def test_a_program_that_waits_in_many_ways_and_then_hangs(tmp_path: Path, engine: str) -> None:
    recorded = record_program(tmp_path, PATIENT, "--engine", engine, *ABORT, real=True)
    assert recorded.stdout.splitlines()[-1] == "deadlock", recorded.stderr
    assert recorded.status == 1
    assert "; not ended: it may still go on" in recorded.stderr
    assert recorded.stderr.count("; it cannot go on, and ends now") == 1
    rows = recorded.rows("stall")
    assert [row["waiting"] for row in rows if row["reason"] == "abort"].count("") < len(rows)


RANKS = """
    import queue, time, torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(2))
    if rank == 1:
        time.sleep(4)  # the other waits in a collective for long
    dist.all_reduce(torch.ones(2))
    print("came", flush=True)
    if rank == 1:
        queue.Queue().get()
    dist.all_reduce(torch.ones(2))
"""


@pytest.mark.torchrun
def test_ranks_wait_for_one_that_is_late_and_not_for_one_that_hangs(tmp_path: Path) -> None:
    recorded = record_program(tmp_path, RANKS, *ABORT, ranks=2)
    assert sorted(recorded.stdout) == sorted("came\n" * 2), recorded.stderr  # may share a line
    assert recorded.status == 1
    assert "; it cannot go on, and ends now" in recorded.stderr
