"""Reasons why a check has nothing to look at: it has not passed then."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.webapp.analysis.findings import NotApplicable
from lanescope.webapp.runs.run import Run

_BACKWARD = schema.PhaseKind.backward.name


def need_backward(run: Run) -> None:
    """Raises NotApplicable where no thread was in backward."""
    kinds = run.events("phase", columns=["kind"])["kind"].cast(pa.string())
    if not pc.any(pc.equal(kinds, _BACKWARD)).as_py():
        raise NotApplicable("record a backward pass")


def need_threads(run: Run) -> None:
    """Raises NotApplicable where no rank has two threads, processes or streams."""
    if all(len(run.threads_of(rank)) < 2 for rank in run.ranks):
        raise NotApplicable("no rank has two threads")
