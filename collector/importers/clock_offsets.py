"""The clocks of several ranks' files on one axis.

Files tell instants of the wall clock, which hosts agree on to milliseconds at best. No rank leaves
an all_reduce before all have entered, and all leave it together: the median difference of the
instants at which the same calls were complete is the offset between two files, and how far calls
are from it is how well it is known. Files of one host share its clock, unless that says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .spill import Call
from .timestamps import I64

SYNCHRONISING = frozenset(
    {
        "all_reduce",
        "all_reduce_coalesced",
        "all_gather",
        "all_gather_coalesced",
        "all_gather_into_tensor",
        "all_gather_into_tensor_coalesced",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "reduce_scatter_tensor_coalesced",
        "all_to_all",
        "all_to_all_single",
        "barrier",
        "monitored_barrier",
    }
)
"""Operations that end on all ranks together."""

FEWEST = 5
"""Calls below which a median says little."""

UNCALIBRATED_NS = 1_000_000_000
"""Uncertainty stated where files are aligned by wall clock alone."""


_ANY_HOST = ("", "localhost")


@dataclass(frozen=True)
class Source:
    """What a file says of its clock."""

    base_ns: int  # what its times count from, of the wall clock
    host: str  # name of the host; empty: not told


@dataclass(frozen=True)
class Offset:
    """What to add to a file's times, how exactly that is known, and by which clock it was made."""

    offset_ns: int
    uncertainty_ns: int
    calibrated: bool
    clock: str


def offsets(
    sources: Mapping[int, Source], calls: Mapping[int, Sequence[Call]]
) -> dict[int, Offset]:
    """Offset of each rank's file. The lowest rank's file is the axis."""
    reference = min(sources)
    first = sources[reference]
    clock = f"host {first.host}" if first.host not in _ANY_HOST else f"file of rank {reference}"
    found = {reference: Offset(0, 0, True, clock)}
    known = _completions(calls.get(reference, ()))
    for rank in sorted(set(sources) - {reference}):
        source = sources[rank]
        base = source.base_ns - first.base_ns
        apart = _apart(known, _completions(calls.get(rank, ())))
        middle = int(np.median(apart)) if len(apart) else base
        spread = np.sort(np.abs(apart - middle))
        # A tenth may be calls that one rank's thread noticed late.
        within = int(spread[int(0.9 * (len(spread) - 1))]) + 1 if len(spread) else 0
        measured = len(apart) >= FEWEST
        own = f"file of rank {rank}"
        if source.host == first.host not in _ANY_HOST and (
            not measured or abs(middle - base) <= within
        ):
            found[rank] = Offset(base, 0, True, clock)
        elif measured:
            found[rank] = Offset(middle, within, True, own)
        else:
            found[rank] = Offset(base, UNCALIBRATED_NS, False, own)
    return found


def _apart(known: Mapping[tuple[str, int], int], mine: Mapping[tuple[str, int], int]) -> I64:
    """How much later the same calls were complete by the first clock than by the other."""
    shared = sorted(set(known) & set(mine))
    return np.array([known[key] - mine[key] for key in shared], np.int64)


def _completions(calls: Sequence[Call]) -> dict[tuple[str, int], int]:
    return {
        (call.group, call.sequence): call.complete
        for call in calls
        if call.complete is not None and call.name in SYNCHRONISING
    }


def comparable(calls: Mapping[int, Sequence[Call]]) -> set[str]:
    """Groups whose calls are the same, in the same order, on all ranks that have any.

    A trace begins and ends somewhere in a training; only then is the k-th call of one rank that of
    another.
    """
    seen: dict[str, dict[int, list[tuple[str, str]]]] = {}
    for rank, own in calls.items():
        for call in own:
            if call.peer is None and call.name not in ("send", "recv"):
                ranks = seen.setdefault(call.group, {})
                ranks.setdefault(rank, []).append((call.name, call.dtypes))
    return {
        group for group, ranks in seen.items() if len({tuple(one) for one in ranks.values()}) == 1
    }
