"""Backward phases: every call into the autograd engine, however it was spelled; its errors."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from types import FrameType
from typing import Any

import torch.autograd
import torch.autograd.graph

from ...format.marks import BackwardRaised
from ...format.record_kinds import PhaseKind
from ...recorder.private_names import optional
from ...recorder.recorder import Recorder
from ..exceptions import sentence
from ..patches import Patches
from ..stacks import Stacks
from .thread_gradients import Contributions

# Tensor.backward, autograd.backward and autograd.grad all end here; the name is imported into
# both modules, so programs that imported `backward` early are covered too.
_HOLDERS = (torch.autograd, torch.autograd.graph)
_NAME = "_engine_run_backward"


def install(
    recorder: Recorder,
    before: Callable[[tuple[Any, ...]], None],
    after: Callable[[], None],
    ended: Callable[[], None],
    contributions: Contributions,
) -> Callable[[], None]:
    """Record backward phases. Of each, `before` gets the engine's arguments at its start, `after`
    runs at its end and `ended` when its phase is closed, all on its thread. `contributions` hears
    of those that add to gradients.

    What a backward raises is marked: a program may catch it, and only the engine's words tell which
    tensor it is about.
    """
    original = optional(torch.autograd.graph.__name__, _NAME, "backward phases")
    if original is None:
        return lambda: None
    is_library = Stacks(recorder.intern, 1).is_library

    @wraps(original)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        try:
            unseen = recorder.thread().busy
            depth = 0 if unseen else recorder.begin_phase("backward", PhaseKind.backward)
        except Exception as error:
            unseen, depth = True, 0
            recorder.failed(error)
        if unseen:
            return original(*args, **kwargs)
        adds = bool(kwargs.get("accumulate_grad", True))
        with recorder.contain_errors():
            before(args)
        if adds:
            with recorder.contain_errors():
                contributions.begin()
        try:
            return original(*args, **kwargs)
        except Exception as error:
            with recorder.contain_errors():
                caller = _caller(sys._getframe(1), is_library)
                recorder.mark(BackwardRaised(sentence(error), caller).encode())
            raise
        finally:
            try:
                if adds:
                    with recorder.contain_errors():
                        contributions.end()
                after()
                recorder.end_phase(depth)
                ended()
            except Exception as error:
                recorder.failed(error)

    patches = Patches()
    for holder in _HOLDERS:
        if vars(holder).get(_NAME) is original:
            patches.put(holder, _NAME, run_backward)
    return patches.undo


def _caller(frame: FrameType | None, is_library: Callable[[str], bool]) -> str:
    """Returns the line of the program that called, `file.py:12`, from the innermost frame on."""
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
