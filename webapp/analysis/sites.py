"""Which operator made an access, and at which line of the program it was called."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lanescope.webapp.run import Run

Ints = NDArray[np.int64]

_DEPTHS = 256  # of operators within each other; start and depth together name an operator


@dataclass(frozen=True)
class Site:
    """An operator at a place. `stack` is the id of its stack in the rank; None: not captured."""

    op: str
    module: str
    phase: str
    stack: int | None


@dataclass
class Sites:
    """All sites seen so far, each with a number."""

    known: list[Site] = field(default_factory=list)
    _numbers: dict[Site, int] = field(default_factory=dict)

    def of(
        self, run: Run, rank: int, thread: str, start: Ints, depth: NDArray[Any]
    ) -> tuple[Ints, Ints]:
        """Site's number and training step of each access of a thread, by its operator's start
        and depth.

        An operator of which no stack was captured takes that of its like (same operator, module
        and phase on the same thread) where all captured ones were at one place.
        """
        columns = ["start_ns", "depth", "name", "module", "phase", "stack", "step"]
        ops = run.events("op", rank=rank, thread=thread, columns=columns)
        key = ops["start_ns"].to_numpy() * _DEPTHS + ops["depth"].to_numpy()
        wanted = start * _DEPTHS + depth.astype(np.int64)
        order = np.argsort(key, kind="stable")
        position = np.searchsorted(key[order], wanted)
        safe = order[np.minimum(position, max(len(order) - 1, 0))] if len(order) else position
        numbers = np.full(len(wanted), self._number(Site("", "", "", None)), np.int64)
        steps = np.zeros(len(wanted), np.int64)
        if not len(order):
            return numbers, steps
        found = key[safe] == wanted
        rows, inverse = np.unique(safe[found], return_inverse=True)
        sites = self._sites(ops.take(pa.array(rows)))
        numbers[found] = np.array([self._number(site) for site in sites], np.int64)[inverse]
        steps[found] = ops["step"].to_numpy()[safe[found]]
        return numbers, steps

    def _sites(self, ops: pa.Table) -> list[Site]:
        names, modules, phases = (
            ops[column].cast(pa.string()).to_pylist() for column in ("name", "module", "phase")
        )
        stacks = ops["stack"].to_pylist()
        places: dict[tuple[str, str, str], set[int]] = {}
        for *like, stack in zip(names, modules, phases, stacks, strict=True):
            if stack is not None:
                places.setdefault((like[0], like[1], like[2]), set()).add(stack)
        return [
            Site(name, module, phase, _only(places.get((name, module, phase))) if s is None else s)
            for name, module, phase, s in zip(names, modules, phases, stacks, strict=True)
        ]

    def _number(self, site: Site) -> int:
        number = self._numbers.setdefault(site, len(self.known))
        if number == len(self.known):
            self.known.append(site)
        return number


def _only(stacks: set[int] | None) -> int | None:
    return next(iter(stacks)) if stacks and len(stacks) == 1 else None


def frames_of(run: Run, rank: int) -> dict[int, list[str]]:
    """Stack id -> its frames as "file:line function", innermost first."""
    table = run.events("stack", rank=rank, columns=["stack", "frames"])
    return {
        row["stack"]: [f"{f['file']}:{f['line']} {f['function']}" for f in row["frames"]]
        for row in table.to_pylist()
    }


def storage_names(run: Run, rank: int) -> dict[int, str]:
    """Address of a storage -> name of the parameter or buffer in it."""
    table = run.events("storage", rank=rank, columns=["storage", "name"])
    names: dict[int, list[str]] = {}
    for storage, name in zip(*(table[c].to_pylist() for c in table.column_names), strict=True):
        names.setdefault(storage, []).append(name)
    return {storage: ", ".join(sorted(set(found))) for storage, found in names.items()}
