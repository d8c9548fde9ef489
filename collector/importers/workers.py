"""Finds the ranks and steps of files that hold several workers.

Ranks come from labels of processes such as `[TP00-DP01] 4711`, which SGLang writes when it merges
traces, or from a field that the user names (`--rank-from pid --step-from args.step`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from ..format.record_kinds import PhaseKind
from .limits import ImportRejected
from .spill import (
    FUNCTION,
    GLOBAL,
    NONE,
    PHASE_KIND,
    SLICE_ROW,
    USER,
    WORKER_LABEL,
    CollectiveCall,
    Rows,
    Spill,
    Trace,
    column,
)

_OUTER_FIRST = ("PP", "DP", "EP", "TP")
_LAST_NUMBER = re.compile(r"\D*(\d{1,9})")
_MAX_RANKS = 100_000
_BATCH_ROWS = 1 << 16

_PHASES = (
    (PhaseKind.forward, re.compile(r"(forward|fwd|f(?=[-_ ]?\d))", re.IGNORECASE)),
    (PhaseKind.backward, re.compile(r"(backward|bwd|b(?=[-_ ]?\d))", re.IGNORECASE)),
    (PhaseKind.optimizer, re.compile(r"(optimizer|opt\b)", re.IGNORECASE)),
)
_CALL = re.compile(
    r"i?(send|recv)|(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|barrier)",
    re.IGNORECASE,
)
_CALL_NAMES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
}


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
    first = _move_by_argument(trace, fields.rank) if fields.rank.startswith("args.") else 0
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


def take_steps(trace: Trace, lanes: Mapping[int, list[int]], step: str | None) -> None:
    """Rewrites the slices of a trace of workers: steps, phases, and calls by their names.

    Slices count as work unless the file has operators of torch. Slices named forward, backward or
    optimizer are phases too, and each rank gets a phase per step.
    """
    rows = np.array(trace.slices.rows())
    if step is not None:
        _fill_steps(trace, rows, step)
    added = [rows]
    if not (column(rows, "kind") == FUNCTION).any():
        rows["kind"][rows["kind"] == USER] = FUNCTION
        names, which = np.unique(rows["name"], return_inverse=True)
        texts = [trace.text(number) for number in names.tolist()]
        kinds = np.array([_phase_kind(text) for text in texts] or [0])[which]
        slices = rows["kind"] == FUNCTION
        phases = rows[slices & (kinds > 0)]
        phases["kind"], phases["args_bytes"] = kinds[slices & (kinds > 0)], 0
        added.append(phases)
        calls = np.array([_CALL.match(text) is not None for text in texts] or [False])[which]
        trace.named_calls = list(_calls(trace, rows[slices & calls], lanes))
    if step is not None:
        added += [_step_phases(trace, rows, mine) for mine in lanes.values()]
    trace.slices = Spill(trace.slices.path.with_name("slices of workers"), SLICE_ROW, trace.path)
    trace.slices.add(np.concatenate(added))


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


def _values(trace: Trace, rows: Rows, field: str) -> Iterator[tuple[int, Any]]:
    """Yields the row and value of each slice that has an argument. ImportRejected: none has."""
    keys = field.split(".")[1:]
    seen: set[str] = set()
    some = False
    for first in range(0, len(rows), _BATCH_ROWS):
        texts = trace.arguments.column(rows[first : first + _BATCH_ROWS]).to_pylist()
        for row, text in enumerate(texts, first):
            value: Any = _decoded(text)
            if len(seen) < 10 and isinstance(value, dict):
                seen |= set(value)
            for key in keys:
                value = value.get(key) if isinstance(value, dict) else None
            if value is not None:
                some = True
                yield row, value
    if not some:
        names = ", ".join(f"args.{name}" for name in sorted(seen)) or "no arguments at all"
        raise ImportRejected(f"{trace.path}: no slice has {field}, found {names}")


def _decoded(text: str | None) -> Any:
    try:
        return msgspec.json.decode(text) if text else None
    except (ValueError, RecursionError):
        return None


def _fill_steps(trace: Trace, rows: Rows, field: str) -> None:
    for row, value in _values(trace, rows, field):
        found = _LAST_NUMBER.fullmatch(str(value))
        if found is not None and int(found[1]) < 1 << 31:
            rows["step"][row] = int(found[1])
        else:
            trace.counts["unread_steps"] += 1


def _by_number(value: Any) -> tuple[float, str]:
    found = _LAST_NUMBER.fullmatch(str(value))
    return (int(found[1]) if found else float("inf")), str(value)


def _move_by_argument(trace: Trace, field: str) -> int:
    """Puts each slice on a lane of the process that its argument names; returns the first one."""
    rows = np.array(trace.slices.rows())
    lanes = trace.lanes
    first = len(lanes.lanes)
    for row, value in _values(trace, rows, field):
        lane = lanes.lanes[int(rows["lane"][row])]
        number = lanes[f"{field} {value}"[:200], lane.tid, lane.stream]
        lanes.lanes[number].name, lanes.lanes[number].device = lane.name, lane.device
        rows["lane"][row] = number
    trace.slices = Spill(trace.slices.path.with_name("slices by rank"), SLICE_ROW, trace.path)
    trace.slices.add(rows)
    return first


def _phase_kind(name: str) -> int:
    return next((PHASE_KIND + kind for kind, pattern in _PHASES if pattern.match(name)), 0)


def _calls(trace: Trace, rows: Rows, lanes: Mapping[int, list[int]]) -> Iterator[CollectiveCall]:
    rank_of = {lane: rank for rank, mine in lanes.items() for lane in mine}
    for row in rows.tolist():
        start, duration, name, lane = row[:4]
        found = _CALL.match(trace.text(name))
        assert found is not None  # the rows were chosen by it
        bare = (found[1] or found[2]).lower()
        end = None if duration < 0 else start + duration
        group = f"unknown, of rank {rank_of[lane]}"
        known = _CALL_NAMES.get(bare.replace("_", ""), bare)
        yield CollectiveCall(known, lane, start, end, end, group, None, "", "", 0)


def _step_phases(trace: Trace, rows: Rows, lanes: list[int]) -> Rows:
    """Returns a phase for each step of a rank, from its first slice to the end of the last."""
    mine = rows[np.isin(rows["lane"], lanes) & (rows["step"] != NONE)]
    steps, which = np.unique(mine["step"], return_inverse=True)
    first = np.full(len(steps), np.iinfo(np.int64).max)
    last = np.full(len(steps), np.iinfo(np.int64).min)
    np.minimum.at(first, which, mine["start"])
    np.maximum.at(last, which, mine["start"] + np.maximum(mine["duration"], 0))
    found = np.zeros(len(steps), SLICE_ROW)
    found["start"], found["duration"], found["step"] = first, last - first, steps
    found["sequence"] = found["correlation"] = NONE
    found["lane"], found["kind"] = lanes[0], PHASE_KIND + PhaseKind.user
    found["name"] = [trace.texts[f"Step#{step}"] for step in steps.tolist()]
    return found
