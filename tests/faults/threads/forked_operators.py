"""Processes that are forked once their parent has computed with several threads."""

from __future__ import annotations

import multiprocessing as mp
import queue
from multiprocessing.pool import Pool
from typing import Any

import torch
from torch import nn

from tests.faults.base import forms
from tests.faults.threads.torch_threads import ROOM

_WAIT_S = 14
"""How long a parent waits: longer than the watchdog takes to see a rest of some seconds."""

_ROWS = 200_000
"""Enough for torch to share an operator among threads."""

_fork = mp.get_context("fork")


def _computed() -> None:
    torch.set_num_threads(2)
    torch.randn(_ROWS).double().sum()


def _converts(rows: int) -> None:
    torch.zeros(rows).double()  # named


def preprocessing_in_a_child(planted: bool) -> None:
    """A child converts a table; what the twin's child does is too small for several threads."""
    _computed()
    child = _fork.Process(target=_converts, args=(_ROWS if planted else 100,), daemon=True)
    child.start()
    child.join(_WAIT_S)
    child.kill()


def _total(number: int) -> float:
    return float(torch.full((_ROWS,), float(number)).exp().sum())


def scores_of_a_forked_pool(planted: bool) -> None:
    """A pool scores with what its parent has trained; the twin's pool is there before."""
    _computed() if planted else None
    with Pool(1, context=_fork) as pool:
        _computed()
        try:
            pool.map_async(_total, range(2)).get(_WAIT_S)
        except mp.TimeoutError:
            assert planted


def _evaluates(net: nn.Module, results: Any) -> None:
    with torch.no_grad():
        results.put(float(net(torch.randn(20_000, 32)).square().mean()))


def evaluation_in_a_child(planted: bool) -> None:
    """A model is trained, and evaluated in a child; the twin computes with one thread by then."""
    torch.set_num_threads(2)
    net, results = nn.Sequential(nn.Linear(32, 64), nn.ReLU()), _fork.Queue()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.randn(20_000, 32)).square().mean().backward()
        optimizer.step()
    if not planted:
        torch.set_num_threads(1)
    child = _fork.Process(target=_evaluates, args=(net, results), daemon=True)
    child.start()
    try:
        results.get(timeout=_WAIT_S)
    except queue.Empty:
        assert planted
    child.kill()


FAULTS = forms(
    "operators of a process that was forked after others ran on several threads",
    ROOM,
    "deadlock",
    "a forked process rests in",
    preprocessing_in_a_child,
    scores_of_a_forked_pool,
    evaluation_in_a_child,
)
