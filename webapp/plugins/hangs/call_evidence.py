"""What findings say of a collective that ranks wait for: evidence, place and words."""

from __future__ import annotations

from typing import Any

from lanescope.webapp.analysis.collective_calls import call_title, calls
from lanescope.webapp.analysis.incomplete_collectives import (
    IncompleteCollective,
    incomplete_collectives,
)
from lanescope.webapp.analysis.links import at_place, group_lane, timeline_address
from lanescope.webapp.analysis.process_exits import (
    endings,
    exception_of,
    gave_up,
    own_processes,
)
from lanescope.webapp.analysis.rank_state import rank_states
from lanescope.webapp.analysis.stack_frames import where_of
from lanescope.webapp.plugins.hangs.wait_lengths import waited_ns
from lanescope.webapp.runs import units
from lanescope.webapp.runs.rank_groups import ranks_in
from lanescope.webapp.runs.run import Run


def call_evidence(run: Run, wait: IncompleteCollective) -> dict[str, Any]:
    """Returns an `incomplete_collectives.Collective`, with where ranks called it and which ranks
    were not recorded."""
    made = (*wait.waiting, *wait.ended)
    return {
        "group": wait.group,
        "sequence": wait.sequence,
        "op": {str(entry.rank): entry.name for entry in made},
        "waiting": list(wait.ranks),
        "missing": [_missing_rank(run, wait, rank) for rank in wait.missing],
        "called_at": {str(entry.rank): where_of(run, entry.rank, entry.stack) for entry in made},
        "not_recorded": list(wait.unrecorded),
    }


def _missing_rank(run: Run, wait: IncompleteCollective, rank: int) -> dict[str, Any]:
    """What a missing rank does, and where: it may itself wait, in another call."""
    for other in incomplete_collectives(run):
        for entry in other.waiting if other is not wait else ():
            if entry.rank == rank and entry.blocked:
                where = where_of(run, rank, entry.stack)
                return {"rank": rank, "doing": f"waits in {call_words(run, other)}", "where": where}
    known = rank_states(run)[rank]
    return {"rank": rank, "doing": known.activity, "where": known.where}


def also_waiting(run: Run, others: list[IncompleteCollective]) -> list[dict[str, Any]]:
    """Returns other calls that are waited for, as evidence names them."""
    return [
        {"group": one.group, "sequence": one.sequence, "op": one.op, "waiting": list(one.ranks)}
        for one in others
    ]


def call_place(run: Run, wait: IncompleteCollective) -> dict[str, Any]:
    """Returns `step`, `time_ns` and `link` of a finding about a call: where the first rank waits in
    it."""
    entry = min((*wait.waiting, *wait.ended), key=lambda one: one.start_ns)
    end = min(run.duration_ns, entry.start_ns + max(waited_ns(run, wait), 1_000_000))
    at = (group_lane(entry.rank, wait.group), entry.start_ns)
    link = timeline_address(entry.start_ns, end, run.duration_ns, at)
    return {"step": entry.step, "time_ns": wait.since_ns, "link": link}


def call_words(run: Run, wait: IncompleteCollective) -> str:
    """Names a call as people do, without its group where the run has only one."""
    frame = calls(run)
    if wait.group == "0" and frame["group"].nunique() == 1:
        return f"{wait.op} #{wait.sequence}"
    return call_title(run, wait.op, wait.group, wait.sequence)


def waits_there(run: Run, ranks: tuple[int, ...]) -> str:
    """Says that ranks wait in the call that was named."""
    waits = "waits" if len(ranks) == 1 else "wait"
    return f"{units.sentence(ranks_in(run, ranks))} {waits} there"


def were(ranks: tuple[int, ...]) -> str:
    """Returns "was" of one rank, "were" of several."""
    return "was" if len(ranks) == 1 else "were"


def reason_words(doing: str, where: str | None) -> str:
    """Joins what a rank does and where, if that is known."""
    return f"{doing} at {where}" if where else doing


def stopped_words(run: Run, wait: IncompleteCollective) -> str:
    """Returns that those who are missing were stopped, where others were not."""
    known = rank_states(run)
    stopped = {rank for rank, one in endings(run).items() if one.how == "stopped"}
    if stopped != set(wait.missing):
        return ""
    return f"; {ranks_in(run, wait.missing)} {known[wait.missing[0]].ending.words}"


def waited_words(waited: int) -> str:
    """Says for how many ns ranks waited; nothing below 1 ms."""
    return f" for {units.duration(waited)}" if waited >= 1_000_000 else ""


def failed_beside(run: Run) -> str:
    """Returns what a process raised that never became a rank; empty without one."""
    ranks = {process["pid"] for process in own_processes(run).values()}
    for one in run.manifest["processes"]:
        if one["exception"] and one["pid"] not in ranks and not gave_up(one):
            said, where = exception_of(one)
            at = at_place(where)
            return f"process {one['pid']}, which called none of this, {said}{at}: fix it first"
    return ""
