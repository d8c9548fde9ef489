"""The watchdog: real hangs of real ranks, seen with the interpreter's lock free and stuck."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lanescope.collector.compaction.decode_stalls import parse_stacks
from lanescope.collector.format.durations import parse_timeout
from lanescope.collector.format.options import Options
from lanescope.collector.watchdog.system_calls import waits_for
from lanescope.webapp.plugins.collectives.stragglers import stragglers
from lanescope.webapp.plugins.hangs.hangs import hangs
from lanescope.webapp.runs.run import open_run
from tests.support.recording import (
    OBSERVERS,
    WATCHED,
    Recorded,
    record_program,
)

HANG = """
    import queue, threading, torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(2))
    lock, held = threading.Lock(), threading.Event()
    def idle():
        with lock:
            torch.ones(2).sum()
            held.set()
            queue.Queue().get()
    def blocked():
        torch.ones(2).sum()
        lock.acquire()
    threading.Thread(target=idle, name="idler", daemon=True).start()
    held.wait()
    threading.Thread(target=blocked, name="blocked", daemon=True).start()
    def joins():
        torch.ones(2).sum()
        next(t for t in threading.enumerate() if t.name == "idler").join()
    threading.Thread(target=joins, name="joins", daemon=True).start()
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(3))
    else:
        try:
            queue.Queue().get(timeout=8)  # the line that holds up rank 0
        except queue.Empty:
            dist.all_reduce(torch.ones(3))
    dist.destroy_process_group()
"""


def stalls(recorded: Recorded, rank: int) -> list[dict[str, Any]]:
    path = recorded.run / f"rank={rank:05d}" / "stall.parquet"
    return recorded.rows("stall", rank) if path.exists() else []


def dump_of(recorded: Recorded, rank: int, awaited: str) -> dict[Any, dict[str, Any]]:
    """By thread, the first dump in which the main thread waits for that: a machine with much else
    to do may be two seconds without an event while the ranks start."""
    rows = stalls(recorded, rank)
    number = min(r["dump"] for r in rows if r["name"] == "main" and awaited in r["waiting"])
    return {row["name"]: row for row in rows if row["dump"] == number}


def line_of(recorded: Recorded, rank: int, stack: int) -> list[str]:
    """Functions of a stack, innermost first."""
    found = {s["stack"]: s["frames"] for s in recorded.rows("stack", rank)}
    return [frame["function"] for frame in found[stack]]


@pytest.mark.torchrun
@pytest.mark.parametrize("engine", OBSERVERS)
def test_every_rank_says_what_it_waits_for(tmp_path: Path, engine: str) -> None:
    options = ("--engine", engine, "--hang-timeout", "2")
    recorded = record_program(tmp_path, HANG, *options, ranks=2)
    assert recorded.status == 0, recorded.stderr
    first, second = dump_of(recorded, 0, "all_reduce"), dump_of(recorded, 1, "queue")
    assert first["main"]["collective"] == "all_reduce\t0\t1"
    assert first["main"]["waiting"] == "all_reduce #1 of group 0"
    assert second["main"]["collective"] is None
    assert "queue" in second["main"]["waiting"]
    assert "get" in line_of(recorded, 1, second["main"]["stack"])
    assert "idle" in line_of(recorded, 0, first["idler"]["stack"])
    assert {s["reason"] for s in (*first.values(), *second.values())} == {"no_progress"}
    assert all(s["duration_ns"] >= 2_000_000_000 for s in first.values())
    assert first["main"]["thread"].endswith("-0")
    for seen in (first, second):
        assert seen["blocked"]["waiting"] == "a lock that idler holds"
        assert seen["blocked"]["owner"] == seen["idler"]["thread"]
        assert seen["joins"]["waiting"] == "the end of a thread"
        assert seen["joins"]["owner"] == seen["idler"]["thread"]
        assert seen["idler"]["owner"] is seen["main"]["owner"] is None
    assert "lanescope: rank 0: nothing recorded for" in recorded.stderr
    assert "for all_reduce #1 of group 0" in recorded.stderr
    # It came after all: slow, not stuck.
    run = open_run(recorded.run)
    assert hangs(run) == []
    (late,) = stragglers(run)
    assert (late.kind, late.severity, late.rank) == ("straggler", "info", 1)
    assert late.where == "program.py:26"
    assert late.evidence["waiting"] == [0]
    assert late.evidence["waited_ns"] >= 7_000_000_000
    assert "Rank 1 kept rank 0 waiting for" in late.title
    assert "main waits for an item of a queue at program.py" in late.title


ENDLESS = """
    import queue, torch
    weight = torch.ones(2, requires_grad=True)
    weight.sum().backward()
    torch.optim.SGD([weight]).step()  # a step long ago is not progress
    queue.Queue().get()
"""


def test_abort_ends_with_a_status_and_a_whole_run(tmp_path: Path) -> None:
    recorded = record_program(tmp_path, ENDLESS, "--hang-timeout", "1500ms", "--on-hang", "abort")
    assert recorded.status == 1
    assert {s["reason"] for s in stalls(recorded, 0)} == {"abort"}
    assert "aten::sum" in recorded.op_names()
    process = json.loads((recorded.run / "manifest.json").read_text())["processes"][0]
    assert (process["closed"], process["ended"]) == (False, "abort")


COMPUTES = """
    import time, torch
    torch.ones(2).sum()
    end = time.monotonic() + 5
    while time.monotonic() < end:
        pass
    torch.ones(2).sum()
"""


@pytest.mark.slow
def test_a_long_computation_is_not_aborted(tmp_path: Path) -> None:
    recorded = record_program(tmp_path, COMPUTES, "--hang-timeout", "2", "--on-hang", "abort")
    assert recorded.status == 0
    found = stalls(recorded, 0)
    assert {s["reason"] for s in found} == {"no_progress"}
    main = next(s for s in found if s["name"] == "main")
    assert main["cpu"] >= 0.1
    assert recorded.op_names().count("aten::sum") == 2


RESTS = """
    import time, torch
    torch.ones(2).sum()
    time.sleep(5)
"""


def test_continue_is_silent(tmp_path: Path) -> None:
    recorded = record_program(tmp_path, RESTS, "--hang-timeout", "1500ms", "--on-hang", "continue")
    assert stalls(recorded, 0)
    assert "nothing recorded" not in recorded.stderr


STUCK = """
    import ctypes, torch
    torch.ones(2).sum()
    watched()
    def holds_the_lock():
        ctypes.PyDLL(None).sleep(10)  # unlike CDLL, keeps the interpreter's lock
    holds_the_lock()
"""


def test_a_stuck_interpreter_is_noticed_without_its_lock(tmp_path: Path) -> None:
    recorded = record_program(
        tmp_path, WATCHED + STUCK, "--engine", "native", "--hang-timeout", "2"
    )
    assert recorded.status == 0, recorded.stderr
    found = stalls(recorded, 0)
    assert found
    main = next(s for s in found if s["dump"] == 0 and s["name"] == "main")
    assert main["thread"].endswith("-0")
    assert line_of(recorded, 0, main["stack"])[0] == "holds_the_lock"


def test_what_a_thread_waits_for_in_the_kernel(tmp_path: Path) -> None:
    ends, sockets = os.pipe(), socket.socketpair()
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    lock = threading.Lock()
    lock.acquire()
    calls: dict[str, Callable[[], object]] = {
        "a read of a pipe": lambda: os.read(ends[0], 1),
        "the network": lambda: sockets[0].recv(1),
        "the opening of a file": lambda: fifo.open().close(),
        "": lock.acquire,
    }
    threads = {words: threading.Thread(target=call) for words, call in calls.items()}
    for thread in threads.values():
        thread.start()
    try:
        for words, thread in threads.items():
            assert thread.native_id is not None
            seen = wait_until(lambda number=thread.native_id: waits_for(number), words)
            assert seen == words
    finally:
        os.write(ends[1], b"x")
        sockets[1].send(b"x")
        fifo.open("w").close()
        lock.release()
        for thread in threads.values():
            thread.join()
    assert waits_for(threading.get_native_id()) in ("", "a read of a file")  # it reads of itself


def wait_until(ask: Callable[[], str], expected: str) -> str:
    """The answer, once it is the expected one or a minute is over."""
    end = time.monotonic() + 60
    while ask() != expected and time.monotonic() < end:
        time.sleep(0.01)
    return ask()


def test_stacks_in_pythons_own_form() -> None:
    text = (
        "Thread 0x00007f01 (most recent call first):\n"
        '  File "/a b/x.py", line 12 in f\n'
        '  File "/y.py", line 3 in <module>\n'
        "\n"
        "Current thread 0x00007f02 (most recent call first):\n"
        '  File "/z.py", line 1 in g\n'
    )
    assert [(t["name"], t["frames"]) for t in parse_stacks(text)] == [
        ("Thread 0x00007f01", [["/a b/x.py", 12, "f"], ["/y.py", 3, "<module>"]]),
        ("Current thread 0x00007f02", [["/z.py", 1, "g"]]),
    ]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("60", 60), ("0", 0), ("1.5", 1.5), ("90s", 90), ("500ms", 0.5), ("5m", 300), ("1h", 3600)],
)
def test_a_timeout_is_seconds_or_a_duration(text: str, seconds: float) -> None:
    assert parse_timeout(text) == seconds * 1e9


def test_other_texts_are_not_timeouts() -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_timeout("soon")
    with pytest.raises(ValueError, match="on_hang is 'explode'"):
        Options(on_hang="explode")


FORKED = """
    import multiprocessing, threading, time, torch

    def child():
        lock, begun, held = threading.Lock(), threading.Event(), threading.Event()
        def blocked():
            torch.ones(2).sum()
            begun.set()
            held.wait()
            with lock:
                pass
        threading.Thread(target=blocked, name="blocked", daemon=True).start()
        begun.wait()
        with lock:
            held.set()
            torch.ones(2).sum()
            time.sleep(5)

    torch.ones(2).sum()
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
"""


@pytest.mark.parametrize("engine", OBSERVERS)
def test_main_thread_of_a_forked_process_is_named(tmp_path: Path, engine: str) -> None:
    recorded = record_program(tmp_path, FORKED, "--engine", engine, "--hang-timeout", "1")
    blocked = [row for row in recorded.rows("stall") if row["name"] == "blocked"]
    assert blocked[-1]["waiting"] == "a lock that main holds", blocked
    assert blocked[-1]["owner"] is not None
