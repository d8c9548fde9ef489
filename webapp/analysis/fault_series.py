"""Series of values whose names say what a hook saw, as the place of a line: `train.py:12/model`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pandas as pd

from lanescope.webapp.analysis.cluster import found_in_parts
from lanescope.webapp.analysis.findings import Confidence, Finding, Severity, finding_at
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.runs.run import Run


def series(run: Run, prefix: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yields the rest of the name, and rows of all ranks by time, of each series of a prefix."""
    for name, rows in logged(run, None, prefix=prefix).groupby("name", sort=False, observed=True):
        yield str(name), rows.sort_values("time_ns", kind="stable")


def found_per_series(
    prefix: str, need: Callable[[Run], object]
) -> Callable[[Callable[[Run, str, pd.DataFrame], Finding | None]], Callable[[Run], list[Finding]]]:
    """Turns a question about a series, see `series`, into one about a run; `need` raises where the
    run does not hold what it needs."""

    def parts(run: Run) -> Iterator[tuple[str, pd.DataFrame]]:
        need(run)
        return series(run, prefix)

    return found_in_parts(parts)


def found_in_rows(
    rows_of: Callable[[Run], pd.DataFrame],
) -> Callable[[Callable[[Run, int, pd.DataFrame], Finding | None]], Callable[[Run], list[Finding]]]:
    """Turns a question about a rank and its rows into one about a run; `rows_of` returns the rows
    of all ranks, and raises where the run does not hold what it needs."""
    return found_in_parts(
        lambda run: ((int(str(rank)), own) for rank, own in rows_of(run).groupby("rank"))
    )


def finding_of_series(
    run: Run,
    rows: pd.DataFrame,
    *,
    kind: str,
    severity: Severity = "warning",
    title: str,
    evidence: Mapping[str, Any],
    where: str | None = None,
    link: str = "",
    confidence: Confidence = "certain",
) -> Finding:
    """Returns a finding about all ranks of some rows, at the first row."""
    return finding_at(
        run,
        int(rows["rank"].iloc[0]),
        rows.iloc[0],
        kind=kind,
        severity=severity,
        title=title,
        evidence=evidence,
        ranks=ranks_of(rows),
        where=where,
        link=link,
        confidence=confidence,
    )


def of_first_rank(rows: pd.DataFrame) -> tuple[tuple[int, ...], pd.DataFrame]:
    """Returns all ranks of rows, and the rows of the lowest of them."""
    ranks = ranks_of(rows)
    return ranks, rows[rows["rank"] == ranks[0]]


def ranks_of(rows: pd.DataFrame) -> tuple[int, ...]:
    """Returns the ranks of rows, ascending."""
    return tuple(sorted(int(rank) for rank in rows["rank"].unique()))
