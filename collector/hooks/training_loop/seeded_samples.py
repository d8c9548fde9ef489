"""Records that a dataset sets a seed for each sample, which draws random numbers then, and which
threads set a seed."""

from __future__ import annotations

import threading
from collections import Counter
from threading import get_ident
from typing import Any

import torch
from torch.utils.data import get_worker_info

from ...format.loop_names import SEEDED_SAMPLES, THREAD_SEED
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext
from ..patches import caller
from ..stacks import Stacks, program_place
from ..threads.forked_numbers import ForkedNumbers
from ..training.replication import generator_state

_MAX_FETCHES = 64
"""Fetches of a process that are looked at."""

_MAX_THREADS = 100
"""Threads that set a seed and are noted."""


class SeededSamples:
    """Writes a value named SEEDED_SAMPLES per fetch of the program's own process."""

    def __init__(self, recorder: Recorder, stacks: Stacks) -> None:
        self._recorder = recorder
        self._is_library = stacks.is_library
        self._fetches = 0
        self._thread = 0  # that fetches
        self._last = ""  # where which seed was set last
        self._fresh = b""  # state of the generator after that
        self._drawn: Counter[str] = Counter()

    def fetches(self) -> bool:
        """Begins a fetch; of those of workers it is not known whether they are for training."""
        if self._fetches >= _MAX_FETCHES or not self._recorder.active or get_worker_info():
            return False
        self._fetches += 1
        self._thread, self._last = get_ident(), ""
        self._drawn.clear()
        return True

    def fetched(self) -> None:
        """Records for how many samples of a fetch numbers were drawn after a seed was set."""
        self._look_back()
        self.failed()
        for name, samples in self._drawn.items():
            self._recorder.value(f"{SEEDED_SAMPLES}{name}", float(samples))

    def failed(self) -> None:
        """Ends a fetch."""
        self._thread = 0

    def seeds(self, seed: Any) -> str | None:
        """Looks at a call of torch.manual_seed() within a fetch."""
        if self._thread != get_ident() or type(seed) is not int or self._recorder.thread().busy:
            return None
        self._look_back()
        return f"{program_place(caller(), self._is_library)}/{seed}"

    def seeded(self, name: str, _: Any) -> None:
        """Keeps the state that a seed gives."""
        self._last, self._fresh = name, self._state()

    def _look_back(self) -> None:
        if self._last and self._state() != self._fresh:
            self._drawn[self._last] += 1
        self._last = ""

    def _state(self) -> bytes:
        with self._recorder.own_torch():
            return generator_state(torch.default_generator)


def _hook(context: HookContext) -> None:
    patches, forked = context.patches, context.get(ForkedNumbers)
    samples = context.share(SeededSamples(context.recorder, context.stacks))

    threads = set[int]()

    def seeds(seed: Any) -> str | None:
        forked.sets()
        own = get_ident()
        beside = own != threading.main_thread().ident and context.recorder.active
        if beside and own not in threads and len(threads) < _MAX_THREADS:
            threads.add(own)
            context.recorder.value(THREAD_SEED, 1.0)
        return samples.seeds(seed)

    patches.ends(torch, "manual_seed", seeds, samples.seeded, lost=_LOST)


_LOST = "seeds that datasets set"
HOOK = Hook(_LOST, _hook, levels=("access", "numerics"))
