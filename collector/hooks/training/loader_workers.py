"""Records what workers of a DataLoader must not share: states of random generators, and samples.

Once per worker, at its first fetch: hashes of the generators from which that fetch draws, those of
Python, numpy and torch and those that the dataset holds. Of an IterableDataset, whose workers may
shuffle alike before each takes its share, a hash of the first two batches.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from ...format.names import WORKER_BATCH, WORKER_STATE
from ...recorder.recorder import Recorder
from ..stacks import code_place
from .activations import tensors_in
from .batches import few_of, raw_bytes
from .norms import has_norm
from .replication import generator_state, short_hash

_MAX_FRAMES = 8
_FIRST, _SECOND = 1, 2


class LoaderWorkers:
    """Writes values named WORKER_STATE and WORKER_BATCH in the process of a worker."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._fetches = 0
        self._before: dict[str, float] = {}

    def fetches(self, fetcher: Any) -> None:
        """Keeps the states of generators as the first fetch begins."""
        self._fetches += 1
        if self._fetches == _FIRST and not isinstance(fetcher.dataset, IterableDataset):
            self._before = self._states(fetcher.dataset)

    def fetched(self, fetcher: Any, batch: Any) -> None:
        """Records states from which the first fetch drew, and the first batches of a stream."""
        worker = get_worker_info()
        if self._fetches > _SECOND or worker is None or not self._recorder.active:
            return
        iteration = (worker.seed - worker.id) % 2**32  # workers of one iteration share it
        if self._before and self._fetches == _FIRST:
            after = self._states(fetcher.dataset)
            for name, state in self._before.items():
                if after.get(name, state) != state:
                    said = f"{WORKER_STATE}{iteration}/{name}/{_seeded_by()}"
                    self._recorder.value(said, state)
        if isinstance(fetcher.dataset, IterableDataset):
            self._batch(iteration, batch)

    def _states(self, dataset: Any) -> dict[str, float]:
        states: dict[str, float] = {}
        with self._recorder.contain_errors(), self._recorder.own_torch():
            states.update((name, short_hash(state)) for name, state in _generators(dataset))
        return states

    def _batch(self, iteration: int, batch: Any) -> None:
        with self._recorder.contain_errors(), self._recorder.own_torch(), torch.no_grad():
            parts = [
                raw_bytes(few_of(one))
                for one in tensors_in(batch)
                if has_norm(one) and one.dim() and one.numel() and one.layout == torch.strided
            ]
            if parts:
                name = f"{WORKER_BATCH}{iteration}/{self._fetches}"
                self._recorder.value(name, short_hash(b"".join(parts)))


def _generators(dataset: Any) -> Iterator[tuple[str, bytes]]:
    """Yields names and states of generators."""
    yield "random", repr(random.getstate()).encode()
    yield "torch", generator_state(torch.default_generator)
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        yield "numpy.random", _numpy_state(numpy.get_state())
    for name, one in list(getattr(dataset, "__dict__", {}).items()):
        said = f"the dataset's {name}"
        if isinstance(one, random.Random):
            yield said, repr(one.getstate()).encode()
        elif isinstance(one, torch.Generator) and one.device.type == "cpu":
            yield said, generator_state(one)
        elif numpy is not None and isinstance(one, numpy.RandomState):
            yield said, _numpy_state(one.get_state())
        elif numpy is not None and isinstance(one, numpy.Generator):
            yield said, repr(one.bit_generator.state).encode()


def _numpy_state(state: Any) -> bytes:
    return bytes(state[1].tobytes()) + repr(state[2:]).encode()


def _seeded_by() -> str:
    """Returns file.py:12 of the worker_init_fn; empty without one."""
    frame = sys._getframe()
    for _ in range(_MAX_FRAMES):
        if frame.f_back is None:
            break
        frame = frame.f_back
        if frame.f_code.co_name == "_worker_loop":
            return code_place(getattr(frame.f_locals.get("init_fn"), "__code__", None))
    return ""
