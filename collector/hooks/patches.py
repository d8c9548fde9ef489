"""Methods replaced by recording ones, and put back."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ..recorder.private_names import optional


class Patches:
    """What was replaced where. One that cannot be replaced is left as it is."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def replace(
        self, owner: type, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> None:
        """`make` gets the original of the class's own method `name`, and gives its replacement."""
        original = vars(owner).get(name)
        if original is not None:
            self.put(owner, name, make(original))

    def replace_private(
        self,
        owner: type,
        name: str,
        make: Callable[[Callable[..., Any]], Callable[..., Any]],
        lost: str,
    ) -> None:
        """The same for a method that other versions may lack; `lost` as for `optional`."""
        if optional(owner.__module__, f"{owner.__qualname__}.{name}", lost) is not None:
            self.replace(owner, name, make)

    def put(self, owner: type | ModuleType, name: str, replacement: Callable[..., Any]) -> None:
        """`replacement` stands for the class's own method, or a module's function, until `undo`.

        A class that is written in C refuses new attributes, but looks its methods up in a
        dictionary like any other: in that, they are replaced for all its instances, also for those
        that were made before, whatever name the program imported the class under.
        """
        original = vars(owner)[name]
        assign = _assign_to_builtin if isinstance(original, type(type.mro)) else setattr
        assign(owner, name, replacement)
        self._undo.append(lambda: assign(owner, name, original))

    def undo(self) -> None:
        """Put the originals back."""
        while self._undo:
            self._undo.pop()()


def _assign_to_builtin(owner: type | ModuleType, name: str, value: Any) -> None:
    gc.get_referents(owner.__dict__)[0][name] = value
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))
