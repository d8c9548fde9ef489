"""Puts the clocks of several ranks' files on one axis.

Files hold wall-clock times, on which hosts agree to milliseconds at best. All ranks leave an
all_reduce together, so the median difference between the completions of the same calls is the
offset of two files, and the spread around it the uncertainty. Files of one host share its clock
unless the calls contradict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..compaction.process_placement import UNCALIBRATED_NS
from .spill import CollectiveCall
from .timestamps import Int64Array

SYNCHRONISING = frozenset(
    [
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
    ]
)
"""Operations that end on all ranks together."""

MIN_CALLS = 5
"""Calls that a median needs."""

_ANY_HOST = ("", "localhost")


@dataclass(frozen=True)
class Source:
    """Clock of a file."""

    base_ns: int  # wall-clock time that the file's times count from
    host: str  # name of the host; empty: unknown


@dataclass(frozen=True)
class Offset:
    """Offset to add to a file's times, with its uncertainty and the clock it was measured by."""

    offset_ns: int
    uncertainty_ns: int
    calibrated: bool
    clock: str


def offsets(
    sources: Mapping[int, Source], calls: Mapping[int, Sequence[CollectiveCall]]
) -> dict[int, Offset]:
    """Returns the offset of each rank's file. The lowest rank's file is the axis."""
    reference = min(sources)
    first = sources[reference]
    clock = f"host {first.host}" if first.host not in _ANY_HOST else f"file of rank {reference}"
    found = {reference: Offset(0, 0, True, clock)}
    known = _completions(calls.get(reference, ()))
    for rank in sorted(set(sources) - {reference}):
        source = sources[rank]
        base = source.base_ns - first.base_ns
        differences = _differences(known, _completions(calls.get(rank, ())))
        middle = int(np.median(differences)) if len(differences) else base
        spread = np.sort(np.abs(differences - middle))
        # A tenth may be calls whose completion one rank's thread noticed late.
        within = int(spread[int(0.9 * (len(spread) - 1))]) + 1 if len(spread) else 0
        measured = len(differences) >= MIN_CALLS
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


def _differences(
    known: Mapping[tuple[str, int], int], mine: Mapping[tuple[str, int], int]
) -> Int64Array:
    """Returns by how many ns the calls of both completed later on the first clock."""
    shared = sorted(set(known) & set(mine))
    return np.array([known[key] - mine[key] for key in shared], np.int64)


def _completions(calls: Sequence[CollectiveCall]) -> dict[tuple[str, int], int]:
    return {
        (call.group, call.sequence): call.complete
        for call in calls
        if call.complete is not None and call.name in SYNCHRONISING
    }


def comparable(calls: Mapping[int, Sequence[CollectiveCall]]) -> set[str]:
    """Returns the groups whose calls are the same, in the same order, on all ranks that have any.

    A trace covers a window of a training; only in these groups the k-th calls of ranks match.
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
