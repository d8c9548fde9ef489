"""Finds containers that list one module several times: `nn.ModuleList([block] * 6)`."""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Iterator
from itertools import islice

import torch

from ...format.names import LISTED_MODULE
from ..stacks import code_line
from .modules import Modules, clean_paths, own_class, unwrap

_CONTAINERS = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.Sequential)
_MAX_LISTED = 20
"""Modules of one model."""


def listed_modules(root: torch.nn.Module, modules: Modules) -> Iterator[tuple[str, float]]:
    """Yields names of LISTED_MODULE, and how many times the module is listed."""
    yield from islice(_listed(root, modules), _MAX_LISTED)


def _listed(root: torch.nn.Module, modules: Modules) -> Iterator[tuple[str, float]]:
    known = dict(clean_paths(root))
    for path, container in known.items():
        if not isinstance(container, _CONTAINERS):
            continue
        entries = [one for one in container._modules.values() if one is not None]
        for one, times in Counter(entries).items():
            parameter = next(one.parameters(), None) if times > 1 else None
            name = None if parameter is None else modules.parameter_name(parameter)
            if name is not None:
                owner, _, attribute = path.rpartition(".")
                place = _assigned(known.get(owner), attribute)
                shown = path or own_class(container).__name__
                kind = own_class(unwrap(one)).__name__
                yield f"{LISTED_MODULE}{place}/{shown}/{kind}/{name}", float(times)


def _assigned(owner: torch.nn.Module | None, attribute: str) -> str:
    """Returns file.py:12 where the owner's __init__ sets an attribute; empty: not known."""
    made = None if owner is None else getattr(own_class(owner), "__init__", None)
    code = getattr(made, "__code__", None)
    if code is None or not attribute:
        return ""
    numbers = [line for *_, line in code.co_lines() if line is not None]
    for line in range(code.co_firstlineno, max(numbers, default=0) + 1):
        if linecache.getline(code.co_filename, line).lstrip().startswith(f"self.{attribute} "):
            return code_line(code, line)
    return ""
