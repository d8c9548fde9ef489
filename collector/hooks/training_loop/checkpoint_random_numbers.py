"""Records checkpointed functions whose second run, in backward, draws other random numbers.

`checkpoint(preserve_rng_state=False)` leaves the generators as they are, so dropout drops other
elements than in forward, and the gradient is that of another function.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

import torch
from torch.utils import checkpoint

from ...format.loop_names import NUMBERS_DRAWN_AGAIN
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext
from ..patches import caller
from ..stacks import Stacks, program_place
from ..training.replication import random_states

_Began = tuple[FrameType | None, list[tuple[str, float]]]


class DrawnAgain:
    """Writes a value named NUMBERS_DRAWN_AGAIN for each such call."""

    def __init__(self, recorder: Recorder, stacks: Stacks) -> None:
        self._recorder = recorder
        self._is_library = stacks.is_library

    def begins(self, *args: Any, preserve_rng_state: bool = True, **_: Any) -> _Began | None:
        """Notes the generators' states before a function that does not keep it."""
        kept = preserve_rng_state or not torch.is_grad_enabled()
        if kept or not self._recorder.active or torch.compiler.is_compiling():
            return None
        with self._recorder.own_torch():
            return caller(), [*random_states()]

    def ended(self, began: _Began, result: Any) -> None:
        """Compares with the states after its first run."""
        frame, before = began
        with self._recorder.own_torch():
            after = [*random_states()]
        if before != after:
            place = program_place(frame, self._is_library)
            self._recorder.value(f"{NUMBERS_DRAWN_AGAIN}{place}", 1.0)


def _hook(context: HookContext) -> None:
    drawn = DrawnAgain(context.recorder, context.stacks)
    lost = "checkpointed functions that draw other random numbers in backward"
    context.patches.ends(checkpoint, "checkpoint", drawn.begins, drawn.ended, lost=lost)


HOOK = Hook("random numbers of checkpointed functions", _hook)
