"""Finds threads that run backward at the same time into the same gradients.

Autograd locks each leaf while it adds to its gradient, so nothing is lost; but the order of the
additions, and what a step of the optimizer finds, changes from run to run. Found from races
(`races`) both of whose accesses are made in backward, where the two phases truly overlapped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.webapp.analysis.access_site import MemoryAccess
from lanescope.webapp.analysis.arrow_columns import having
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.forward_ops import BACKWARD, maker
from lanescope.webapp.analysis.links import timeline_address
from lanescope.webapp.analysis.nothing_to_check import need_accesses, need_backward, need_threads
from lanescope.webapp.plugins.races.races import Race, find_races
from lanescope.webapp.plugins.threads.overlap import Region, overlap_regions, phase_lanes
from lanescope.webapp.runs import units
from lanescope.webapp.runs.intervals import Intervals, at_least, enclosing
from lanescope.webapp.runs.run import Run

_PHASE = schema.PhaseKind.backward.name

_NAMED = 4  # threads, in a title


def concurrent_backwards(run: Run) -> list[Finding]:
    """Returns findings of kind `concurrent_backward`, one per set of threads.

    Raises NotApplicable where accesses were not recorded.
    """
    need_threads(run)
    need_accesses(run)
    need_backward(run)
    groups: dict[tuple[int, tuple[str, ...]], list[Race]] = {}
    for race in backward_races(run):
        groups.setdefault((race.rank, race.threads), []).append(race)
    found = []
    for (rank, threads), races in groups.items():
        lanes = phase_lanes(run, rank)
        both = at_least([lanes[thread] for thread in threads if thread in lanes], 2)
        if len(both):
            found.append(_finding(run, rank, threads, races, both))
    return found


def backward_races(run: Run) -> list[Race]:
    """Returns the races of backward with itself in which a gradient is added to: not those of hooks
    and functions of the program. The first addition takes over what another operator made."""
    return [
        race
        for race in find_races(run)
        if race.first.phase == race.second.phase == _PHASE and race.first.write
        if any(_accumulates(run, race.rank, one) for one in (race.first, race.second))
    ]


def _accumulates(run: Run, rank: int, access: MemoryAccess) -> bool:
    window = access.start_ns, access.start_ns + 1
    names = run.events("op", rank, access.thread, ["name"], window)["name"]
    return bool(having(names, _ACCUMULATES.search).any())


def gradients_added_twice(run: Run) -> int:
    """Counts gradients to which autograd's own threads added for several overlapping passes.

    All passes over a device share its thread, so their additions never race. But one pass adds to
    a leaf once: a gradient that was made and added to, or added to twice, while passes overlapped
    belongs to more than one of them.
    """
    regions = overlap_regions(run, _PHASE)
    return len({found for region in regions for found in _added_twice(run, region)})


def _added_twice(run: Run, region: Region) -> Iterator[tuple[str, int]]:
    """Yields thread and address of each."""
    window = region.start_ns, region.end_ns
    passes = phase_lanes(run, region.rank, _PHASE, window)
    threads = [one for one in run.threads_of(region.rank) if one.kind == _AUTOGRAD]
    if not threads or any(len(passes[thread]) > 1 for thread in region.threads):
        return  # one thread's passes one after the other may add to the same gradient
    for thread in threads:
        ops = run.events(
            "op", region.rank, thread.thread, ["start_ns", "duration_ns", "name"], window
        )
        ops = ops.filter(pa.array(having(ops["name"], _ACCUMULATES.search)))
        start = ops["start_ns"].to_numpy()
        end = start + ops["duration_ns"].fill_null(0).to_numpy()
        columns = ["start_ns", "storage", "write", "birth"]
        rows = run.events("access", region.rank, thread.thread, columns, window)
        inside = enclosing(start, end, rows["start_ns"].to_numpy()) >= 0
        born = rows["birth"].to_numpy()
        added = rows["storage"].to_numpy()[inside & rows["write"].to_numpy() & ~born]
        gradients, times = np.unique(added, return_counts=True)
        made = np.isin(gradients, rows["storage"].to_numpy()[born])
        yield from ((thread.thread, one) for one in gradients[times + made > 1].tolist())


_AUTOGRAD = schema.ThreadKind.native.name
_ACCUMULATES = re.compile(r"AccumulateGrad$")

_ADVICE = (
    "Let all of them hold one lock in backward, or give each thread its own model and add the "
    "gradients afterwards."
)


def _finding(
    run: Run, rank: int, threads: tuple[str, ...], races: Sequence[Race], both: Intervals
) -> Finding:
    called = [one.name for one in run.threads_of(rank) if one.thread in threads]
    longest = int((both.end - both.start).argmax())
    start, end = int(both.start[longest]), int(both.end[longest])
    tensors = list(dict.fromkeys(tensor for race in races for tensor in race.tensors))
    race = min(races, key=lambda one: one.first.start_ns)
    places = " and ".join(dict.fromkeys((race.first.place, race.second.place)))
    shared = _shared_nodes(run, rank, threads)
    also = (
        f". {units.counted(shared, 'node')} of one graph ran in several threads" if shared else ""
    )
    return Finding(
        kind="concurrent_backward",
        severity="error",
        title=f"{_called(called)} run backward at the same time into the "
        f"same {units.counted(len(tensors), 'gradient')} for {units.duration(both.total)} in all, "
        f"at {places}{also}. {_ADVICE}",
        rank=rank,
        thread=race.first.thread,
        step=race.first.step,
        time_ns=start,
        where=race.first.where,
        evidence={
            # First those of the region that is shown.
            "threads": list(dict.fromkeys((*_longest(run, rank, (start, end)), *threads))),
            "gradients": tensors,
            "overlap_ns": both.total,
            "regions": len(both),
            "shared_nodes": shared,
            "first": race.first.to_json(),
            "second": race.second.to_json(),
            "advice": _ADVICE,
        },
        link=timeline_address(start, end, run.duration_ns) + "&overlaps=1",
    )


def _longest(run: Run, rank: int, window: tuple[int, int]) -> tuple[str, ...]:
    """Returns the threads of a rank's longest overlap of backward passes in a window."""
    regions = overlap_regions(run, _PHASE, window)
    return next((one.threads for one in regions if one.rank == rank), ())


def _called(names: Sequence[str]) -> str:
    """Returns each name once: many threads, one per step, may share few names."""
    unique = list(dict.fromkeys(names))
    if len(unique) == len(names) <= _NAMED:
        return f"Threads {' and '.join(unique)}"
    more = ", …" if len(unique) > _NAMED else ""
    return f"{len(names)} threads ({', '.join(unique[:_NAMED])}{more})"


def _shared_nodes(run: Run, rank: int, threads: Sequence[str]) -> int:
    """Nodes made by one forward operator that two of the threads ran."""
    columns = ["start_ns", "name", "scope", "sequence", "thread"]
    by: dict[tuple[int, str], set[str]] = {}
    for thread in threads:
        for ops in run.pieces("op", rank, thread, ["name", "scope", "sequence"]):
            nodes = pc.and_(
                pa.array(having(ops["scope"], BACKWARD.__eq__)), pc.is_valid(ops["sequence"])
            )
            for node in ops.filter(nodes).to_pylist():
                by.setdefault((node["sequence"], node["name"]), set()).add(thread)
    several = {key for key, ran in by.items() if len(ran) > 1}
    if not several:
        return 0
    numbers = pa.array(sorted({number for number, _ in several}), pa.int64())
    rows: dict[int, list[dict[str, Any]]] = {}
    for ops in run.pieces("op", rank, columns=columns):
        for row in ops.filter(pc.is_in(ops["sequence"], numbers)).to_pylist():
            rows.setdefault(row["sequence"], []).append(row)
    ran_by: dict[tuple[str, int, str], set[str]] = {}
    for number, same in rows.items():
        for node in same:
            if node["scope"] == BACKWARD and (number, node["name"]) in several:
                position = maker(node, same)
                if position is not None:
                    made = same[position]
                    key = (made["thread"], made["start_ns"], node["name"])
                    ran_by.setdefault(key, set()).add(node["thread"])
    return sum(len(ran) > 1 for ran in ran_by.values())
