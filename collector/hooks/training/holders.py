"""Finds the model that a part of it belongs to, which may be called alone."""

from __future__ import annotations

import weakref

import torch

_MAX_MODULES = 20_000
"""Modules that may hold others."""

_MAX_SEARCHES = 200
"""Parts whose model is looked for; each search goes through all modules."""


class Holders:
    """Knows the modules that the program makes, as long as they exist."""

    def __init__(self) -> None:
        # By id: modules may compare, and hash, as the program likes.
        self._made: dict[int, weakref.ref[torch.nn.Module]] = {}
        self._searches = 0

    def made(self, module: torch.nn.Module) -> None:
        """Takes note of a module that is being made."""
        if len(self._made) < _MAX_MODULES:
            self._made[id(module)] = weakref.ref(module)

    def outermost(self, module: torch.nn.Module) -> torch.nn.Module:
        """Returns the module that holds a module, and is held by none; the module itself where none
        or several hold it."""
        if self._searches >= _MAX_SEARCHES:
            return module
        self._searches += 1
        seen = {id(module)}
        made = [one for reference in [*self._made.values()] if (one := reference()) is not None]
        while True:
            holders = [one for one in made if _holds(one, module)]
            if len(holders) != 1 or id(holders[0]) in seen:
                return module
            module = holders[0]
            seen.add(id(module))


def _holds(holder: torch.nn.Module, module: torch.nn.Module) -> bool:
    children = vars(holder).get("_modules")  # none yet while it is being made
    return isinstance(children, dict) and any(child is module for child in [*children.values()])
