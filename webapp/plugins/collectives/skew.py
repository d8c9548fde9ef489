"""Finds the last rank to arrive at each collective, its delay, and the transfer time.

For the call with one sequence number of one group, over the ranks that made it, with start_r the
beginning of the call on rank r and done_r its completion:

    skew       = max start_r - min start_r            arrival skew
    last       = argmax start_r                       the last-comer
    alone      = start_last - second largest start    what the last-comer alone costs all others
    runnable   = of the time before start_last: the last-comer's thread was ready and had no
                 processor
    waiting_r  = max start - start_r                  time rank r waits for the others to come
    transfer   = max done_r - max start_r             what remains when all have come

Only calls that every recorded member of the group made are looked at, and in which all ranks
waited for the last: because no rank can leave the operation before (`names.SYNCHRONISING`), or
because none did. A root may leave a broadcast at once, but Gloo's waits for those that receive, and
all wait for a root that comes last; see `_all_waited`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from lanescope.collector.format.names import SYNCHRONISING
from lanescope.webapp.analysis.collective_calls import (
    ambiguous,
    collective_calls,
    group_members,
    point_to_point_calls,
)
from lanescope.webapp.analysis.findings import NotRecorded
from lanescope.webapp.analysis.incomplete_collectives import incomplete_collectives
from lanescope.webapp.analysis.nothing_to_check import need_ranks, need_recorded
from lanescope.webapp.analysis.rank_state import rank_states
from lanescope.webapp.runs.intervals import Intervals
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import Float64Array, Int64Array

COLLECTIVE_KEYS = ["group", "sequence"]

_FROM_ROOT = ("broadcast", "scatter")
"""Operations in which all get what the root has."""

_COLUMNS = [
    *COLLECTIVE_KEYS,
    "name",
    "bytes",
    "step",
    "ranks",
    "first_ns",
    "last_ns",
    "first_rank",
    "last_rank",
    "skew_ns",
    "alone_ns",
    "done_ns",
    "transfer_ns",
    "runnable_ns",
]

MIN_SKEW_NS = 10_000_000
"""Two or three time slices of a busy machine: less may be chance, and next time another rank."""


def comparable_arrivals(run: Run) -> pd.DataFrame:
    """Returns the rows of `arrivals` to which two ranks or more came.

    Raises NotApplicable where there are none, and where the clocks of the ranks were not compared.
    """
    need_ranks(run)
    if not run.clock_calibrated:
        raise NotRecorded(
            "record all ranks with one lanescope record: their clocks were not compared"
        )
    every = arrivals(run)
    return need_recorded(every[every["ranks"] > 1], "record collective calls of two ranks or more")


def arrival_evidence(arrival: pd.Series) -> dict[str, Any]:
    """Returns which call a row of `arrivals` is of and how late the last rank came, as evidence."""
    return {
        "group": str(arrival["group"]),
        "sequence": int(arrival["sequence"]),
        "op": str(arrival["name"]),
        "skew_ns": int(arrival["skew_ns"]),
    }


@lru_cache(maxsize=4)
def arrivals(run: Run) -> pd.DataFrame:
    """Returns one row per collective of a group, in order of time.

    group, sequence, name, bytes, step, ranks (that came), first_ns, last_ns (first and last
    arrival), first_rank, last_rank, skew_ns, alone_ns (from the last but one arrival to the last,
    without the time that the last one was kept waiting itself; 0 where the first one did not wait;
    both 0 with one rank), done_ns (last completion, or return of the call where none was seen),
    transfer_ns (NaN where not all were seen to complete), runnable_ns (what the last one came later
    because it was ready to run without a processor for longer than the others; 0 where it is not
    known). Callers must not change it.
    """
    frame = collective_calls(run)
    frame = frame[~frame["group"].isin(ambiguous(run))]
    frame = frame.sort_values([*COLLECTIVE_KEYS, "start_ns"], kind="stable")
    # When the call would have begun had its thread never waited for a processor.
    frame["ready_ns"] = frame["start_ns"] - frame["runnable_ns"]
    groups = frame.groupby(COLLECTIVE_KEYS, sort=False)
    table = groups.agg(
        name=("name", "first"),
        bytes=("bytes", "max"),
        step=("step", "max"),
        ranks=("rank", "nunique"),
        count=("rank", "size"),
        first_ns=("start_ns", "first"),
        last_ns=("start_ns", "last"),
        first_rank=("rank", "first"),
        last_rank=("rank", "last"),
        last_thread=("thread", "last"),
        ready_ns=("ready_ns", "last"),
        root=("root", "first"),
        done_ns=("done_ns", "max"),
        seen=("done_ns", "min"),
        returned_ns=("returned_ns", "max"),
    )
    before = frame.loc[groups["start_ns"].nth(-2).index].set_index(COLLECTIVE_KEYS)["start_ns"]
    table["second"] = before.reindex(table.index).fillna(table["last_ns"]).astype("int64")
    others = frame.drop(groups.tail(1).index).groupby(COLLECTIVE_KEYS, sort=False)["ready_ns"].max()
    table["ready_ns"] -= others.reindex(table.index).fillna(table["ready_ns"]).astype("int64")
    table = table.reset_index()
    whole = {
        group: sum(r in run.ranks for r in ranks) for group, ranks in group_members(run).items()
    }
    expected = pd.Series([whole.get(group, 0) for group in table["group"]], table.index, int)
    table = table[(table["ranks"] == table["count"]) & (table["ranks"] >= expected)]
    waited = table["name"].isin(SYNCHRONISING)
    if run.clock_calibrated:
        waited |= _all_waited(run, table[~waited]).reindex(table.index, fill_value=False)
    table = table[waited]
    table = table.assign(
        skew_ns=table["last_ns"] - table["first_ns"],
        alone_ns=(table["last_ns"] - table["second"] - _kept_waiting(run, frame, table)).where(
            ~_went_on(run, table), 0
        ),
        runnable_ns=(table["last_ns"] - table["second"] - table["ready_ns"]).clip(lower=0),
        transfer_ns=np.where(
            table["seen"] >= 0, np.maximum(table["done_ns"] - table["last_ns"], 0), np.nan
        ),
        done_ns=np.where(table["seen"] >= 0, table["done_ns"], table["returned_ns"]),
    )
    return table[_COLUMNS].sort_values("first_ns", kind="stable", ignore_index=True)


def _kept_waiting(run: Run, frame: pd.DataFrame, table: pd.DataFrame) -> pd.Series:
    """For how long of the time before its arrival the thread that came last to a call of `table`
    waited within other ones, ns: it hands on a delay that another rank causes.

    A call of a group (`frame`) holds its thread until the last rank has come or the call returned,
    a receive until it returned.
    """
    held = frame[["rank", "thread", "start_ns", "returned_ns", *COLLECTIVE_KEYS]]
    held = held.merge(table[[*COLLECTIVE_KEYS, "last_ns"]], on=COLLECTIVE_KEYS)
    left = held["returned_ns"].where(held["returned_ns"] >= 0, held["last_ns"])
    held["end_ns"] = np.minimum(left, held["last_ns"])
    received = point_to_point_calls(run)
    received = received[received["name"] == "recv"].assign(end_ns=received["returned_ns"])
    waits = {
        thread: Intervals.of(rows["start_ns"], rows["end_ns"])
        for thread, rows in pd.concat([held, received]).groupby(["rank", "thread"], observed=True)
    }
    found = pd.Series(0, table.index)
    for thread, rows in table.groupby(["last_rank", "last_thread"], observed=True):
        own = waits.get(thread, Intervals.of([], []))
        found[rows.index] = own.covered(rows["last_ns"]) - own.covered(rows["second"])
    return found


def _went_on(run: Run, table: pd.DataFrame) -> pd.Series:
    """Whether the rank that came first had begun another step before the last one came: it did not
    wait for what it had called."""
    found = pd.Series(False, table.index)
    for rank, rows in table.groupby("first_rank"):
        begins = np.append(run.steps(int(str(rank))).start_ns, np.iinfo(np.int64).max)
        following = begins[
            np.searchsorted(begins, rows["first_ns"], "right").clip(max=len(begins) - 1)
        ]
        found[rows.index] = following < rows["last_ns"]
    return found


def _all_waited(run: Run, table: pd.DataFrame) -> pd.Series:
    """Whether all ranks of calls with a root waited for the last one.

    Nobody was done before it came. And either it is the root of a broadcast or scatter, without
    which nothing arrives, or the others were there for longer than the rest of the call took: in
    that time they would have been done without it.
    """
    members = group_members(run)
    columns = zip(table["group"], table["root"], table["last_rank"], strict=True)
    by_root = [members[group][root : root + 1] == (last,) for group, root, last in columns]
    sends = table["name"].isin(_FROM_ROOT) & np.array(by_root, bool)
    rest = table["done_ns"] - table["last_ns"]
    longer = table["last_ns"] - table["first_ns"] >= rest
    return (table["seen"] >= table["last_ns"]) & (sends | longer)


@lru_cache(maxsize=4)
def lateness(run: Run) -> pd.DataFrame:
    """Returns one row per rank and call of `arrivals`: rank, group, sequence, start_ns, late_ns,
    wait_ns.

    late_ns = start - first arrival; wait_ns = last arrival - start.
    """
    came = arrivals(run)[[*COLLECTIVE_KEYS, "first_ns", "last_ns"]]
    rows = collective_calls(run)[["rank", *COLLECTIVE_KEYS, "start_ns"]].merge(
        came, on=COLLECTIVE_KEYS
    )
    return rows.assign(
        late_ns=rows["start_ns"] - rows["first_ns"], wait_ns=rows["last_ns"] - rows["start_ns"]
    ).drop(columns=["first_ns", "last_ns"])


def straggling(run: Run) -> pd.DataFrame:
    """Returns ranks by how much they alone delay the others, the worst first.

    rank; calls (it took part in, with two ranks or more), last (of these it came last to),
    alone_ns (sum over those of what it alone cost the others), wait_ns (it waited for others).
    """
    came = arrivals(run)
    came = came[came["ranks"] > 1]
    own = lateness(run).merge(came[COLLECTIVE_KEYS], on=COLLECTIVE_KEYS).groupby("rank")
    mine = came.groupby("last_rank")
    table = pd.DataFrame(
        {
            "calls": own["sequence"].count(),
            "last": mine["sequence"].count(),
            "alone_ns": mine["alone_ns"].sum(),
            "wait_ns": own["wait_ns"].sum(),
        }
    ).fillna(0)
    table = table.astype("int64").rename_axis("rank").reset_index()
    return table.sort_values("alone_ns", ascending=False, kind="stable", ignore_index=True)


@dataclass(frozen=True, eq=False)
class LateMap:
    """How late each rank came to the calls of a group: `late_ns[rank, column]`, NaN: no call.

    A column holds the calls from one of `first` to before the next; of several the one in which
    the rank was latest is shown, and `sequence[rank, column]` says which it is.
    """

    ranks: tuple[int, ...]
    first: Int64Array
    per_column: int
    late_ns: Float64Array
    sequence: Int64Array


def late_map(run: Run, group: str, columns: int = 240) -> LateMap:
    """Returns arrival by rank and sequence number of a group, in at most so many columns.

    Of the calls that two or more ranks were seen to make.
    """
    came = arrivals(run)
    rows = lateness(run).merge(came.loc[came["ranks"] > 1, COLLECTIVE_KEYS], on=COLLECTIVE_KEYS)
    rows = rows[rows["group"] == group]
    ranks = tuple(int(rank) for rank in sorted(rows["rank"].unique()))
    numbers = np.unique(rows["sequence"].to_numpy())
    per_column = max(1, -(-len(numbers) // columns))
    first = numbers[::per_column]
    late = np.full((len(ranks), len(first)), np.nan)
    which = np.full(late.shape, -1, np.int64)
    place = np.searchsorted(numbers, rows["sequence"].to_numpy()) // per_column
    latest = rows.assign(column=place).sort_values("late_ns", kind="stable")
    for (rank, column), row in latest.groupby(["rank", "column"]).last().iterrows():
        at = ranks.index(rank), int(column)
        late[at], which[at] = row["late_ns"], row["sequence"]
    return LateMap(ranks, first, per_column, late, which)


def call_window(run: Run, group: str, sequence: int) -> tuple[int, int] | None:
    """Returns the first arrival at a call and its last completion or return; None: no such call."""
    return _windows(run).get((group, sequence))


@lru_cache(maxsize=4)  # a page asks for the calls of hundreds of groups, one after the other
def _windows(run: Run) -> Mapping[tuple[str, int], tuple[int, int]]:
    rows = collective_calls(run)
    ends = rows[["start_ns", "returned_ns", "done_ns"]].to_numpy().max(axis=1, initial=-1)
    found = rows[[*COLLECTIVE_KEYS, "start_ns"]].assign(end=ends).groupby(COLLECTIVE_KEYS)
    table = found.agg(start=("start_ns", "min"), end=("end", "max")).reset_index()
    columns = (table[name].tolist() for name in (*COLLECTIVE_KEYS, "start", "end"))
    return {
        (str(group), number): (start, end)
        for group, number, start, end in zip(*columns, strict=True)
    }


def waiting_ranks(run: Run, window: tuple[int, int] | None = None) -> pd.DataFrame:
    """Returns one row per rank that made a collective: rank, waiting_ns, share.

    waiting(r) = |union over collectives of [start_r, until_r) & W|
    with until_r the last start of `skew`; where another rank never came and the call never ended,
    the end of rank r. share is of the window W = [t0, t1), by default the whole run.
    """
    low, high = window if window is not None else (0, max(run.duration_ns, 1))
    rows = [
        {
            "rank": rank,
            "waiting_ns": (own := lane.clip(low, high).total),
            "share": own / (high - low),
        }
        for rank, lane in sorted(_waits(run).items())
    ]
    return pd.DataFrame(rows, columns=["rank", "waiting_ns", "share"])


@lru_cache(maxsize=4)  # a page asks for one window after another
def _waits(run: Run) -> Mapping[int, Intervals]:
    calls = collective_calls(run).merge(
        arrivals(run)[[*COLLECTIVE_KEYS, "last_ns"]], on=COLLECTIVE_KEYS
    )
    came = calls[["rank", "start_ns", "last_ns"]]
    unended = [
        (call.rank, call.start_ns, rank_states(run)[call.rank].end_ns)
        for one in incomplete_collectives(run)
        if one.missing or one.unrecorded
        for call in one.waiting
    ]
    waits = pd.concat([came, pd.DataFrame(unended, columns=came.columns).astype(came.dtypes)])
    return {
        int(rank): Intervals.of(own["start_ns"].to_numpy(), own["last_ns"].to_numpy())
        for rank, own in waits.groupby("rank")
    }
