"""Finds open files that the workers of a DataLoader share.

A worker is a fork of the process that made the dataset, and has its open files with one offset for
all: between the seek() and the read() of one, another one may move it. The offset moved while the
main process left the file to its workers.
"""

from __future__ import annotations

import pandas as pd

from lanescope.collector.format.loader_names import SHARED_OFFSET
from lanescope.webapp.analysis.fault_series import finding_of_series, found_per_series
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.nothing_to_check import need_loader
from lanescope.webapp.runs.run import Run

_MIN_MOVES = 2


@found_per_series(SHARED_OFFSET, need_loader)
def shared_offsets(run: Run, name: str, rows: pd.DataFrame) -> Finding | None:
    """Returns findings of kind `shared_file`, one per attribute of a dataset. Raises
    NotApplicable."""
    if rows["value"].max() < _MIN_MOVES:
        return None
    kind, attribute, where = name.split("/")
    return finding_of_series(
        run,
        rows,
        kind="shared_file",
        severity="error",
        confidence="likely",
        title=f"Workers of the DataLoader share the open file {kind}.{attribute}{at_place(where)}: "
        "it was opened before they were started, so all of them move one offset, and one may read "
        "where another has just sought to. Open it in each worker, at its first use or in "
        "worker_init_fn.",
        where=where,
        evidence={"cause": "shared_offset", "file": f"{kind}.{attribute}"},
    )
