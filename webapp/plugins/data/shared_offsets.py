"""Finds open files that the workers of a DataLoader share.

A worker is a fork of the process that made the dataset, and has its open files with one offset for
all: between the seek() and the read() of one, another one may move it. The offset moved while the
main process left the file to its workers.
"""

from __future__ import annotations

from lanescope.collector.format.loader_names import SHARED_OFFSET
from lanescope.collector.format.names import LOADER_BEGUN
from lanescope.webapp.analysis.findings import Finding, NotApplicable, finding_at
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.runs.run import Run

_MIN_MOVES = 2


def shared_offsets(run: Run) -> list[Finding]:
    """Returns findings of kind `shared_file`, one per attribute of a dataset. Raises
    NotApplicable."""
    if logged(run, None, LOADER_BEGUN).empty:
        raise NotApplicable("record an iteration over a DataLoader with --level access")
    rows = logged(run, None, prefix=SHARED_OFFSET)
    found = []
    for name, own in rows.groupby("name", sort=False, observed=True):
        if own["value"].max() < _MIN_MOVES:
            continue
        kind, attribute, where = str(name).split("/")
        first = own.sort_values("time_ns", kind="stable").iloc[0]
        at = f" at {where}" if where else ""
        found.append(
            finding_at(
                run,
                int(first["rank"]),
                first,
                kind="shared_file",
                severity="error",
                confidence="likely",
                title=f"Workers of the DataLoader share the open file {kind}.{attribute}{at}: it "
                "was opened before they were started, so all of them move one offset, and one "
                "may read where another has just sought to. Open it in each worker, at its first "
                "use or in worker_init_fn.",
                ranks=tuple(sorted({int(one) for one in own["rank"]})),
                where=where or None,
                evidence={"cause": "shared_offset", "file": f"{kind}.{attribute}"},
            )
        )
    return found
