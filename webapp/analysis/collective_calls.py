"""The collective calls of all ranks side by side: who is in a group, which calls belong together.

The same call has the same sequence number in its group on every rank. Sends and receives count on
their own, per peer, and are listed in `POINT_TO_POINT`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from weakref import WeakKeyDictionary

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.process_exits import of_last_attempt
from lanescope.webapp.runs.run import Run

POINT_TO_POINT = ("send", "recv")

_COLUMNS = (
    "rank",
    "thread",
    "start_ns",
    "duration_ns",
    "complete_ns",
    "name",
    "group",
    "group_size",
    "sequence",
    "peer",
    "root",
    "reduce_op",
    "splits",
    "shapes",
    "dtypes",
    "bytes",
    "asynchronous",
    "runnable_ns",
    "step",
    "phase",
    "stack",
)


_KNOWN: WeakKeyDictionary[Run, pd.DataFrame] = WeakKeyDictionary()


def calls(run: Run) -> pd.DataFrame:
    """Returns every collective call, by rank and start: the columns of the collective table
    (COLUMNS).

    Where the job was started again, those of the last attempt.

    Added are `returned_ns` (end of the call, -1: it never returned), `done_ns` (completion, -1: not
    seen) and `position`, the row's place in the rank's own table. Times are int64 ns from the start
    of the run; peer, root and stack are -1 without one, runnable_ns 0 where it is not
    known. Callers must not change it.
    """
    if run not in _KNOWN:
        _KNOWN[run] = _recorded(run)
    return _KNOWN[run]


def _recorded(run: Run, rank: int | None = None) -> pd.DataFrame:
    events = run.events("collective", rank, columns=list(_COLUMNS))
    position = np.arange(len(events)) - np.searchsorted(events["rank"], events["rank"])
    returned = pc.add(events["start_ns"], events["duration_ns"]).fill_null(-1)
    done = events["complete_ns"].fill_null(-1)
    events = events.drop_columns(["duration_ns", "complete_ns"])
    for name, unknown in (("peer", -1), ("root", -1), ("stack", -1), ("runnable_ns", 0)):
        place = events.column_names.index(name)
        events = events.set_column(place, name, events[name].fill_null(unknown))
    for name, column in (("returned_ns", returned), ("done_ns", done)):
        events = events.append_column(name, column)
    frame = to_frame(events)
    frame["position"] = position
    frame = of_last_attempt(run, frame)
    return frame.sort_values(["rank", "start_ns"], kind="stable", ignore_index=True)


def rank_calls(run: Run, rank: int) -> pd.DataFrame:
    """Returns the rows of `calls` of a rank, with their labels. Callers must not change it."""
    frame = calls(run)
    low, high = np.searchsorted(frame["rank"], [rank, rank + 1])
    return frame.iloc[low:high]


@lru_cache(maxsize=4)
def calls_alone(run: Run, rank: int) -> pd.DataFrame:
    """Returns the rows of `calls` of a rank without reading other ranks, if that was not done."""
    return rank_calls(run, rank) if run in _KNOWN else _recorded(run, rank)


def collective_calls(run: Run) -> pd.DataFrame:
    """Returns the rows of `calls` that all ranks of a group make together."""
    frame = calls(run)
    return frame[~frame["name"].isin(POINT_TO_POINT)]


def point_to_point_calls(run: Run) -> pd.DataFrame:
    """Returns the rows of `calls` between two ranks."""
    frame = calls(run)
    return frame[frame["name"].isin(POINT_TO_POINT)]


@lru_cache(maxsize=4)
def group_members(run: Run) -> Mapping[str, tuple[int, ...]]:
    """Returns global ranks of each process group, by their position in it; empty where not known.

    As the ranks themselves said; else all ranks of the job where the group is as large as it, else
    the ranks that were seen in it where these are all. Not known are those of `ambiguous` groups.
    """
    found: dict[str, tuple[int, ...]] = {}
    unclear = ambiguous(run)
    for group, (sizes, ranks) in _seen(run).items():
        size = max(sizes, default=0)
        if group in unclear:
            found[group] = ()
        elif group in run.manifest["groups"]:
            found[group] = tuple(run.manifest["groups"][group]["ranks"])
        elif size == run.world_size:
            found[group] = tuple(range(run.world_size))
        else:
            found[group] = tuple(sorted(ranks)) if size == len(ranks) else ()
    return found


@lru_cache(maxsize=4)
def ambiguous(run: Run) -> frozenset[str]:
    """Returns names of process groups that several groups share.

    torch numbers them from 0 again where a program leaves its groups and makes others, and in each
    of several jobs that one program starts. What calls of such a name belong together is not
    known, so they are not held against each other.
    """
    found = set() if run.imported else _of_several_jobs(run)
    for group, (sizes, ranks) in _seen(run).items():
        known = run.manifest["groups"].get(group)
        if len(sizes) > 1 or (known and known["ranks"] and not ranks <= set(known["ranks"])):
            found.add(group)
    return frozenset(found)


def _of_several_jobs(run: Run) -> set[str]:
    """Names of groups in which one rank is several processes."""
    rows = calls(run)[["group", "rank", "thread"]].drop_duplicates()
    rows = rows.assign(pid=[str(one).partition("-")[0] for one in rows["thread"]])
    pids = rows.groupby(["group", "rank"], observed=True)["pid"].nunique()
    return {str(group) for group, _ in pids.index[pids > 1]}


@lru_cache(maxsize=4)
def _seen(run: Run) -> Mapping[str, tuple[set[int], set[int]]]:
    """Per process group the sizes and the ranks that its calls name."""
    seen: dict[str, tuple[set[int], set[int]]] = {}
    rows = calls(run)[["group", "group_size", "rank"]].drop_duplicates()
    for row in rows.itertuples(index=False):
        sizes, ranks = seen.setdefault(str(row.group), (set(), set()))
        if row.group_size > 0:
            sizes.add(int(row.group_size))
        ranks.add(int(row.rank))
    return seen


@dataclass(frozen=True, eq=False)
class Exchange:
    """What one rank sends another in a group, and what that receives of it: rows of `calls`, in
    the order of their numbers. The k-th send meets the k-th receive."""

    group: str
    sender: int
    receiver: int
    sends: pd.DataFrame
    receives: pd.DataFrame


@lru_cache(maxsize=4)
def exchanges(run: Run) -> tuple[Exchange, ...]:
    """Returns every exchange of two recorded ranks whose sends and receives can be paired.

    Those of a receiver that takes from any sender cannot. Callers must not change the rows.
    """
    recorded, members = {*run.ranks}, group_members(run)
    rows = point_to_point_calls(run)
    groups, of_group = np.unique(rows["group"].to_numpy(object).astype(str), return_inverse=True)
    peer, rank = rows["peer"].to_numpy(np.int64), rows["rank"].to_numpy(np.int64)
    sends = (rows["name"] == "send").to_numpy(bool)
    other = np.full(len(rows), -1)
    for number, group in enumerate(groups.tolist()):
        ranks = np.array(members[group], np.int64)
        mine = np.flatnonzero((of_group == number) & (peer >= 0) & (peer < len(ranks)))
        other[mine] = ranks[peer[mine]]
    took = np.flatnonzero(~sends & (peer < 0))
    anyone = set(zip(of_group[took].tolist(), rank[took].tolist(), strict=True))
    known = np.flatnonzero(other >= 0)
    sender = np.where(sends, rank, other)[known]
    receiver = np.where(sends, other, rank)[known]
    # Sorted once: to choose and sort the rows of each pair takes far longer.
    keys = rows["sequence"].to_numpy()[known], ~sends[known], receiver, sender, of_group[known]
    order = np.lexsort(keys)
    rows, taken = rows.iloc[known[order]], keys[1][order]
    pairs = np.stack([keys[4], sender, receiver], axis=1)[order]
    begins = np.flatnonzero((np.diff(pairs, axis=0) != 0).any(axis=1)) + 1
    found: list[Exchange] = []
    for low, high in pairwise([0, *begins.tolist(), len(rows)]) if len(rows) else ():
        number, *pair = pairs[low].tolist()
        if (number, pair[1]) in anyone or not {*pair} <= recorded:
            continue
        middle = low + int(np.searchsorted(taken[low:high], True))
        group = str(groups[number])
        found.append(Exchange(group, pair[0], pair[1], rows[low:middle], rows[middle:high]))
    return tuple(found)


def call_title(run: Run, name: str, group: str, sequence: int) -> str:
    """Returns what to call a call: `all_reduce #3 of group 0 (default_pg)`, or
    `init_process_group`."""
    return name if name == schema.JOIN else f"{name} #{sequence} of {group_title(run, group)}"


def group_title(run: Run, group: str) -> str:
    """Returns what to call a group: `group 0 (default_pg)`."""
    if group == schema.RENDEZVOUS:
        return "the start of the job"
    known = run.manifest["groups"].get(group)
    described = known["description"] if known else ""
    known_as = "" if described in ("", "undefined") else f" ({described})"
    return f"group {group}{known_as}"
