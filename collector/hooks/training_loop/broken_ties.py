"""Finds parameters that were one before a call of their model, and are several after it.

`head.weight = emb.weight` ties them. `load_state_dict(assign=True)` and `to_empty()` give each
module a parameter of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from torch import nn

_MAX_TIES = 8


def shared_names(module: nn.Module) -> list[tuple[str, ...]]:
    """Returns the names of each parameter that modules below share."""
    names: dict[int, list[str]] = {}
    for name, one in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(one), []).append(name)
    several = (tuple(same) for same in names.values() if len(same) > 1)
    return list(islice(several, _MAX_TIES))


def untied(module: nn.Module, before: list[tuple[str, ...]]) -> Iterator[tuple[str, str]]:
    """Yields the names of two parameters of each of the ties `before` that is broken."""
    now = dict(module.named_parameters(remove_duplicate=False)) if before else {}
    for names in before:
        first, *others = names
        for other in others:
            if first in now and other in now and now[first] is not now[other]:
                yield first, other
                break
