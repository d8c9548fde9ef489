"""Finds datasets that are changed between epochs, while persistent workers keep an older copy.

`dataset.epoch = epoch` in the main process does not reach workers that were started before it.
"""

from __future__ import annotations

from lanescope.collector.format import schema
from lanescope.collector.format.loop_names import STALE_DATASET
from lanescope.webapp.analysis.fault_series import finding_of_series, series
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.nothing_to_check import need_loader
from lanescope.webapp.analysis.stack_frames import phase_place
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_MIN_ITERATIONS = 2


def stale_datasets(run: Run) -> list[Finding]:
    """Returns findings of kind `repeated_data`, one per attribute. Raises NotApplicable."""
    need_loader(run)
    found = []
    for name, own in series(run, STALE_DATASET):
        kind, attribute = name.split("/")
        rank, times = int(own["rank"].iloc[0]), int(own["value"].max())
        if times < _MIN_ITERATIONS:
            continue
        found.append(
            finding_of_series(
                run,
                own,
                kind="repeated_data",
                confidence="likely",
                title=f"{kind}.{attribute} is changed in the main process, and the persistent "
                f"workers of the DataLoader keep the value that it had as they started, in "
                f"{units.count(times)} epochs: what depends on it is the same in each of them. "
                "Set persistent_workers=False, or hold it in shared memory "
                "(torch.zeros(1).share_memory_()).",
                where=phase_place(run, rank, schema.PhaseKind.data.name, None),
                evidence={"cause": "stale_dataset", "attribute": attribute, "steps": times},
            )
        )
    return found
