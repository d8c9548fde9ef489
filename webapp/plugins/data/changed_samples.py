"""Finds datasets that change their own samples as they hand them out.

`x = self.images[i]; x += noise` writes into the dataset: the sample is another one in the next
epoch, and noise adds up.
"""

from __future__ import annotations

from lanescope.collector.format import schema
from lanescope.collector.format.names import CHANGED_SAMPLE, LOADER_BEGUN
from lanescope.webapp.analysis.findings import Finding, NotApplicable, finding_at
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.analysis.stack_frames import phase_place
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run


def changed_samples(run: Run) -> list[Finding]:
    """Returns findings of kind `inplace_modification`, one per dataset. Raises NotApplicable."""
    if logged(run, None, LOADER_BEGUN).empty:
        raise NotApplicable("record an iteration over a DataLoader with --level access")
    found, seen = [], set()
    rows = logged(run, None, prefix=CHANGED_SAMPLE)
    for name, own in rows.groupby("name", sort=False, observed=True):
        kind, held, where = str(name).split("/")
        if (kind, where) in seen:
            continue
        seen.add((kind, where))
        first = own.sort_values("time_ns").iloc[0]
        rank, times = int(first["rank"]), int(own["value"].max())
        found.append(
            finding_at(
                run,
                rank,
                first,
                kind="inplace_modification",
                severity="warning",
                confidence="likely",
                title=f"{kind}.__getitem__{f' at {where}' * bool(where)} changes the stored "
                f"sample: {held} was another one after each of {units.count(times)} fetches, so "
                "its augmentations add up from epoch to epoch. Change a copy: .clone() (of an "
                "array .copy()) before an operation in place.",
                ranks=tuple(sorted({int(one) for one in own["rank"]})),
                where=where or phase_place(run, rank, schema.PhaseKind.data.name, None),
                evidence={"cause": "changed_sample", "sample": held, "fetches": times},
            )
        )
    return found
