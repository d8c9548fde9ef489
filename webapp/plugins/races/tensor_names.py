"""How findings call a racing tensor: parameter, gradient of a parameter, or where it was made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter

import numpy as np

from lanescope.collector.format import schema
from lanescope.webapp.analysis.access_site import (
    CallSite,
    CallSites,
    phase_names,
    storage_names,
)
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.stack_frames import frame_texts, innermost_place
from lanescope.webapp.plugins.races.access_table import Accesses
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import Int64Array

GENERATOR = "a torch.Generator"
"""Name of an odd address; operators write it as they draw random numbers from it."""

MAX_FOLLOWED_ROWS = 2_000
"""Accesses of an optimizer that are read to find the parameter which a gradient changes."""

_COLUMNS = ["start_ns", "depth", "storage", "bytes", "write"]


class TensorNames:
    """Names of the tensors that threads of one rank touch, and the stacks of its operators."""

    def __init__(self, run: Run, rank: int, threads: Sequence[str], sites: CallSites) -> None:
        self._stacks = frame_texts(run, rank)
        self.optimizer = phase_names(run, rank).get(schema.PhaseKind.optimizer.name, set())
        self._run, self._rank = run, rank
        self._threads, self._sites = threads, sites
        self._named = storage_names(run, rank)
        self._gradients: dict[tuple[int, int], str] = {}

    def frames(self, site: CallSite) -> tuple[str, ...]:
        """Returns the stack of a site, innermost first; empty where none was captured."""
        return tuple(self._stacks.get(site.stack, ())) if site.stack is not None else ()

    def of(self, accesses: Accesses, storage: int, generation: int) -> str:
        """Returns the name of the storage that was at an address then."""
        known = GENERATOR if storage % 2 else self._named.get(storage)
        if known:
            return known
        rows = np.flatnonzero((accesses.storage == storage) & (accesses.generation == generation))
        key = storage, generation
        gradient = self._gradients.get(key) or self._gradient(accesses, rows)
        if gradient is None:  # an optimizer may come to it later
            return self._made(accesses, rows[accesses.birth[rows]])
        self._gradients[key] = gradient
        return gradient

    def _made(self, accesses: Accesses, births: Int64Array) -> str:
        if not len(births):
            return "a tensor made before it was first seen"
        site = self._sites.known[int(accesses.site[births[0]])]
        if not site.op:
            return "an unnamed tensor (allocated by torch.empty or similar)"
        at = innermost_place(self.frames(site)) or site.module
        return f"the tensor made by {site.op}" + at_place(at)

    def _gradient(self, accesses: Accesses, rows: Int64Array) -> str | None:
        """`the gradient of 0.weight`, where an optimizer changes 0.weight by it."""
        for row in rows[~accesses.birth[rows]]:
            site = self._sites.known[int(accesses.site[row])]
            if site.phase in self.optimizer or site.op in schema.GRADIENT_RELEASES:
                thread = self._threads[int(accesses.by[row])]
                place = int(accesses.start[row]), int(accesses.storage[row])
                parameter = self._changed_by(thread, *place)
                return f"the gradient of {parameter}" if parameter else None
        return None

    def _changed_by(self, thread: str, start_ns: int, storage: int) -> str | None:
        """The parameter that an optimizer's operators compute of a storage, from one of them on."""
        phases = self._run.events(
            "phase", self._rank, thread, ["start_ns", "duration_ns", "kind"], (start_ns, start_ns)
        ).to_pylist()
        of = [p for p in phases if p["kind"] == schema.PhaseKind.optimizer.name]
        ends = (p["start_ns"] + (p["duration_ns"] or 0) for p in of)
        window = start_ns, max(ends, default=start_ns + 1)
        table = self._run.events("access", self._rank, thread, _COLUMNS, window)
        found = table.slice(0, MAX_FOLLOWED_ROWS).to_pylist()
        size = next((one["bytes"] for one in found if one["storage"] == storage), None)
        alike = (one for one in found if one["bytes"] == size and one["start_ns"] >= start_ns)
        from_it = {storage}
        for _, op in groupby(alike, itemgetter("start_ns", "depth")):
            parameter = parameter_of(list(op), from_it, self._named)
            if parameter is not None:
                return parameter
        return None


def parameter_of(
    op: Sequence[Mapping[str, int]], from_it: set[int], named: Mapping[int, str]
) -> str | None:
    """Returns the parameter that an operator computes of storages `from_it`, or releases with them,
    by its accesses of tensors of one size; what else it computes of them joins `from_it`.

    An operator on lists has the tensors of each parameter in the same order in all its lists.
    """
    read = list(dict.fromkeys(one["storage"] for one in op if not one["write"]))
    written = list(dict.fromkeys(one["storage"] for one in op if one["write"]))
    parameters = [one for one in written if one in named]
    parameters = parameters or [one for one in read if one in named]
    others = [[one for one in of if one not in named] for of in (read, written)]
    for position, one in (pair for of in others for pair in enumerate(of)):
        if one in from_it and parameters:
            return named[parameters[position % len(parameters)]]
    reached = (position for position, one in enumerate(others[0]) if one in from_it)
    from_it.update(written[position % len(written)] for position in reached if written)
    return None
