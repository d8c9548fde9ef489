"""Makes findings of values that hold the line of the program in their names."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import pandas as pd

from lanescope.webapp.analysis.fault_series import of_first_rank, series
from lanescope.webapp.analysis.findings import Confidence, Finding, finding_at
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.nothing_to_check import need_steps
from lanescope.webapp.runs.run import Run

Title = Callable[[str, str, pd.DataFrame], str | None]
"""See `of_lines`."""


def each_line(
    prefix: str, kind: str, cause: str, confidence: Confidence = "likely"
) -> Callable[[Title], Callable[[Run], list[Finding]]]:
    """Turns what to say of the values of a line into a question about a run, see `of_lines`."""

    def of_question(title: Title) -> Callable[[Run], list[Finding]]:
        @wraps(title)
        def of_run(run: Run) -> list[Finding]:
            return of_lines(run, prefix, title, kind, cause, confidence)

        return of_run

    return of_question


def of_lines(
    run: Run,
    prefix: str,
    title: Title,
    kind: str,
    cause: str,
    confidence: Confidence = "likely",
) -> list[Finding]:
    """Returns warnings about the values whose names begin with `prefix`, one per name.

    `title` gets " at file.py:12" or nothing, the rest of the name, and the values of one rank in
    their order; None: there is nothing wrong. Raises NotApplicable where nothing was trained.
    """
    need_steps(run)
    found = []
    for name, rows in series(run, prefix):
        where, _, rest = name.partition("/")
        ranks, own = of_first_rank(rows)
        said = title(at_place(where), rest, own)
        if said is not None:
            found.append(
                finding_at(
                    run,
                    ranks[0],
                    own.iloc[0],
                    kind=kind,
                    confidence=confidence,
                    title=said,
                    ranks=ranks,
                    where=where,
                    evidence={
                        "cause": cause,
                        "times": len(own),
                        "steps": int(own["step"].nunique()),
                    },
                )
            )
    return found
