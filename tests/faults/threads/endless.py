"""Programs whose processes do not end, or wait for one that cannot, until somebody stops them."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
import time
from typing import Any

import torch
from torch import nn

from tests.faults.base import Fault, ctrl_c_at_rest
from tests.faults.threads.waiting import deadlocks, work

_STEPS = 6
_KILLED_S = 12
"""After so long somebody has had enough."""


def _train() -> float:
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(_STEPS):
        loss = model(torch.randn(4, 8)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def _killed() -> None:
    """Has this process killed, where it is recorded."""
    if os.environ.get("LANESCOPE_RECORD") is not None:
        kills = f"(sleep {_KILLED_S}; kill -KILL $PPID) &"
        null = subprocess.DEVNULL
        subprocess.run(["sh", "-c", kills], stdout=null, stderr=null, check=True)


class _Monitor:
    """Looks at something now and then from a thread of its own."""

    def __init__(self, daemon: bool = False) -> None:
        self.running, self.stop = True, threading.Event()
        self.thread = threading.Thread(target=self.poll, name="monitor", daemon=daemon)

    def poll(self) -> None:
        while self.running:
            time.sleep(0.2)

    def wait(self) -> None:
        while not self.stop.wait(0.5):
            pass

    def close(self) -> None:
        self.running = False
        self.stop.set()
        self.thread.join()


def thread_that_atexit_stops(planted: bool) -> None:
    """A thread polls; what stops it is registered with atexit."""
    monitor = _Monitor()
    monitor.thread.start()
    atexit.register(monitor.close)
    _killed()
    _train()
    if not planted:
        monitor.close()


def event_that_is_never_set(planted: bool) -> None:
    """A heartbeat waits for an event, in parts; an early return leaves out setting it."""
    monitor = _Monitor()
    monitor.thread = threading.Thread(target=monitor.wait, name="heartbeat")
    monitor.thread.start()
    _killed()
    if _train() >= 0 and planted:
        return
    monitor.close()


def daemon_that_atexit_joins(planted: bool) -> None:
    """A daemon thread is joined at the end, and nothing stops it."""
    monitor = _Monitor(daemon=True)
    monitor.thread.start()
    atexit.register(monitor.thread.join if planted else monitor.close)
    _killed()
    _train()


_PRINTS = "for i in range(4000): print('sample', i, '.' * 40, file=__import__('sys').{})"


def _evaluated(planted: bool, stream: str, **pipes: Any) -> None:
    work()
    command = [sys.executable, "-S", "-c", _PRINTS.format(stream)]
    process = subprocess.Popen(command, **pipes)
    ctrl_c_at_rest()
    if not planted:
        process.communicate()
    process.wait()


def output_of_an_evaluation(planted: bool) -> None:
    """The parent waits for the end of an evaluation, and would read what it prints afterwards."""
    _evaluated(planted, "stdout", stdout=subprocess.PIPE)


def errors_of_a_tool(planted: bool) -> None:
    """The warnings of a tool go into a pipe that is not read."""
    _evaluated(planted, "stderr", stderr=subprocess.PIPE)


def output_and_errors_in_one_pipe(planted: bool) -> None:
    """Both go into one pipe, as text."""
    _evaluated(planted, "stderr", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


FAULTS: tuple[Fault, ...] = (
    *deadlocks(
        "a thread that keeps the process from ending",
        thread_that_atexit_stops,
        event_that_is_never_set,
        daemon_that_atexit_joins,
        says="The process does not end",
        options=("--hang-timeout", "4"),
    ),
    *deadlocks(
        "a process whose output is not read",
        output_of_an_evaluation,
        errors_of_a_tool,
        output_and_errors_in_one_pipe,
        says="whose output it does not read",
    ),
)
