"""Captures of CUDA graphs: what a thread gives to streams meanwhile becomes a part of a graph.

Nothing of it runs before the graph is replayed. Writes a phase for each capture.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from ..format.names import CAPTURE
from ..format.record_kinds import PhaseKind
from ..recorder.recorder import Recorder
from .base import Hook, HookContext


def capturing() -> bool:
    """Returns True during a capture on the calling thread's stream.

    What the recorder computed then would become a part of the program's graph, and memory for
    the host or a question to an event would end the capture with an error.
    """
    cuda: Any = torch.cuda  # torch leaves it untyped
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())


class _Captures(threading.local):
    """The phases of the calling thread's captures, outer ones first."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._depths: list[int] = []

    def begun(self, *_: Any) -> None:
        with self._recorder.contain_errors():
            self._depths.append(self._recorder.begin_phase(CAPTURE, PhaseKind.user))

    def ended(self, *_: Any) -> None:
        with self._recorder.contain_errors():
            if self._depths:
                self._recorder.end_phase(self._depths.pop())


def _hook(context: HookContext) -> None:
    captures, patches = _Captures(context.recorder), context.patches
    graph: Any = torch.cuda.CUDAGraph
    patches.ends(graph, "capture_begin", None, captures.begun)
    # One that fails has ended, too.
    patches.ends(graph, "capture_end", None, captures.ended, captures.ended)


HOOK = Hook("captures of CUDA graphs", _hook)
