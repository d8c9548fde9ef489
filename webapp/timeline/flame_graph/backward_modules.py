"""Modules of backward nodes: those of the forward operators that made them.

`forward_ops.maker` says which operator that is.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.forward_ops import makers
from lanescope.webapp.runs.run import Run, Thread
from lanescope.webapp.runs.types import Window

_COLUMNS = ["thread", "start_ns", "name", "scope", "module", "sequence"]


def backward_modules(run: Run, thread: Thread, window: Window, nodes: pa.Table) -> list[str]:
    """Returns the module of each of some nodes (rows of op, by start) of a window of a thread.

    Makers are looked for from the start of the step on in which the window begins. Of several
    that fit it is the latest before the node, on the node's thread if there is one. Empty: none.
    """
    earlier = (_begin(run, thread.rank, window), window[1])
    made = _numbered(run.events("op", thread.rank, columns=_COLUMNS, window=earlier))
    made = made[made["module"] != ""]
    wanted = _numbered(nodes.select(["start_ns", "name", "sequence"]))
    found = makers(wanted.assign(thread=thread.thread), made)
    modules = [*made["module"], ""]
    return [modules[at] for at in found.tolist()]


def _numbered(rows: pa.Table) -> pd.DataFrame:
    """Returns the rows that have a sequence number."""
    return to_frame(rows.filter(pc.is_valid(rows["sequence"]))).astype({"sequence": "int64"})


def _begin(run: Run, rank: int, window: Window) -> int:
    """Returns the start of the step in which a window begins; without, as long before as it is."""
    steps = run.steps(rank)
    at = int(np.searchsorted(steps.start_ns, window[0], side="right")) - 1
    return int(steps.start_ns[at]) if at >= 0 else max(2 * window[0] - window[1], 0)
