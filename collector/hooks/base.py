"""Defines a hook: the record at the end of each module that observes something."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..format.options import LEVELS
from ..recorder.recorder import Recorder
from .stacks import Stacks

if TYPE_CHECKING:
    from .collectives.clocks import Clocks
    from .devices.cuda_contexts import CudaContexts
    from .devices.device import Device
    from .graphs.autograd_graph import Graphs
    from .graphs.fx_graphs import FxGraphs
    from .threads.contexts import Contexts
    from .threads.sync_events import SyncRecorder
    from .training.batches import Batches
    from .training.gradients import Gradients
    from .training.modules import Modules
    from .training.norms import Norms
    from .training.optimizers import Optimizers
    from .training.thread_gradients import ThreadGradients
    from .validators import Validators

Undo = Callable[[], object]


class HookContext:
    """Recorder and engine for a hook, and objects that earlier hooks leave for later ones."""

    modules: Modules
    norms: Norms
    gradients: Gradients
    optimizers: Optimizers
    fx_graphs: FxGraphs
    graphs: Graphs
    thread_gradients: ThreadGradients
    clocks: Clocks
    sync: SyncRecorder
    contexts: Contexts
    validators: Validators
    batches: Batches | None = None
    cuda: CudaContexts | None = None
    device: Device | None = None
    enter_engine: Callable[[], AbstractContextManager[None]]
    flush_node: Callable[[], None]

    def __init__(self, recorder: Recorder, library: Any | None) -> None:
        """`library`: the native engine's; None with the portable engine."""
        self.recorder = recorder
        self.library = library
        self.stacks = Stacks(recorder.intern, recorder.options.stack_depth)
        self.collective_stacks = self.stacks if recorder.options.collective_stacks else None


@dataclass(frozen=True)
class Hook:
    """One observed subject. `registry.py` lists all hooks, in the order of installation."""

    name: str
    """Name in the run's coverage if this version of torch or Python breaks it."""

    install: Callable[[HookContext], Undo | None]
    """Starts observing; returns the undo function. May raise: other hooks still run."""

    levels: tuple[str, ...] = LEVELS
    """Levels of recording at which it is installed."""

    native: bool = False
    """True if only the native engine uses it."""

    required: bool = False
    """True if nothing can be recorded without it: an error of `install` ends the recording."""
