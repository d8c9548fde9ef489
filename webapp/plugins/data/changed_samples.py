"""Finds datasets that change their own samples as they hand them out.

`x = self.images[i]; x += noise` writes into the dataset: the sample is another one in the next
epoch, and noise adds up.
"""

from __future__ import annotations

from lanescope.collector.format import schema
from lanescope.collector.format.loop_names import CHANGED_SAMPLE
from lanescope.webapp.analysis.fault_series import finding_of_series, series
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.nothing_to_check import need_loader
from lanescope.webapp.analysis.stack_frames import phase_place
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run


def changed_samples(run: Run) -> list[Finding]:
    """Returns findings of kind `inplace_modification`, one per dataset. Raises NotApplicable."""
    need_loader(run)
    found, seen = [], set()
    for name, own in series(run, CHANGED_SAMPLE):
        kind, held, where = name.split("/")
        if (kind, where) in seen:
            continue
        seen.add((kind, where))
        rank, times = int(own["rank"].iloc[0]), int(own["value"].max())
        found.append(
            finding_of_series(
                run,
                own,
                kind="inplace_modification",
                confidence="likely",
                title=f"{kind}.__getitem__{at_place(where)} changes the stored "
                f"sample: {held} was another one after each of {units.count(times)} fetches, so "
                "its augmentations add up from epoch to epoch. Change a copy: .clone() (of an "
                "array .copy()) before an operation in place.",
                where=where or phase_place(run, rank, schema.PhaseKind.data.name, None),
                evidence={"cause": "changed_sample", "sample": held, "fetches": times},
            )
        )
    return found
