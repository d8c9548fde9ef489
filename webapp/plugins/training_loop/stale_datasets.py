"""Finds datasets that are changed between epochs, while persistent workers keep an older copy.

`dataset.epoch = epoch` in the main process does not reach workers that were started before it.
"""

from __future__ import annotations

from lanescope.collector.format import schema
from lanescope.collector.format.names import LOADER_BEGUN, STALE_DATASET
from lanescope.webapp.analysis.findings import Finding, NotApplicable, finding_at
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.analysis.stack_frames import phase_place
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_MIN_ITERATIONS = 2


def stale_datasets(run: Run) -> list[Finding]:
    """Returns findings of kind `repeated_data`, one per attribute. Raises NotApplicable."""
    if logged(run, None, LOADER_BEGUN).empty:
        raise NotApplicable("record an iteration over a DataLoader with --level access")
    found = []
    rows = logged(run, None, prefix=STALE_DATASET)
    for name, own in rows.groupby("name", sort=False, observed=True):
        kind, attribute = str(name).split("/")
        first, times = own.sort_values("time_ns").iloc[0], int(own["value"].max())
        if times < _MIN_ITERATIONS:
            continue
        rank = int(first["rank"])
        found.append(
            finding_at(
                run,
                rank,
                first,
                kind="repeated_data",
                severity="warning",
                confidence="likely",
                title=f"{kind}.{attribute} is changed in the main process, and the persistent "
                f"workers of the DataLoader keep the value that it had as they started, in "
                f"{units.count(times)} epochs: what depends on it is the same in each of them. "
                "Set persistent_workers=False, or hold it in shared memory "
                "(torch.zeros(1).share_memory_()).",
                ranks=tuple(sorted({int(one) for one in own["rank"]})),
                where=phase_place(run, rank, schema.PhaseKind.data.name, None),
                evidence={"cause": "stale_dataset", "attribute": attribute, "steps": times},
            )
        )
    return found
