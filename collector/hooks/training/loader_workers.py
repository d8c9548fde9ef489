"""Records what workers of a DataLoader must not share: states of random generators, and samples.

Once per worker, at its first fetch: hashes of the generators from which that fetch draws, those of
Python, numpy and torch and those that the dataset and its transforms hold. Generators that the
fetch seeds again are left out: their numbers come from that seed. Of an IterableDataset,
whose workers may shuffle alike before each takes its share, a hash of the first two batches.
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
from ..training_loop.worker_copies import attributes_of, dataset_parts
from .activations import tensors_in
from .batches import few_of, raw_bytes
from .norms import has_norm
from .replication import generator_state, short_hash

_MAX_FRAMES = 8
_FIRST, _SECOND = 1, 2

_PYTHON = 3
"""Version of the states of Python's generator."""

_WORDS = 624
"""Words of the Mersenne Twister, which Python and numpy.random have; it replaces them once they are
used up."""

_MAX_TURNS = 64
"""So often they are replaced to see whether they are those that a fetch left."""


class LoaderWorkers:
    """Writes values named WORKER_STATE and WORKER_BATCH in the process of a worker."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._fetches = 0
        self._before: dict[str, Any] = {}

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
            with self._recorder.contain_errors():
                for name, state in self._before.items():
                    if _drew(state, after.get(name)):
                        said = f"{WORKER_STATE}{iteration}/{name}/{_seeded_by()}"
                        self._recorder.value(said, short_hash(repr(state).encode()))
            self._before = {}
        if isinstance(fetcher.dataset, IterableDataset):
            self._batch(iteration, batch)

    def _states(self, dataset: Any) -> dict[str, Any]:
        states: dict[str, Any] = {}
        with self._recorder.contain_errors(), self._recorder.own_torch():
            states.update(_generators(dataset))
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


def _generators(dataset: Any) -> Iterator[tuple[str, Any]]:
    """Yields names and states of generators."""
    yield "random", random.getstate()
    yield "torch", _torch_state(torch.default_generator)
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        yield "numpy.random", _numpy_state(numpy)
    for path, owner, _ in dataset_parts(dataset):
        for name, one in attributes_of(owner):
            said = f"the dataset's {path}{name}"
            if isinstance(one, random.Random):
                yield said, one.getstate()
            elif isinstance(one, torch.Generator) and one.device.type == "cpu":
                yield said, _torch_state(one)
            elif numpy is not None and isinstance(one, numpy.RandomState):
                yield said, _numpy_state(one)
            elif numpy is not None and isinstance(one, numpy.Generator):
                yield said, _generator_state(one.bit_generator.state)


def _torch_state(generator: torch.Generator) -> tuple[Any, Any]:
    return generator.initial_seed(), generator_state(generator)


def _generator_state(state: dict[str, Any]) -> tuple[Any, Any]:
    """Returns what a seed changes and draws do not, and the whole state."""
    seeded = {one: of for one, of in state["state"].items() if one not in ("state", "counter")}
    return repr(seeded), repr(state)


def _numpy_state(generator: Any) -> tuple[Any, Any]:
    """Returns a state, that of a Mersenne Twister in the way in which Python's generator has it."""
    state = generator.get_state(legacy=False)
    if state["bit_generator"] != "MT19937":
        return _generator_state(state)
    words = (*state["state"]["key"].tolist(), int(state["state"]["pos"]))
    return (state["has_gauss"], state["gauss"]), words


def _drew(before: tuple[Any, ...], after: tuple[Any, ...] | None) -> bool:
    """Whether a generator that had one state has another one because numbers were drawn from it."""
    if after is None or before == after:
        return False
    if not isinstance(before[1], tuple):
        return bool(before[0] == after[0])
    twister = random.Random()
    twister.setstate((_PYTHON, before[1], None))
    for _ in range(_MAX_TURNS):
        if twister.getstate()[1][:_WORDS] == after[1][:_WORDS]:
            return True
        twister.getrandbits(32 * _WORDS)
    return False


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
