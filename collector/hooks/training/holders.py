"""Finds the model that a part of it belongs to, which may be called alone."""

from __future__ import annotations

import weakref
from collections import defaultdict

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
        holders = self._holders()
        seen = {id(module)}
        while len(held_by := holders[id(module)]) == 1 and seen.isdisjoint(held_by):
            ((key, module),) = held_by.items()
            seen.add(key)
        return module

    def _holders(self) -> defaultdict[int, dict[int, torch.nn.Module]]:
        """Modules that hold one, by its id and theirs."""
        found: defaultdict[int, dict[int, torch.nn.Module]] = defaultdict(dict)
        for reference in [*self._made.values()]:
            holder = reference()
            # None yet while it is being made.
            children = None if holder is None else vars(holder).get("_modules")
            if holder is not None and isinstance(children, dict):
                for child in [*children.values()]:
                    found[id(child)][id(holder)] = holder
        return found
