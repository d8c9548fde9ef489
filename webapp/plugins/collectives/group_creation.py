"""Finds process groups that ranks do not make together.

Every rank of a job has to call new_group() for each group, in the same order, whether it is a
member or not: groups are numbered as they are made, and the members of one wait for each other in
the store, under its number. A rank that gave up there waited for ranks that made no group of that
number, or another one. Where no member has to wait, as with Gloo, the groups that the ranks made
show it: of groups of one rank each rank may make its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lanescope.collector.format.marks import NewGroup
from lanescope.webapp.analysis.arrow_columns import marks
from lanescope.webapp.analysis.findings import Finding, NotRecorded
from lanescope.webapp.analysis.links import at_place, timeline_address
from lanescope.webapp.analysis.nothing_to_check import need_ranks
from lanescope.webapp.analysis.process_exits import alive_ns, endings, own_processes
from lanescope.webapp.analysis.stack_frames import short_place
from lanescope.webapp.runs import units
from lanescope.webapp.runs.rank_groups import ranks_in
from lanescope.webapp.runs.run import Run

_STORE = re.compile(
    r"DistStoreError: wait timeout after (?P<waited>\d+)\s?ms, keys: /default_pg/\d+//"
    r"(?P<group>\w+)//(?:cpu|cuda|xpu)//"
)
"""How a rank gives up that waits for the other members of a new group."""


def groups_apart(run: Run) -> list[Finding]:
    """Findings of kind `collective_mismatch`, at most one. Raises NotApplicable."""
    need_ranks(run)
    if len(run.ranks) < 2:
        raise NotRecorded("record two ranks or more")
    processes = own_processes(run)
    given_up = {
        rank: found
        for rank, process in processes.items()
        if (found := _STORE.search(process["exception"])) is not None
    }
    if not given_up:
        return _made_apart(run)
    rank = min(given_up)
    where = endings(run)[rank].where
    instant = min(alive_ns(run, processes[rank]), run.duration_ns)
    waited = int(given_up[rank]["waited"]) * 1_000_000
    several = "ranks" if len(given_up) > 1 else "rank"
    ranks = f"{several} {', '.join(map(str, sorted(given_up)))}"
    title = (
        f"A process group was not made by all ranks: {ranks} waited "
        f"{units.duration(waited)} for its other members" + at_place(where) + ". "
        "Call new_group() for each group on every rank and in the same order, also on ranks that "
        "are not members."
    )
    return [_finding(run, title, where, instant, given_up[rank]["group"], tuple(sorted(given_up)))]


def _finding(
    run: Run, title: str, where: str | None, instant: int, group: str, ranks: tuple[int, ...]
) -> Finding:
    return Finding(
        kind="collective_mismatch",
        severity="error",
        title=title,
        rank=ranks[0],
        ranks=ranks,
        time_ns=instant,
        where=where,
        evidence={
            "group": group,
            "sequence": -1,
            "op": {},
            "waiting": list(ranks),
            "missing": [],
        },
        link=timeline_address(instant, instant + 1, run.duration_ns),
    )


@dataclass(frozen=True)
class _Made:
    """A group that a rank made."""

    ranks: str
    where: str
    time_ns: int


def _made_apart(run: Run) -> list[Finding]:
    """The first group, by its number, that some ranks made and others did not, or not as that one;
    nothing where a rank ended before it could."""
    made = {rank: _made(run, rank) for rank in run.ranks}
    if not all(made.values()) or len(run.ranks) < run.world_size:
        return []
    for number in range(1, max(map(len, made.values()))):
        there = {rank: own[number] for rank, own in made.items() if number < len(own)}
        without = [rank for rank in made if rank not in there]
        different = {one.ranks for one in there.values()}
        left = any(endings(run)[rank].how != "exit" for rank in without)
        if len(different) > 1 or (without and not left and different != {_ALONE}):
            return [_apart(run, there, without)]
    return []


def _made(run: Run, rank: int) -> list[_Made]:
    """The groups of a rank by number, the default one first; nothing where that is not known."""
    rows = marks(run, NewGroup.PREFIX, rank)
    own = own_processes(run).get(rank)
    pid = "" if own is None else str(own["pid"])
    found = [
        (row, mark)
        for row in rows
        if row["thread"].partition("-")[0] == pid
        and (mark := NewGroup.parse(row["name"])) is not None
    ]
    begins = [place for place, (_, mark) in enumerate(found) if mark.ranks == _DEFAULT]
    if not begins or len({row["thread"] for row, _ in found}) > 1:
        return []
    return [
        _Made(
            mark.ranks if not mark.ranks.isdecimal() else _ALONE,
            short_place(mark.place),
            row["start_ns"],
        )
        for row, mark in found[begins[-1] :]
    ]


_DEFAULT, _ALONE = "all", "one rank"


def _apart(run: Run, there: dict[int, _Made], without: list[int]) -> Finding:
    first = min(there.values(), key=lambda one: one.time_ns)
    ranks = tuple(rank for rank, one in there.items() if one.ranks == first.ranks)
    others = [rank for rank in there if rank not in ranks] or without
    at = at_place(first.where)
    other = there.get(others[0])
    they = f"makes {_named(other)}" if other is not None else "makes no group"
    they = they if len(others) == 1 else they.replace("makes", "make", 1)
    title = (
        f"{units.sentence(ranks_in(run, ranks))} make{'s' * (len(ranks) == 1)} {_named(first)}"
        f"{at}, while {ranks_in(run, others)} {they}: groups are numbered in the order in which "
        "each rank makes them, so ranks wait for each other under different numbers, or meet the "
        "wrong ones, as soon as the backend connects them. Call new_group() for each group on "
        "every rank and in the same order, also on ranks that are not members, or pass "
        "use_local_synchronization=True."
    )
    return _finding(run, title, first.where or None, first.time_ns, first.ranks, ranks)


def _named(one: _Made) -> str:
    return "a group of itself" if one.ranks == _ALONE else f"the group of ranks {one.ranks}"
