"""Puts the clocks of several ranks' files on one axis.

Files hold wall-clock times, on which hosts agree to milliseconds at best. All ranks leave an
all_reduce together, so the median difference between the completions of the same calls is the
offset of two files, and the spread around it the uncertainty. Files of one host share its clock
unless the calls contradict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..compaction.process_placement import UNCALIBRATED_NS
from ..format.array_types import Int64Array
from ..format.names import PAIRED, SYNCHRONISING
from .spill import CollectiveCall

_MIN_CALLS = 5
"""Calls that a median needs."""

WALL_CLOCKS_AGREE_NS = 100_000
"""Up to here a measured offset may be the time by which a rank leaves collectives later."""

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


def rank_offsets(
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
        measured = len(differences) >= _MIN_CALLS
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


def comparable_groups(calls: Mapping[int, Sequence[CollectiveCall]]) -> set[str]:
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


BY_ORDER = "matched by order"
"""Name of the group of calls that name no process group."""

_SAME_SHAPES = frozenset(["all_reduce", "broadcast"])
"""Operations whose tensors have the same shapes on all ranks."""


def of_no_group(call: CollectiveCall, rank: int) -> bool:
    """Returns True for a collective whose process group the file of a rank does not name."""
    return call.group == f"unknown, of rank {rank}" and call.name not in PAIRED


def same_call_order(calls: Mapping[int, Sequence[CollectiveCall]]) -> bool:
    """Returns True if all ranks made the same calls without a group, at least one, in one order."""
    orders = {
        tuple(
            (call.name, call.dtypes, call.shapes if call.name in _SAME_SHAPES else "")
            for call in own
            if of_no_group(call, rank)
        )
        for rank, own in calls.items()
    }
    return len(calls) > 1 and len(orders) == 1 and orders != {()}


def with_systematic_error(
    found: Mapping[int, Offset], sources: Mapping[int, Source]
) -> dict[int, Offset]:
    """Returns offsets whose uncertainty includes what the median of differences cannot show.

    Ranks leave a collective some microseconds apart, some always later than others. So the
    uncertainty is that of the worst rank. Where the wall clocks agree within WALL_CLOCKS_AGREE_NS,
    they may be right, and the uncertainty reaches to them; beyond, they are other clocks.
    """
    base = sources[min(sources)].base_ns
    worst = max((one.uncertainty_ns for one in found.values() if one.calibrated), default=0)
    checked = {}
    for rank, one in found.items():
        apart = abs(one.offset_ns - (sources[rank].base_ns - base))
        known = apart if apart <= WALL_CLOCKS_AGREE_NS else 0
        checked[rank] = replace(one, uncertainty_ns=max(one.uncertainty_ns, worst, known))
    checked[min(found)] = found[min(found)]
    return checked
