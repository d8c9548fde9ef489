"""Modules of backward nodes: those of the forward operators that made them.

A node and its maker share a sequence number and the stem of their names, see `forward_ops.maker`.
Here that is asked for all nodes of a window at once.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.forward_ops import BACKWARD, stem
from lanescope.webapp.runs.run import Run, Thread
from lanescope.webapp.runs.types import Window

_COLUMNS = ["thread", "start_ns", "name", "scope", "module", "sequence"]
_KEYS = ["sequence", "stem"]


def backward_modules(run: Run, thread: Thread, window: Window, nodes: pa.Table) -> list[str]:
    """Returns the module of each of some nodes (rows of op, by start) of a window of a thread.

    Makers are looked for from the start of the step on in which the window begins. Of several
    that fit it is the latest before the node, on the node's thread if there is one. Empty: none.
    """
    earlier = (_begin(run, thread.rank, window), window[1])
    made = _keyed(run.events("op", thread.rank, columns=_COLUMNS, window=earlier))
    made = made[(made["scope"] != BACKWARD) & (made["module"] != "")].sort_values("start_ns")
    wanted = _keyed(nodes.select(["start_ns", "name", "sequence"])).drop(columns="name")
    found = [
        pd.merge_asof(wanted, known[["start_ns", "module", *_KEYS]], on="start_ns", by=_KEYS)
        for known in (made[made["thread"] == thread.thread], made)
    ]
    modules: list[str] = found[0]["module"].fillna(found[1]["module"]).fillna("").tolist()
    return modules


def _keyed(rows: pa.Table) -> pd.DataFrame:
    """Returns the rows that have a sequence number, with the stem of their names."""
    found = to_frame(rows.filter(pc.is_valid(rows["sequence"]))).astype({"sequence": "int64"})
    stems = {name: stem(name) for name in found["name"].unique()}
    return found.assign(stem=found["name"].map(stems).astype("object"))


def _begin(run: Run, rank: int, window: Window) -> int:
    """Returns the start of the step in which a window begins; without, as long before as it is."""
    steps = run.steps(rank)
    at = int(np.searchsorted(steps.start_ns, window[0], side="right")) - 1
    return int(steps.start_ns[at]) if at >= 0 else max(2 * window[0] - window[1], 0)
