"""Programs that somebody ends by Ctrl-C while their threads wait for each other, and twins."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanescope.webapp.plugins.autograd_graph.traceability import untraceable_graphs
from lanescope.webapp.plugins.threads.deadlocks import deadlocks
from lanescope.webapp.runs.run import open_run
from tests.support.recording import record_program

START = """
import os, pathlib, queue, subprocess, threading, time
import torch
from concurrent.futures import ThreadPoolExecutor

# Once the watchdog has seen a rest, as a user would who sees nothing happen; again where it does
# not end: an event loop that is blocked takes the first one for a wish to cancel its task.
seen = pathlib.Path(os.environ["LANESCOPE_RECORD"]) / "journal"
waits = f"until ls {seen}/{os.getpid()}-*/quiet.json; do sleep 0.1; done"
loop = f"{waits}; for i in 1 2 3; do kill -INT $PPID || exit; sleep 1; done"
torch.ones(2).sum()
subprocess.Popen(["sh", "-c", loop], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

def start(function):
    thread = threading.Thread(target=function, name="worker", daemon=True)
    thread.start()
    return thread
"""

TWO_QUEUES = """
there, back = queue.Queue(1), queue.Queue(1)
def work():
    while True:
        back.put(1)
        back.put(2)
        there.get()
start(work)
while True:
    there.put(1)
    there.put(2)
    back.get()
"""
NOBODY_SETS = """
ready = threading.Event()
start(lambda: None).join()
ready.wait()
"""
NOBODY_IS_THERE = "queue.Queue().get()"
FILLED_IN_BACKWARD = """
grads = queue.Queue(1)
weight = torch.ones(2, requires_grad=True)
weight.register_hook(grads.put)
for _ in range(2):
    (weight * 2).sum().backward()
"""
SLEEPS = "start(lambda: time.sleep(600)).join()"
READS = """
ends = os.pipe()
start(lambda: os.read(ends[0], 1)).join()
"""

LOOP = """
import asyncio, signal
def main(coroutine):
    asyncio.run(coroutine())
"""
OF_ITS_OWN_LOOP = (
    LOOP
    + """
async def work():
    async def computes():
        return torch.ones(2).sum()
    asyncio.run_coroutine_threadsafe(computes(), asyncio.get_running_loop()).result()
main(work)
"""
)
FUTURE = (
    LOOP
    + """
async def work():
    result = asyncio.get_running_loop().create_future()
    async def waits():
        return await result
    await asyncio.gather(waits(), waits())
main(work)
"""
)
EVENT = (
    LOOP
    + """
async def work():
    ready = asyncio.Event()
    async def waits():
        async with asyncio.Lock():
            await ready.wait()
    task = asyncio.create_task(waits())
    torch.ones(2).sum()
    await task
main(work)
"""
)
EMPTY = (
    LOOP
    + """
async def work():
    items = asyncio.Queue(2)
    async def makes():
        for _ in range(2):
            await items.put(torch.ones(2))
    async def uses():
        for _ in range(3):
            await items.get()
    async with asyncio.timeout(None):
        await asyncio.gather(makes(), uses())
main(work)
"""
)
TIMED = (
    LOOP
    + """
async def work():
    await asyncio.wait_for(asyncio.get_running_loop().create_future(), 600)
main(work)
"""
)
HANDLER = (
    LOOP
    + """
async def work():
    stops = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stops.set)
    await stops.wait()
main(work)
"""
)
SOCKET = (
    LOOP
    + """
async def work():
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    await asyncio.Event().wait()
main(work)
"""
)


@pytest.mark.parametrize(
    ("program", "waits"),  # a forked program's main thread is called so
    [
        (TWO_QUEUES, ["main waits for room in a queue", "worker waits for room in a queue"]),
        (NOBODY_SETS, ["main waits for an event"]),
        (
            NOBODY_IS_THERE,
            ["the only Python thread is blocked: main waits for an item of a queue at"],
        ),
        (FILLED_IN_BACKWARD, ["main waits for room in a queue at program.py:"]),
        (SLEEPS, []),
        (READS, []),
        (FUTURE, ["main waits for a future of asyncio at program.py:"]),
        (OF_ITS_OWN_LOOP, ["main waits for a condition or event", "Await the result"]),
        (HANDLER, []),
        pytest.param(EVENT, ["main waits for a future of asyncio"], marks=pytest.mark.slow),
        pytest.param(EMPTY, ["main waits for a future of asyncio"], marks=pytest.mark.slow),
        pytest.param(TIMED, [], marks=pytest.mark.slow),
        pytest.param(SOCKET, [], marks=pytest.mark.slow),
    ],
)
def test_what_all_waited_for_when_ctrl_c_came(
    tmp_path: Path, program: str, waits: list[str]
) -> None:
    recorded = record_program(tmp_path, START + program)
    assert "KeyboardInterrupt" in recorded.stderr
    assert "interrupt" in {row["reason"] for row in recorded.rows("stall")}
    found = deadlocks(open_run(recorded.run))
    assert [one.severity for one in found] == ["error"] * bool(waits)
    for said in waits:
        assert said in found[0].title
        assert "; Ctrl-C ended it. " in found[0].title
    if "backward" in program:
        assert untraceable_graphs(open_run(recorded.run)) == []


def test_a_rest_that_was_reported_before_ctrl_c_ended_it(tmp_path: Path) -> None:
    program = START.replace("quiet.json", "stalls.jsonl") + TWO_QUEUES
    found = deadlocks(open_run(record_program(tmp_path, program, "--hang-timeout", "1").run))
    assert [one.severity for one in found] == ["error"]
    assert "; Ctrl-C ended it. " in found[0].title


def test_a_killed_thread_alone_does_not_hold_what_it_waits_for(tmp_path: Path) -> None:
    program = START.replace("-INT", "-KILL") + NOBODY_IS_THERE
    found = deadlocks(open_run(record_program(tmp_path, program).run))
    assert [one.severity for one in found] == ["info"]
    assert found[0].title.startswith("The only Python thread is blocked: main waits for an item of")
