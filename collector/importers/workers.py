"""Finds the ranks and steps of files that hold several workers.

Ranks come from labels of processes such as `[TP00-DP01] 4711`, which SGLang writes when it merges
traces, or from a field that the user names (`--rank-from pid --step-from args.step`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .import_limits import ImportRejected
from .spill import GLOBAL, WORKER_LABEL, Trace
from .worker_slices import LAST_NUMBER, move_by_argument

_OUTER_FIRST = ("PP", "DP", "EP", "TP")
_MAX_RANKS = 100_000


@dataclass(frozen=True)
class Fields:
    """Where events hold their rank and step: `pid`, `tid` or `args.NAME`; None: not asked for."""

    rank: str | None = None
    step: str | None = None


NO_FIELDS = Fields()


@dataclass(frozen=True)
class Workers:
    """Lanes of each rank, its process in words, and groups of ranks with their description."""

    lanes: dict[int, list[int]]
    words: dict[int, str]
    groups: dict[str, tuple[list[int], str]]


def merged_workers(trace: Trace) -> Workers | None:
    """Returns the ranks of a merged trace; None unless processes are labelled by coordinates.

    Ranks are numbered by pipeline, data, expert and tensor coordinate. Ranks that differ in one
    coordinate alone are a group.
    """
    found: defaultdict[tuple[tuple[str, int], ...], list[int]] = defaultdict(list)
    others = []
    for number, lane in enumerate(trace.lanes.lanes):
        label = WORKER_LABEL.fullmatch(lane.pid) if isinstance(lane.pid, str) else None
        if label is None:
            others.append(number)
        else:
            parts = ((one[:2], int(one[2:])) for one in label[1].split("-"))
            found[tuple(sorted(parts, key=_place))].append(number)
    if not found:
        return None
    ranks = dict(enumerate(sorted(found, key=lambda parts: [value for _, value in parts])))
    lanes = {rank: found[parts] for rank, parts in ranks.items()}
    lanes[0] += others
    words = {rank: "-".join(f"{n}{v:02}" for n, v in parts) for rank, parts in ranks.items()}
    return Workers(lanes, words, _groups(ranks))


def chosen_workers(trace: Trace, fields: Fields) -> Workers:
    """Returns the ranks of a trace by a field of its events, after moving events to their lanes.

    Numbers from 0 without a gap are the ranks; other values are numbered in order.
    """
    assert fields.rank is not None
    first = move_by_argument(trace, fields.rank) if fields.rank.startswith("args.") else 0
    found: defaultdict[Any, list[int]] = defaultdict(list)
    others = []
    for number, lane in enumerate(trace.lanes.lanes):
        if number < first or lane.pid == GLOBAL:
            others.append(number)
        else:
            found[lane.tid if fields.rank == "tid" else lane.pid].append(number)
    if not 0 < len(found) <= _MAX_RANKS:
        raise ImportRejected(
            f"{trace.path}: has {len(found):,} values of {fields.rank}, expected the ranks of a job"
        )
    words, lanes = {}, {}
    for rank, value in enumerate(sorted(found, key=_by_number)):
        lanes[rank] = found[value]
        pids = {trace.lanes.lanes[lane].pid for lane in found[value]}
        names = {trace.process_names[pid] for pid in pids if pid in trace.process_names}
        named = f" ({names.pop()})" if len(names) == 1 else ""
        words[rank] = f"{value}{named}" if first else f"{fields.rank} {value}{named}"
    lanes[0] += others
    return Workers(lanes, words, {})


def _place(part: tuple[str, int]) -> tuple[int, str]:
    known = part[0] in _OUTER_FIRST
    return (_OUTER_FIRST.index(part[0]) if known else -1), part[0]


def _groups(ranks: Mapping[int, tuple[tuple[str, int], ...]]) -> dict[str, tuple[list[int], str]]:
    found: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for rank, parts in ranks.items():
        for name, _ in parts:
            others = "-".join(f"{n}{v:02}" for n, v in parts if n != name)
            found[name, others].append(rank)
    return {
        f"{name} of {others}" if others else name: (members, name)
        for (name, others), members in found.items()
        if len(members) > 1
    }


def _by_number(value: Any) -> tuple[float, str]:
    found = LAST_NUMBER.fullmatch(str(value))
    return (int(found[1]) if found else float("inf")), str(value)
