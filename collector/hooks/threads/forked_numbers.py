"""Records from which state of torch's default generator forked processes draw, until they set one.

A forked process begins with its parent's generator: processes that are forked one after the other
draw the same numbers.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import torch

from ...format.loop_names import FORKED_STATE, STATE_SET
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext
from ..training.replication import generator_state, short_hash


class ForkedNumbers:
    """Writes a value named FORKED_STATE in each forked process, and one named STATE_SET."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._alone = False  # the forking thread was the only one
        self._inherits = False  # this process was forked, and has set no state yet

    def forking(self) -> None:
        """Notes before a fork whether other threads run."""
        self._alone = threading.active_count() == 1

    def forked(self) -> None:
        """Records the state that this process begins with."""
        if not self._alone:  # another may have held the generator's lock, which stays held here
            return
        with self._recorder.own_torch():
            state = short_hash(generator_state(torch.default_generator))
        self._recorder.value(FORKED_STATE, state)
        self._inherits = True

    def sets(self, *_: Any) -> None:
        """Records that this process sets a seed or a state of its own."""
        if self._inherits and not self._recorder.thread().busy:
            self._inherits = False
            self._recorder.value(STATE_SET, 1.0)


def _hook(context: HookContext) -> None:
    numbers, patches = context.share(ForkedNumbers(context.recorder)), context.patches
    # torch.manual_seed has a hook in seeded_samples.py.
    for name in ("seed", "set_rng_state"):
        patches.ends(torch, name, numbers.sets)
    os.register_at_fork(before=numbers.forking)


HOOK = Hook("random numbers of forked processes", _hook, levels=("access", "numerics"))
