"""Defines a hook: the record at the end of each module that observes something."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from torch.utils.hooks import RemovableHandle

from ..format.options import LEVELS
from ..recorder.recorder import Recorder
from .patches import Patches
from .stacks import Stacks

Undo = Callable[[], object]
_T = TypeVar("_T")

_own_numbers = [-(1 << 60)]
"""Number of the recorder's next handle."""


@contextmanager
def own_handles() -> Iterator[None]:
    """Numbers handles of torch's hooks apart: by number a program may know its own ones.

    For the start of a recording alone: a thread that registers a hook at the same time may get a
    number twice.
    """
    kept, RemovableHandle.next_id = RemovableHandle.next_id, _own_numbers[0]
    try:
        yield
    finally:
        _own_numbers[0], RemovableHandle.next_id = RemovableHandle.next_id, kept


class HookContext:
    """Recorder and engine for a hook, and objects that earlier hooks leave for later ones."""

    enter_engine: Callable[[], AbstractContextManager[None]]
    flush_node: Callable[[], None]
    patches: Patches
    """Of the hook that is being installed; the session undoes them as it stops."""

    def __init__(self, recorder: Recorder, library: Any | None) -> None:
        """`library`: the native engine's; None with the portable engine."""
        self.recorder = recorder
        self.library = library
        self.stacks = Stacks(recorder.intern, recorder.options.stack_depth)
        self.collective_stacks = self.stacks if recorder.options.collective_stacks else None
        self._shared: dict[type, Any] = {}

    def share(self, made: _T) -> _T:
        """Leaves an object for later hooks, which ask for it by its type; returns it."""
        self._shared[type(made)] = made
        return made

    def find(self, kind: type[_T]) -> _T | None:
        """Returns what an earlier hook left; None if it left nothing."""
        return self._shared.get(kind)

    def get(self, kind: type[_T]) -> _T:
        """Returns what an earlier hook left. Raises LookupError if it left nothing."""
        found = self.find(kind)
        if found is None:
            raise LookupError(f"no {kind.__name__}")
        return found


@dataclass(frozen=True)
class Hook:
    """One observed subject. `registry.py` lists all hooks, in the order of installation."""

    name: str
    """Name in the run's coverage if this version of torch or Python breaks it."""

    install: Callable[[HookContext], Undo | None]
    """Starts observing; returns what undoes more than the context's `patches`. May raise: other
    hooks still run."""

    levels: tuple[str, ...] = LEVELS
    """Levels of recording at which it is installed."""

    native: bool = False
    """True if only the native engine uses it."""

    required: bool = False
    """True if nothing can be recorded without it: an error of `install` ends the recording."""
