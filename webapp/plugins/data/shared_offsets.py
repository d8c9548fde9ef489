"""Finds open files that the workers of a DataLoader share.

A worker is a fork of the process that made the dataset, and has its open files with one offset for
all: between the seek() and the read() of one, another one may move it. The offset moved while the
main process left the file to its workers.
"""

from __future__ import annotations

from lanescope.collector.format.loader_names import SHARED_OFFSET
from lanescope.webapp.analysis.fault_series import finding_of_series, series
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.nothing_to_check import need_loader
from lanescope.webapp.runs.run import Run

_MIN_MOVES = 2


def shared_offsets(run: Run) -> list[Finding]:
    """Returns findings of kind `shared_file`, one per attribute of a dataset. Raises
    NotApplicable."""
    need_loader(run)
    found = []
    for name, own in series(run, SHARED_OFFSET):
        if own["value"].max() < _MIN_MOVES:
            continue
        kind, attribute, where = name.split("/")
        at = at_place(where)
        found.append(
            finding_of_series(
                run,
                own,
                kind="shared_file",
                severity="error",
                confidence="likely",
                title=f"Workers of the DataLoader share the open file {kind}.{attribute}{at}: it "
                "was opened before they were started, so all of them move one offset, and one "
                "may read where another has just sought to. Open it in each worker, at its first "
                "use or in worker_init_fn.",
                where=where,
                evidence={"cause": "shared_offset", "file": f"{kind}.{attribute}"},
            )
        )
    return found
