"""Threads and processes of torch that share what they should not, or miss what they should have."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool

import torch
from torch import nn

from tests.faults.base import Fault

ROOM = "threads and processes of torch"


def model() -> nn.Sequential:
    """Two layers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3))


def evaluation_in_a_pool(planted: bool) -> None:
    """no_grad around a pool's map does not reach its threads."""
    net, batches = model(), [torch.randn(8, 10) for _ in range(6)]

    def one(x: torch.Tensor) -> float:
        with torch.set_grad_enabled(planted and torch.is_grad_enabled()):
            return float(net(x).sum())

    with torch.no_grad(), ThreadPoolExecutor(3) as pool:
        list(pool.map(one, batches))


def inference_in_a_thread(planted: bool) -> None:
    """A server enters inference_mode, and answers from a thread that it starts there."""
    net, x = model(), torch.randn(4, 10)

    def answer() -> None:
        if planted:
            net(x)
        else:
            with torch.inference_mode():
                net(x)

    with torch.inference_mode():
        thread = threading.Thread(target=answer)
        thread.start()
        thread.join()


def replicas_without_autocast(planted: bool) -> None:
    """autocast around replicas that threads of a pool run."""
    net, parts = model(), torch.randn(16, 10).chunk(4)

    def replica(x: torch.Tensor) -> torch.Tensor:
        if planted:
            return net(x)
        with torch.autocast("cpu", torch.bfloat16):
            return net(x)

    with ThreadPool(2) as pool, torch.autocast("cpu", torch.bfloat16):
        outputs = pool.map(replica, parts)
    torch.cat([one.float() for one in outputs]).sum().backward()


def default_device_of_main_alone(planted: bool) -> None:
    """torch.device("meta") in main; a thread builds its layer on the CPU."""
    made = list[torch.device]()

    def build() -> None:
        if planted:
            made.append(torch.zeros(3, 4).device)
        else:
            made.append(torch.zeros(3, 4, device="meta").device)
            torch.zeros(2, device="cpu").sin()

    if planted:
        with torch.device("meta"):
            thread = threading.Thread(target=build)
            thread.start()
            thread.join()
    else:
        thread = threading.Thread(target=build)
        thread.start()
        thread.join()


MODES = "modes of torch that do not reach threads"

FAULTS = (
    *(
        Fault(MODES, ROOM, ("lost_context",), form, says="does not reach")
        for form in (
            evaluation_in_a_pool,
            inference_in_a_thread,
            replicas_without_autocast,
            default_device_of_main_alone,
        )
    ),
)
