"""Where a run ends: which calls are still being waited for, by whom, and who did not come?

A call of a group is incomplete when a member of the group never made it. That rests on sequence
numbers alone, so it holds for ranks that were killed as well; knowledge of a rank's end decides
later (`hangs`) what to call it. The last call of a group, and the last send and receive of a pair,
may have been made by all and still not have ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypedDict

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.collector.format.marks import BackwardRaised
from lanescope.collector.format.names import SYNCHRONISING, THINNED
from lanescope.webapp.analysis.collective_calls import (
    calls,
    collective_calls,
    exchanges,
    group_members,
)
from lanescope.webapp.analysis.process_exits import endings
from lanescope.webapp.analysis.rank_state import rank_states
from lanescope.webapp.runs.run import Run

_LONG_NS = 2_000_000_000
"""A message that a transport keeps for a peer to take is done sooner."""


class Missing(TypedDict):
    """A rank that others wait for."""

    rank: int
    doing: str
    where: str | None


class Collective(TypedDict):
    """A collective that did not come about, or not as it should have."""

    group: str
    sequence: int
    op: dict[str, str]
    waiting: list[int]
    missing: list[Missing]


@dataclass(frozen=True)
class _CollectiveCall:
    """One rank's call."""

    rank: int
    thread: str
    name: str
    start_ns: int
    stack: int
    step: int
    bytes: int
    blocked: bool  # its thread did nothing more


@dataclass(frozen=True)
class IncompleteCollective:
    """A call that some ranks made and others did not; or that all made, and that never ended."""

    group: str
    sequence: int
    waiting: tuple[_CollectiveCall, ...]  # made the call, and it is not complete
    missing: tuple[int, ...]  # recorded, and did not make it; empty: all of them made it
    unrecorded: tuple[int, ...]  # members of the group that the run does not hold
    ended: tuple[_CollectiveCall, ...] = ()  # made the call, and ended it without the others

    @property
    def op(self) -> str:
        """The operation, as the first rank to come called it."""
        first = min((*self.waiting, *self.ended), key=lambda entry: entry.start_ns)
        return first.name

    @property
    def since_ns(self) -> int:
        """When the first of those that wait came."""
        return min(entry.start_ns for entry in (self.waiting or self.ended))

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that wait."""
        return tuple(sorted(entry.rank for entry in self.waiting))


@lru_cache(maxsize=4)
def incomplete_collectives(run: Run) -> tuple[IncompleteCollective, ...]:
    """Returns every incomplete call that matters: per group the first one that a member did not
    make, or the last one if all made it."""
    if cut_short(run):
        return ()
    found = [_with_late_waits(run, wait) for wait in (*_of_groups(run), *_of_pairs(run))]
    return tuple(sorted(found, key=lambda wait: wait.since_ns))


def _with_late_waits(run: Run, wait: IncompleteCollective) -> IncompleteCollective:
    """The same where a call was waited for later, after others had been made.

    A rank that gave up waited in a call; where one alone of its calls did not end, it was that.
    """
    waiting = tuple(
        entry if entry.blocked else replace(entry, blocked=_open_calls(run, entry.rank) == 1)
        for entry in wait.waiting
    )
    return replace(wait, waiting=waiting)


@lru_cache(maxsize=64)
def _open_calls(run: Run, rank: int) -> int:
    """How many calls a rank that gave up had made that did not end; 0 where it did not give up."""
    if not rank_states(run)[rank].gave_up:
        return 0
    found = [*_of_groups(run), *_of_pairs(run)]
    return sum(entry.rank == rank for wait in found for entry in wait.waiting)


def cut_short(run: Run) -> bool:
    """Returns whether calls may be missing because they were not recorded: then absence proves
    nothing."""
    options = run.manifest["options"]
    cut = options.get("steps") or options.get("window") or run.coverage.get(THINNED)
    return bool(cut) or run.dropped > 0


def _of_groups(run: Run) -> Iterator[IncompleteCollective]:
    frame, recorded = collective_calls(run), {*run.ranks}
    for group, rows in frame[~frame["group"].isin(_over(run))].groupby("group", sort=True):
        ranks = group_members(run)[str(group)]
        present = [rank for rank in ranks if rank in recorded]
        if group == schema.RENDEZVOUS:
            # Of who joined there is no row of it, but of what it called then.
            called = frame[frame["group"] != schema.RENDEZVOUS].groupby("rank")["start_ns"].max()
            joins = rows.groupby("rank")["start_ns"].max().reindex(called.index, fill_value=-1)
            again = set(joins.index[joins > called])  # they left their groups before
            joined = {*called.index} - again
            if again and joined:
                continue  # not known whether these joined again
            present = [rank for rank in present if rank not in joined]
            rows = rows[rows["rank"].isin(present)]
        last = rows.groupby("rank")["sequence"].max().reindex(present, fill_value=-1)
        if last.empty:
            continue
        absent = tuple(rank for rank in ranks if rank not in recorded)
        all_came = last.min() == last.max()
        sequence = int(last.min()) + (0 if all_came else 1)
        made = rows[rows["sequence"] == sequence]
        if all_came:
            stuck = _stuck(run, made)
            if stuck:
                yield IncompleteCollective(str(group), sequence, stuck, (), absent)
            continue
        entries = _entries(run, made)
        missing = tuple(int(rank) for rank in last.index[last < sequence])
        waiting = tuple(entry for entry, complete in entries if not complete)
        ended = tuple(entry for entry, complete in entries if complete)
        if any(entry.name in SYNCHRONISING for entry in ended) or not entries:
            # Nobody can have left it without the others: it failed, or they were not recorded.
            known = rank_states(run)
            failed = any(known[entry.rank].gave_up for entry in ended)
            died = all(known[rank].ending.how == "died" for rank in missing)
            if not entries or not (failed or died):
                continue
            waiting, ended = (*waiting, *ended), ()
        yield IncompleteCollective(str(group), sequence, waiting, missing, absent, ended)


def _over(run: Run) -> set[str]:
    """Groups whose recorded ranks all made the last call and then ended by themselves."""
    frame, recorded = collective_calls(run), {*run.ranks}
    last: dict[str, dict[int, int]] = {}
    for (group, rank), number in frame.groupby(["group", "rank"])["sequence"].max().items():
        last.setdefault(str(group), {})[int(rank)] = int(number)
    return {
        group
        for group, calls_of in last.items()
        if group != schema.RENDEZVOUS
        and len({*calls_of.values()}) == 1
        and {*calls_of} <= _exited(run)
        and {*calls_of} >= recorded.intersection(group_members(run)[group])
    }


def _of_pairs(run: Run) -> Iterator[IncompleteCollective]:
    """Receives without a send and sends without a receive, one per direction and pair.

    Where each has its partner: the last two, if neither of them ended.
    """
    for one in exchanges(run):
        met = min(len(one.sends), len(one.receives))
        if len(one.sends) == len(one.receives):
            if {one.sender, one.receiver} <= _exited(run):
                continue
            last = pd.concat([one.sends.iloc[met - 1 :], one.receives.iloc[met - 1 :]])
            stuck = _stuck(run, last)
            if len(stuck) == 2:
                yield IncompleteCollective(one.group, int(last["sequence"].iloc[0]), stuck, (), ())
            continue
        more, other = (
            (one.sends, one.receiver) if len(one.sends) > met else (one.receives, one.sender)
        )
        first = more.iloc[[met]]
        (entry, complete), *_ = _entries(run, first)
        # Nobody is done with a message that has no partner; that it failed looks like that.
        complete = complete and not rank_states(run)[entry.rank].gave_up
        pair = ((), (entry,)) if complete else ((entry,), ())
        sequence = int(first["sequence"].iloc[0])
        yield IncompleteCollective(one.group, sequence, pair[0], (other,), (), pair[1])


def _entries(run: Run, rows: pd.DataFrame) -> list[tuple[_CollectiveCall, bool]]:
    """The calls, and whether each was complete as far as can be known."""
    found = []
    for row in rows.itertuples():
        entry = _entry(run, row)
        found.append((entry, _complete(run, row, entry.blocked)))
    return found


def _stuck(run: Run, rows: pd.DataFrame) -> tuple[_CollectiveCall, ...]:
    """Those of the calls, which all members made, that are known not to have ended."""
    joining = rows["group"] == schema.RENDEZVOUS  # it failed, or there would be no row of it
    rows = rows[joining | ~rows["rank"].isin(_exited(run))]
    if rows.empty:  # as nearly always: to go through no rows takes as long as through a few
        return ()
    found = []
    for row in rows.itertuples():
        failed = row.group == schema.RENDEZVOUS
        entry = _entry(run, row)
        if not entry.blocked:
            continue
        known = rank_states(run)[entry.rank]
        seen = known.in_call == f"{entry.name}\t{row.group}\t{row.sequence}"
        seen |= row.done_ns < 0 and _completions_are_seen(
            run, entry.rank, str(row.group), entry.name
        )
        if row.returned_ns < 0 or known.gave_up or seen or failed:
            found.append(entry)
    return tuple(found)


@lru_cache(maxsize=4)
def _exited(run: Run) -> frozenset[int]:
    """Ranks that ended by themselves: they wait in no call."""
    return frozenset(rank for rank, one in endings(run).items() if one.how == "exit")


def _entry(run: Run, row: Any) -> _CollectiveCall:
    thread, rank = str(row.thread), int(row.rank)
    quiet = row.returned_ns < 0 or not _went_on(run, rank, thread, int(row.returned_ns))
    return _CollectiveCall(
        rank,
        thread,
        str(row.name),
        int(row.start_ns),
        int(row.stack),
        int(row.step),
        int(row.bytes),
        quiet,
    )


def _complete(run: Run, row: Any, quiet: bool) -> bool:
    """Seen to complete; or its thread went on where completions of its kind cannot be seen.

    A call that fails looks like one that completes. Where a member is missing and the thread did
    nothing more, it failed: no rank leaves a synchronising call alone, or receives without a
    sender.
    """
    if row.returned_ns < 0:
        return False
    if row.done_ns >= 0:
        known = rank_states(run)[int(row.rank)]
        failed = row.name in (*SYNCHRONISING, "recv") or known.gave_up
        # A send that is waited for fails as its peer is stopped, and the rank is stopped then.
        long = row.done_ns - row.returned_ns > _LONG_NS
        return not (quiet and (failed or (long and known.ending.how == "stopped")))
    seen = _completions_are_seen(run, int(row.rank), str(row.group), str(row.name))
    return not quiet and not seen


def _completions_are_seen(run: Run, rank: int, group: str, name: str) -> bool:
    return (rank, group, name) in _seen_to_complete(run)


@lru_cache(maxsize=4)
def _seen_to_complete(run: Run) -> frozenset[tuple[int, str, str]]:
    """Rank, group and operation of the calls that were seen to complete."""
    frame = calls(run)
    done = frame.loc[frame["done_ns"] >= 0, ["rank", "group", "name"]].drop_duplicates()
    return frozenset((int(rank), str(group), str(name)) for rank, group, name in done.to_numpy())


@lru_cache(maxsize=256)
def _went_on(run: Run, rank: int, thread: str, instant_ns: int) -> bool:
    """True if a thread started an event after an instant; a recorded failure does not count."""
    for table in ("collective", "op", "phase"):
        after = (instant_ns, run.duration_ns + 1)
        rows = run.events(table, rank, thread, ["start_ns", "name"], window=after)
        later = pc.greater(rows["start_ns"], pa.scalar(instant_ns, pa.int64()))
        failed = pc.starts_with(rows["name"].cast(pa.string()), BackwardRaised.PREFIX)
        if pc.any(pc.and_not(later, failed)).as_py():
            return True
    return False


def cycle(found: Sequence[IncompleteCollective]) -> tuple[IncompleteCollective, ...]:
    """Returns calls whose ranks wait for each other in a circle, empty without any."""
    holds = {e.rank: wait for wait in found for e in wait.waiting if e.blocked}
    for start in found:
        path: list[IncompleteCollective] = []
        wait: IncompleteCollective | None = start
        while wait is not None and wait not in path:
            path.append(wait)
            wait = next((holds[rank] for rank in wait.missing if rank in holds), None)
        if wait is not None and len(path[path.index(wait) :]) > 1:
            return tuple(sorted(path[path.index(wait) :], key=lambda one: one.since_ns))
    return ()
