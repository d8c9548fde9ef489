"""Finds cosine annealings that are given in epochs and step with each batch, and optimizers that
are made again for each step.

The rate of CosineAnnealingLR falls for T_max of its steps, and then rises for as many. One that
goes up and down within a few batches was to be stepped once per epoch, or to get all steps of the
training. What Adam and momentum keep of earlier steps is lost with the optimizer.
"""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from lanescope.collector.format.names import RENEWED_OPTIMIZER, SHORT_ANNEALING
from lanescope.webapp.analysis.findings import Confidence, Finding, NotApplicable, finding_at
from lanescope.webapp.analysis.parameter_history import gradient_rows, logged
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run


def short_annealings(run: Run) -> list[Finding]:
    """Returns findings of kind `dead_parameter`, one per line. Raises NotApplicable."""
    return _of(run, SHORT_ANNEALING, "short_annealing", "likely", _annealing)


def renewed_optimizers(run: Run) -> list[Finding]:
    """Returns findings of kind `dead_parameter`, one per line. Raises NotApplicable."""
    return _of(run, RENEWED_OPTIMIZER, "renewed_optimizer", "certain", _renewed)


def _annealing(at: str, rest: str, rows: pd.DataFrame) -> str:
    length = units.count(int(rows["value"].iloc[0]))
    return (
        f"CosineAnnealingLR.step(){at} is called with each step of the optimizer, and T_max is "
        f"{length}: the learning rate falls for {length} batches, rises again for as many, and so "
        "on. Call it once per epoch, or give T_max the number of all batches of the training."
    )


def _renewed(at: str, rest: str, rows: pd.DataFrame) -> str:
    return (
        f"A new {rest} is made for each step of the same parameters (it steps{at}), "
        f"{units.count(len(rows))} times or more: what it keeps from step to step, its moments, is "
        "lost. Make it once, before the loop."
    )


def _of(
    run: Run,
    prefix: str,
    cause: str,
    confidence: Confidence,
    title: Callable[[str, str, pd.DataFrame], str],
) -> list[Finding]:
    if gradient_rows(run).empty:
        raise NotApplicable("record an optimizer step: the run has no steps")
    found = []
    for name, own in logged(run, None, prefix=prefix).groupby("name", sort=False, observed=True):
        where, _, rest = str(name).partition("/")
        ranks = tuple(sorted({int(rank) for rank in own["rank"]}))
        own = own[own["rank"] == ranks[0]].sort_values("time_ns")
        first = own.iloc[0]
        found.append(
            finding_at(
                run,
                ranks[0],
                first,
                kind="dead_parameter",
                severity="warning",
                confidence=confidence,
                title=title(f" at {where}" if where else "", rest, own),
                ranks=ranks,
                where=where or None,
                evidence={"cause": cause, "times": len(own)},
            )
        )
    return found
