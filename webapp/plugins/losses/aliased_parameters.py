"""Finds parameters that are two to the optimizer and one in memory.

Two parameters of a model are in the same storage, have the same number of elements, and at all
sampled steps the same norm although their gradients differ: each step changes both by each of the
gradients.
"""

from __future__ import annotations

import pandas as pd

from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.nothing_to_check import need_recorded
from lanescope.webapp.analysis.parameter_history import samples
from lanescope.webapp.runs.run import Run

MIN_SAMPLES = 3
"""Sampled steps."""


def same_memory(run: Run) -> list[Finding]:
    """Returns findings of kind `shared_parameter`, one per pair. Raises NotApplicable."""
    sampled = need_recorded(samples(run), "record an optimizer step: no parameter was sampled")
    found, seen = [], set()
    for rank in run.ranks:
        storages = run.events("storage", rank, columns=["pid", "storage", "name"]).to_pandas()
        own = sampled[(sampled["rank"] == rank) & (sampled["optimizer"] >= 0)]
        names = storages[storages["name"].isin(own["parameter"])]
        names = names[names.duplicated(["pid", "storage"], keep=False)]  # few, of hundreds
        for _, group in names.groupby(["pid", "storage"], sort=False):
            shared = list(group["name"].astype("str").drop_duplicates())
            for other in shared[1:]:
                pair = shared[0], other
                if pair not in seen and _are_one(own, *pair):
                    seen.add(pair)
                    found.append(_finding(run, rank, *pair))
    return found


def _are_one(own: pd.DataFrame, first: str, second: str) -> bool:
    """Whether two parameters that are in one storage have always the same values."""
    columns = ["numel", "norm", "grad_norm"]
    one, other = (
        own[own["parameter"] == name].drop_duplicates("step", keep="last").set_index("step")
        for name in (first, second)
    )
    both = one[columns].merge(other[columns], on="step", suffixes=("", "_2")).dropna()
    if len(both) < MIN_SAMPLES or both["norm"].nunique() < MIN_SAMPLES:
        return False
    same = (both["numel"] == both["numel_2"]) & (both["norm"] == both["norm_2"])
    return bool(same.all()) and bool((both["grad_norm"] != both["grad_norm_2"]).any())


def _finding(run: Run, rank: int, first: str, second: str) -> Finding:
    return finding_at(
        run,
        rank,
        0,
        kind="shared_parameter",
        severity="error",
        title=f"{first} and {second} are two parameters in the same memory: each has a gradient of "
        "its own, and the optimizer changes the memory twice in each step. Tie them by the "
        "parameter itself (head.weight = embedding.weight, without nn.Parameter around it), or "
        "copy the values (.clone()) to train them apart.",
        evidence={"parameters": [first, second]},
    )
