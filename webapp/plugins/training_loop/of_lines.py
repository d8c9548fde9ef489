"""Makes findings of values that hold the line of the program in their names."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from lanescope.webapp.analysis.findings import Confidence, Finding, NotApplicable, finding_at
from lanescope.webapp.analysis.parameter_history import gradient_rows, logged
from lanescope.webapp.runs.run import Run


def of_lines(
    run: Run,
    prefix: str,
    title: Callable[[str, str, pd.DataFrame], str | None],
    kind: str,
    cause: str,
    confidence: Confidence = "likely",
) -> list[Finding]:
    """Returns warnings about the values whose names begin with `prefix`, one per name.

    `title` gets " at file.py:12" or nothing, the rest of the name, and the values of one rank in
    their order; None: there is nothing wrong. Raises NotApplicable where nothing was trained.
    """
    if gradient_rows(run).empty:
        raise NotApplicable("record an optimizer step: the run has no steps")
    found = []
    for name, rows in logged(run, None, prefix=prefix).groupby("name", sort=False, observed=True):
        where, _, rest = str(name).partition("/")
        ranks = tuple(sorted({int(rank) for rank in rows["rank"]}))
        own = rows[rows["rank"] == ranks[0]].sort_values("time_ns")
        said = title(f" at {where}" if where else "", rest, own)
        if said is not None:
            found.append(
                finding_at(
                    run,
                    ranks[0],
                    own.iloc[0],
                    kind=kind,
                    severity="warning",
                    confidence=confidence,
                    title=said,
                    ranks=ranks,
                    where=where or None,
                    evidence={"cause": cause, "times": len(own)},
                )
            )
    return found
