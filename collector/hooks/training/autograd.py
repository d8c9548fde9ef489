"""Records backward phases: every call into the autograd engine, and its errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.autograd
import torch.autograd.graph

from ...format.marks import BackwardRaised
from ...format.record_kinds import PhaseKind
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext, Undo
from ..exceptions import error_sentence
from ..graphs.autograd_graph import Graphs
from ..patches import Patches, caller
from ..stacks import Stacks, program_line
from ..threads.suspended_modes import SuspendedModes
from ..training_loop.left_gradients import LeftGradients
from ..training_loop.paired_rows import PairedRows
from ..training_loop.scaled_gradients import ScaledGradients
from ..training_loop.scaled_losses import ScaledLosses
from .optimizers import Optimizers
from .thread_gradients import ThreadGradients

# Tensor.backward, autograd.backward and autograd.grad all end here.
_NAME = "_engine_run_backward"


def install(
    recorder: Recorder,
    before: Callable[[tuple[Any, ...]], None],
    after: Callable[[], None],
    ended: Callable[[], None],
    thread_gradients: ThreadGradients,
) -> Callable[[], None]:
    """Records backward phases, and marks their errors: the program may catch them.

    On the thread of each backward, `before` gets the engine's arguments at its start, `after` runs
    at its end and `ended` once its phase is closed. `thread_gradients` gets begin and end of each
    that adds to gradients.
    """
    is_library = Stacks(recorder.intern, 1).is_library

    def begins(*args: Any, **kwargs: Any) -> tuple[int, bool] | None:
        if recorder.thread().busy:
            return None
        depth = recorder.begin_phase("backward", PhaseKind.backward)
        adds = bool(kwargs.get("accumulate_grad", True))
        with recorder.contain_errors():
            before(args)
        with recorder.contain_errors():
            (thread_gradients.begin if adds else thread_gradients.trains)()
        return depth, adds

    def ends(began: tuple[int, bool], _: Any) -> None:
        depth, adds = began
        if adds:
            with recorder.contain_errors():
                thread_gradients.end()
        after()
        recorder.end_phase(depth)
        ended()

    def raised(began: tuple[int, bool], error: BaseException) -> None:
        with recorder.contain_errors():
            place = program_line(caller(), is_library)
            recorder.mark(BackwardRaised(error_sentence(error), place).encode())
        ends(began, None)

    patches = Patches()
    patches.ends(
        torch.autograd.graph,
        _NAME,
        begins,
        ends,
        raised,
        lost="backward phases",
        also=(torch.autograd.__name__,),
    )
    return patches.undo


def _hook(context: HookContext) -> Undo:
    sample, losses = context.get(Graphs).sample, context.find(ScaledLosses)
    left, modes = context.find(LeftGradients), context.find(SuspendedModes)
    scaled = context.find(ScaledGradients)
    pairs = context.share(PairedRows(context.recorder))

    def before(args: tuple[Any, ...]) -> None:
        if losses is not None:
            losses.backward(args)
        if left is not None:
            left.backward()
        if modes is not None:
            modes.backward()
        pairs.backward(args)
        sample(args)

    def after() -> None:
        if losses is not None:
            losses.backward_ended()
        if left is not None:
            left.backward_ended()
        if scaled is not None:
            scaled.backward_ended()
        context.flush_node()

    return install(
        context.recorder,
        before,
        after,
        context.get(Optimizers).backward_ended,
        context.get(ThreadGradients),
    )


HOOK = Hook("backward phases", _hook)
