"""Finds process groups that ranks do not make together.

Every rank of a job has to call new_group() for each group, in the same order, whether it is a
member or not: the members of the group wait for each other in the store, under the number of the
group. A rank that gave up there waited for ranks that made no group of that number, or another one.
"""

from __future__ import annotations

import re

from lanescope.webapp.analysis.findings import Finding, NotApplicable
from lanescope.webapp.analysis.links import timeline_address
from lanescope.webapp.analysis.process_exits import alive_ns, endings, own_processes
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_STORE = re.compile(
    r"DistStoreError: wait timeout after (?P<waited>\d+)\s?ms, keys: /default_pg/\d+//"
    r"(?P<group>\w+)//(?:cpu|cuda|xpu)//"
)
"""How a rank gives up that waits for the other members of a new group."""


def groups_apart(run: Run) -> list[Finding]:
    """Findings of kind `collective_mismatch`, at most one. Raises NotApplicable."""
    if len(run.ranks) < 2:
        raise NotApplicable("record two ranks or more")
    processes = own_processes(run)
    given_up = {
        rank: found
        for rank, process in processes.items()
        if (found := _STORE.search(process["exception"])) is not None
    }
    if not given_up:
        return []
    rank = min(given_up)
    where = endings(run)[rank].where
    instant = min(alive_ns(run, processes[rank]), run.duration_ns)
    waited = int(given_up[rank]["waited"]) * 1_000_000
    several = "ranks" if len(given_up) > 1 else "rank"
    ranks = f"{several} {', '.join(map(str, sorted(given_up)))}"
    title = (
        f"A process group was not made by all ranks: {ranks} waited "
        f"{units.duration(waited)} for its other members" + (f" at {where}" if where else "") + ". "
        "Call new_group() for each group on every rank and in the same order, also on ranks that "
        "are not members."
    )
    return [
        Finding(
            kind="collective_mismatch",
            severity="error",
            title=title,
            rank=rank,
            ranks=tuple(sorted(given_up)),
            time_ns=instant,
            where=where,
            evidence={
                "group": given_up[rank]["group"],
                "sequence": -1,
                "op": {},
                "waiting": sorted(given_up),
                "missing": [],
            },
            link=timeline_address(instant, instant + 1, run.duration_ns),
        )
    ]
