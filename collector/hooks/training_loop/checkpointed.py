"""Records checkpointed functions whose gradient is wrong or missing.

`checkpoint(preserve_rng_state=False)` leaves the generators as they are, so in its second run, in
backward, dropout drops other elements than in forward: the gradient is that of another function.
`use_reentrant=True` has a second run only where an input requires a gradient, so behind a frozen
embedding, or right behind the data, parameters within get none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.utils import checkpoint

from ...format.loop_names import CUT_OFF_CHECKPOINT, NUMBERS_DRAWN_AGAIN
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext, Undo
from ..patches import Patches, caller
from ..stacks import Stacks, program_place
from ..training.replication import random_states

_Began = tuple[FrameType | None, list[tuple[str, float]]]

_CALLS_OF_A_PLACE = 20
"""Calls without a gradient that are recorded of a line."""


class Checkpointed:
    """Writes values named NUMBERS_DRAWN_AGAIN and CUT_OFF_CHECKPOINT for such calls."""

    def __init__(self, recorder: Recorder, stacks: Stacks) -> None:
        self._recorder = recorder
        self._is_library = stacks.is_library
        self._cut_off: Counter[str] = Counter()

    def begins(
        self,
        function: Any = None,
        *args: Any,
        use_reentrant: bool | None = None,
        preserve_rng_state: bool = True,
        **_: Any,
    ) -> _Began | None:
        """Notes the generators' states before a function that does not keep it."""
        quiet = not self._recorder.active or torch.compiler.is_compiling()
        if quiet or not torch.is_grad_enabled():
            return None
        with self._recorder.own_torch():
            if use_reentrant is not False:
                self._look(function, args)
            return None if preserve_rng_state else (caller(), [*random_states()])

    def _look(self, function: Any, args: tuple[Any, ...]) -> None:
        """Records parameters in training whose gradient ends here."""
        if any(isinstance(one, torch.Tensor) and one.requires_grad for one in args):
            return
        trained = sum(
            parameter.requires_grad
            for module in _modules(function)
            if module.training
            for parameter in module.parameters()
        )
        if not trained:
            return
        name = f"{CUT_OFF_CHECKPOINT}{program_place(caller(), self._is_library)}"
        self._cut_off[name] += 1
        if self._cut_off[name] <= _CALLS_OF_A_PLACE:
            self._recorder.value(name, float(trained))

    def ended(self, began: _Began, result: Any) -> None:
        """Compares with the states after its first run."""
        frame, before = began
        with self._recorder.own_torch():
            after = [*random_states()]
        if before != after:
            place = program_place(frame, self._is_library)
            self._recorder.value(f"{NUMBERS_DRAWN_AGAIN}{place}", 1.0)


def _modules(function: Any) -> Iterator[nn.Module]:
    """Yields modules that a function is, belongs to, or has in its closure."""
    cells = getattr(function, "__closure__", None) or ()
    for one in (function, getattr(function, "__self__", None), *map(_content, cells)):
        if isinstance(one, nn.Module):
            yield one


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it has none yet
        return None


def _hook(context: HookContext) -> Undo:
    patches = Patches()
    seen = Checkpointed(context.recorder, context.stacks)
    lost = "checkpointed functions whose gradient is wrong or missing"
    patches.ends(checkpoint, "checkpoint", seen.begins, seen.ended, lost=lost)
    return patches.undo


HOOK = Hook("checkpointed functions", _hook)
