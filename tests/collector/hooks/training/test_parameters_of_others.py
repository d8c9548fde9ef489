"""Parameters that threads beside the recorded step train, drop gradients of or give other memory:
what the recorder reads of them never crashes the program."""

from pathlib import Path

import pytest

from lanescope.collector.format.names import REMOVED_GRADIENT
from lanescope.webapp.runs.run import open_run
from tests.support.recording import record_program

TRAINING = """
import ctypes
import threading
import torch

torch.set_num_threads(1)
done = threading.Event()

def model(layers=24, size=16):
    return torch.nn.Sequential(*[torch.nn.Linear(size, size) for _ in range(layers)])

{beside}

mine = model()
thread = threading.Thread(target=beside)
thread.start()
optimizer = torch.optim.SGD(mine.parameters(), lr=0.001)
for _ in range({steps}):
    mine(torch.randn(4, 16)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
done.set()
thread.join()
"""

TRAINED = """
other = model()
def beside():
    while not done.is_set():
        other(torch.randn(4, 16)).sum().backward()
        other.zero_grad()
"""

DROPPED = """
other = model()
def beside():
    own = list(other.parameters())
    while not done.is_set():
        gradients = torch.autograd.grad(other(torch.randn(4, 16)).sum(), own)
        for one, gradient in zip(own, gradients):
            one.grad = gradient
        del gradients, gradient
        for one in own:
            one.grad = None
"""

EXCHANGED = """
ctypes.CDLL(None).mallopt(-3, 1 << 16)  # M_MMAP_THRESHOLD: memory that is freed is gone at once
other = model(8, 512)
other(torch.randn(1, 512))
def beside():
    while not done.is_set():
        for one in other.parameters():
            one.data = torch.zeros_like(one)
"""


@pytest.mark.parametrize(
    ("beside", "steps"),
    [pytest.param(TRAINED, 100, marks=pytest.mark.slow), (DROPPED, 40), (EXCHANGED, 200)],
    ids=["trained", "dropped", "exchanged"],
)
def test_parameters_of_other_threads_do_not_end_the_program(
    tmp_path: Path, beside: str, steps: int
) -> None:
    # torch writes gradients without Python's lock, and frees memory that others may be reading.
    source = TRAINING.format(beside=beside, steps=steps)
    recorded = record_program(tmp_path, source, "--sample-every", "1")
    assert recorded.status == 0, recorded.stderr
    assert "recorder error" not in recorded.stderr
    assert len({row["step"] for row in recorded.rows("parameter")}) == steps


WITHIN = """
import threading
import weakref
import torch

thread = threading.Thread(target=torch.ones, args=(2,))
thread.start()
thread.join()
one, other = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
optimizer = torch.optim.SGD([one, other], lr=0.1)

def drops(_):
    optimizer.step()
    other.grad = None

for watched in (False, True):
    one.grad, other.grad = torch.ones(2), torch.ones(2)
    if watched:
        watch = weakref.ref(one.grad, drops)
        optimizer.param_groups[0]["params"] = [other]
    one.grad = None
    other.grad = None
"""


def test_no_gradient_is_read_while_one_is_dropped(tmp_path: Path) -> None:
    # torch runs other threads, here a callback, while `grad` leads to a tensor that is being freed.
    recorded = record_program(tmp_path, WITHIN, "--sample-every", "0", "--level", "access")
    assert recorded.status == 0, recorded.stderr
    assert "recorder error" not in recorded.stderr
    assert [row["name"] for row in recorded.rows("op")].count(REMOVED_GRADIENT) == 3
    assert open_run(recorded.run).coverage["gradients_not_read"] == 1


SERVER = """
import threading
import torch

torch.set_num_threads(1)
served = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(4)])
optimizer = torch.optim.SGD(served.parameters(), lr=0.001)

def push(gradients):
    for one, gradient in zip(served.parameters(), gradients):
        if one.grad is None:
            one.grad = gradient.clone()
        else:
            one.grad += gradient
    optimizer.step()
    optimizer.zero_grad()

def trains():
    for _ in range(100):
        try:
            push([torch.randn_like(one) for one in served.parameters()])
        except (AttributeError, TypeError):  # another thread was quicker
            pass

threads = [threading.Thread(target=trains) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


@pytest.mark.slow
def test_threads_that_race_for_gradients_end_no_earlier_than_alone(tmp_path: Path) -> None:
    # Alone, torch crashes in most runs: a gradient is freed while other threads still find it.
    recorded = record_program(tmp_path, SERVER)
    assert recorded.status == 0, recorded.stderr


FREED = """
import torch

model = torch.nn.Linear(8, 8)
model(torch.randn(4, 8))
whole = model.weight
model.weight = torch.nn.Parameter(whole.detach().clone())
whole.untyped_storage().resize_(0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for _ in range(4):
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_parameters_whose_memory_was_given_back_are_not_read(tmp_path: Path) -> None:
    # FSDP frees whole parameters so between forward and backward.
    recorded = record_program(tmp_path, FREED, "--sample-every", "1")
    assert recorded.status == 0, recorded.stderr
    assert "recorder error" not in recorded.stderr
    assert len({row["step"] for row in recorded.rows("parameter")}) == 4
