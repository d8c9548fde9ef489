"""Lines of training threads between two operators, as samples show them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from lanescope.collector.format.loop_names import SAMPLED_LINE
from lanescope.webapp import open_run
from lanescope.webapp.plugins.collectives.slow_places import line_between, times_by_place
from tests.support.recording import OBSERVERS, Recorded, record_program

PROGRAM = """
import os, sys, time
import torch

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def load():
    {load}
    return torch.randn(4, 8)

def train():
    for _ in range(8):
        optimizer.zero_grad()
        model(load()).pow(2).mean().backward()
        optimizer.step()

{train}
"""

FORKED = """
train()
if os.fork() == 0:
    train()
    sys.exit()
os.wait()
"""


def sampled(done: Recorded) -> Counter[str]:
    names = (str(row["name"]) for row in done.rows("value"))
    return Counter(name.removeprefix(SAMPLED_LINE) for name in names if SAMPLED_LINE in name)


@pytest.mark.parametrize("engine", OBSERVERS)
def test_a_thread_that_sleeps_between_operators_is_found_at_that_line(
    tmp_path: Path, engine: str
) -> None:
    program = PROGRAM.format(load="time.sleep(0.1)", train="train()")
    done = record_program(tmp_path, program, "--engine", engine)
    assert done.status == 0, done.stderr
    run = open_run(done.run)
    window = 0, run.duration_ns
    times = times_by_place(run, 0, run.threads[0].thread, window)
    longest = max(times, key=lambda place: times[place])
    line = f"program.py:{_line(program, 'time.sleep')}"
    assert line_between(run, 0, run.threads[0].thread, window, longest) == line
    assert sampled(done)[f"{tmp_path}/{line}"] >= 5


def test_where_a_call_that_keeps_the_lock_was_is_unknown(tmp_path: Path) -> None:
    program = PROGRAM.format(load="sum(range(8_000_000))", train="train()")
    done = record_program(tmp_path, program)
    run = open_run(done.run)
    window = 0, run.duration_ns
    times = times_by_place(run, 0, run.threads[0].thread, window)
    longest = max(times, key=lambda place: times[place])
    assert line_between(run, 0, run.threads[0].thread, window, longest) is None
    assert sampled(done)["?"] >= 3


def test_a_forked_process_that_trains_is_sampled_too(tmp_path: Path) -> None:
    program = PROGRAM.format(load="time.sleep(0.1)", train=FORKED)
    done = record_program(tmp_path, program)
    assert done.status == 0, done.stderr
    line = f"{SAMPLED_LINE}{tmp_path}/program.py:{_line(program, 'time.sleep')}"
    values = open_run(done.run).events("value", 0, columns=["thread", "name"]).to_pylist()
    assert len({row["thread"] for row in values if row["name"] == line}) == 2


KEEPS_NOTHING = """
import gc, weakref
gc.disable()
class Held:
    pass
def hold():
    held = Held()
    train()
    return weakref.ref(held)
assert all(hold()() is None for _ in range(3))
"""


def test_what_functions_of_the_program_hold_is_freed_as_they_return(tmp_path: Path) -> None:
    program = PROGRAM.format(load="time.sleep(0.02)", train=KEEPS_NOTHING)
    done = record_program(tmp_path, program)
    assert done.status == 0, done.stderr
    assert sum(sampled(done).values()) >= 3


def test_a_program_that_steps_no_optimizer_is_not_looked_at(tmp_path: Path) -> None:
    done = record_program(tmp_path, PROGRAM.format(load="time.sleep(0.1)", train="load()"))
    assert not sampled(done)


def _line(program: str, text: str) -> int:
    return next(n for n, line in enumerate(program.splitlines(), 1) if text in line)
