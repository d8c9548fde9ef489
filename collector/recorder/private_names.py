"""Looks up private names of torch and CPython, which other versions may lack.

A missing name does not stop the recording: the events that need it are not recorded, and the run's
coverage lists them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

from ..format.names import MISSING


class Lookup(NamedTuple):
    """A private name and the events that need it."""

    module: str
    name: str  # dotted, within the module
    lost: str  # empty: nothing


_looked_up: dict[Lookup, bool] = {}
_unavailable: dict[str, str] = {}


def optional(module: str, name: str, lost: str) -> Any | None:
    """Returns the object `module.name`; None if this version lacks it.

    `lost` describes the events that are then not recorded; empty: the caller has a substitute.
    """
    found = _find(module, name)
    _looked_up[Lookup(module, name, lost)] = found is not None
    return found


def _find(module: str, name: str) -> Any | None:
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return None
    return found


def unavailable(lost: str, why: str) -> None:
    """Notes that something is not recorded in this process, and why."""
    _unavailable[lost] = why


def looked_up() -> tuple[Lookup, ...]:
    """Returns every lookup of this process so far, in order."""
    return tuple(_looked_up)


def missing_names() -> tuple[str, ...]:
    """Returns the reasons for the coverage of this process: one per name that is missing."""
    names = (
        f"{MISSING}{one.lost} (no {one.module}.{one.name})"
        for one, found in list(_looked_up.items())
        if one.lost and not found
    )
    return (*names, *(f"{MISSING}{lost} ({why})" for lost, why in list(_unavailable.items())))
