"""Finds learning rate schedulers that were built with another optimizer than the one that steps.

The optimizer was built again, for groups of parameters say, and the scheduler still changes the
rates of the first one: those of the training stay as they are.
"""

from __future__ import annotations

from lanescope.collector.format.names import IDLE_SCHEDULER
from lanescope.webapp.analysis.findings import Finding, NotApplicable, finding_at
from lanescope.webapp.analysis.parameter_history import gradient_rows, logged
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_MIN_STEPS = 3  # of the scheduler


def idle_schedulers(run: Run) -> list[Finding]:
    """Returns findings of kind `dead_parameter`, one per line. Raises NotApplicable."""
    if gradient_rows(run).empty:
        raise NotApplicable("record an optimizer step: the run has no steps")
    found = []
    rows = logged(run, None, prefix=IDLE_SCHEDULER)
    for name, own in rows.groupby("name", sort=False, observed=True):
        where, scheduler, optimizer = str(name).split("/")
        ranks = tuple(sorted({int(rank) for rank in own["rank"]}))
        own = own[own["rank"] == ranks[0]].sort_values("time_ns")
        if len(own) < _MIN_STEPS:
            continue
        first = own.iloc[0]
        at = f" at {where}" if where else ""
        found.append(
            finding_at(
                run,
                ranks[0],
                first,
                kind="dead_parameter",
                severity="warning",
                title=f"{scheduler}.step(){at} changes the learning rates of an optimizer "
                f"({optimizer}) that never steps, {units.count(len(own))} times: another one "
                "trains its parameters, and its rates stay as they are. Build the scheduler with "
                "the optimizer that steps.",
                ranks=ranks,
                where=where or None,
                evidence={"cause": "idle_scheduler", "steps": len(own)},
            )
        )
    return found
