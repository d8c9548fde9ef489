"""Finds learning rate schedulers that were built with another optimizer than the one that steps.

The optimizer was built again, for groups of parameters say, and the scheduler still changes the
rates of the first one: those of the training stay as they are.
"""

from __future__ import annotations

from lanescope.collector.format.loop_names import IDLE_SCHEDULER
from lanescope.webapp.analysis.fault_series import of_first_rank, series
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.nothing_to_check import need_steps
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_MIN_STEPS = 3  # of the scheduler


def idle_schedulers(run: Run) -> list[Finding]:
    """Returns findings of kind `dead_parameter`, one per line. Raises NotApplicable."""
    need_steps(run)
    found = []
    for name, rows in series(run, IDLE_SCHEDULER):
        where, scheduler, optimizer = name.split("/")
        ranks, own = of_first_rank(rows)
        if len(own) < _MIN_STEPS:
            continue
        at = at_place(where)
        found.append(
            finding_at(
                run,
                ranks[0],
                own.iloc[0],
                kind="dead_parameter",
                title=f"{scheduler}.step(){at} changes the learning rates of an optimizer "
                f"({optimizer}) that never steps, {units.count(len(own))} times: another one "
                "trains its parameters, and its rates stay as they are. Build the scheduler with "
                "the optimizer that steps.",
                ranks=ranks,
                where=where,
                evidence={"cause": "idle_scheduler", "steps": len(own)},
            )
        )
    return found
