"""How long ranks wait in a collective, and how long is normal."""

from __future__ import annotations

from lanescope.webapp.analysis.incomplete_collectives import IncompleteCollective
from lanescope.webapp.analysis.process_exits import asked_to_stop
from lanescope.webapp.analysis.rank_state import rank_states
from lanescope.webapp.plugins.collectives.skew import arrivals
from lanescope.webapp.runs.run import Run

MIN_WAIT_NS = 1_000_000_000

TIMES_NORMAL = 2
"""A wait is too long from a second on, and from twice the longest one that came to an end."""


def normal_wait_ns(run: Run, group: str) -> int:
    """Returns how long ranks of a group wait for each other when all is well."""
    came = arrivals(run)
    skew = came.loc[came["group"] == group, "skew_ns"]
    longest = int(skew.max()) if len(skew) else 0
    return max(MIN_WAIT_NS, TIMES_NORMAL * longest)


def waited_ns(run: Run, wait: IncompleteCollective) -> int:
    """Returns how long the ranks that wait are known to have waited."""
    known = rank_states(run)
    waiting = [known[rank] for rank in wait.ranks]
    missing = [known[rank] for rank in wait.missing]
    others = missing or waiting
    if asked_to_stop(run) and all(one.ending.how == "stopped" for one in others):
        # Ranks that merely ended later were not waiting.
        ends = [one.end_ns for one in others]
        return max(0, (max(ends) if missing else min(ends)) - wait.since_ns)
    over = bool(waiting) and all(one.ending.how != "killed" for one in waiting)
    # Who was killed had waited for as long as any other still recorded something.
    until = max(known[rank].end_ns for rank in (*wait.ranks, *(() if over else wait.missing)))
    return max(0, until - wait.since_ns)
