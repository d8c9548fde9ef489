"""Whether a run goes on from a checkpoint of another one."""

from __future__ import annotations

import pandas as pd

from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.runs.run import Run


def resumed(base: Run, run: Run) -> list[str]:
    """Returns whether the run's first step is a later one of the baseline, bitwise in all
    gradients.

    Where the gradients of steps after it part, what the step itself does is another.
    """
    rank = min(run.ranks)
    known, own = _norms(base, rank), _norms(run, rank)
    begun = min(own, default=0)
    like = [step for step, norms in known.items() if norms == own.get(begun)]
    if len(like) != 1 or like[0] <= begun:
        return []
    later = like[0] - begun
    both = [step for step in sorted(own) if step + later in known]
    parted = next((step for step in both if own[step] != known[step + later]), None)
    said = f"step {begun} has the gradients of step {like[0]} of the baseline, to the last bit"
    if len(both) == 1:
        return [said]
    if parted is None:
        return [f"{said}, and so have all after it: the run resumes there"]
    return [
        f"{said}, and step {parted} not those of step {parted + later}: the run resumes with the "
        "baseline's parameters of that step, but not with all else (optimizer state, learning "
        "rate, data, random numbers)"
    ]


def _norms(run: Run, rank: int) -> dict[int, tuple[int, int]]:
    """By step what its gradients are known by: a sum of hashes, for there may be millions, and how
    many they are."""
    if rank not in run.ranks:
        return {}
    columns = ["step", "parameter", "optimizer", "norm"]
    rows = to_frame(run.events("gradient", rank, columns=columns))
    rows = rows[rows["norm"] > 0]
    hashes = pd.util.hash_pandas_object(rows[columns[1:]], index=False)
    steps = hashes.groupby(rows["step"])
    return {
        int(step): (int(own), int(many))
        for (step, own), many in zip(steps.sum().items(), steps.size(), strict=True)
    }
