"""Finds evaluations of a moving average that is still nearly the model as it began.

With a decay of 0.9999 an average of 60 steps consists of the first weights, which are random, to
99 %. Found where each step takes the same small share of the trained parameters, some steps call
the model that holds the average, and _LEFT or more of its first weights are left at the last of
these. A model that most steps call is a target or a teacher, not an average to be evaluated.
Programs that load a file may begin with an average that is warm.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format.loop_names import LOADED_FILE
from lanescope.webapp.analysis.access_site import accesses_among
from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.plugins.training_loop.moving_averages import (
    by_line,
    reversed_average,
    rounded_average,
    steady_share,
    swapped_average,
    weighted_averages,
)
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_LEFT = 0.9
"""Of the first weights, in the model that is evaluated."""
_LARGEST, _SMALLEST = 0.05, 1e-9
"""Shares of the newest parameters that a step takes."""
_FIRST = 2
"""The latest step of the first average: that of torch begins with a copy."""
_RARE = 0.5
"""Of the steps: in more of them a target is called."""


def wrong_weights(run: Run) -> list[Finding]:
    """Returns findings of kind `wrong_average`, one per line and rank. Raises NotApplicable."""
    found = swapped_average(run) + rounded_average(run) + reversed_average(run)
    return found + cold_averages(run)


def cold_averages(run: Run) -> list[Finding]:
    """Returns findings of kind `wrong_average`, one per line and rank. Raises NotApplicable."""
    return by_line(run, _evaluated, _cold)


def _evaluated(run: Run, rank: int) -> pd.DataFrame:
    """Averages whose model is called in few steps, with `since`, that of the first average, and
    `last`, that of the last such call."""
    ops = weighted_averages(run, rank, _SMALLEST, _LARGEST)
    if ops.empty or len(logged(run, rank, prefix=LOADED_FILE)):
        return ops.assign(since=0, last=0)[:0]
    names = run.events("storage", rank, columns=["storage", "name"]).to_pandas()
    names = names.drop_duplicates("storage").set_index("storage")["name"].astype("str")
    reads = accesses_among(run, rank, "storage", names.index, ["start_ns", "storage", "write"])
    reads = reads[~reads["write"]].merge(_within_modules(run, rank, reads["start_ns"]))
    spans = []
    for storage in ops["storage"].unique():
        name = str(names.get(storage, ""))
        path = f".{name.partition('.')[2] if '#' in name.partition('.')[0] else name}"
        copies = names.index[names.str.endswith(path) & (names != name)]
        steps = reads.loc[reads["storage"].isin(copies), "step"]
        since = int(ops.loc[ops["storage"] == storage, "step"].min())
        if len(steps) and steps.nunique() < _RARE * (steps.max() + 1 - since):
            spans.append((storage, since, int(steps.max())))
    return ops.merge(pd.DataFrame(spans, columns=["storage", "since", "last"]), on="storage")


def _within_modules(run: Run, rank: int, starts: pd.Series) -> pd.DataFrame:
    """start_ns and step of the operators of modules that began then."""
    table = run.events("op", rank, columns=["start_ns", "step", "module"])
    ops = to_frame(table.filter(pc.is_in(table["start_ns"], pa.array(starts.unique()))))
    return ops.loc[ops["module"] != "", ["start_ns", "step"]].drop_duplicates()


def _cold(at: str, own: pd.DataFrame) -> dict[str, Any] | None:
    share, last = steady_share(own), int(own["last"].max())
    if share is None or own["since"].min() > _FIRST:  # a later one begins with trained weights
        return None
    left = (1 - share) ** last
    if left < _LEFT:
        return None
    return {
        "kind": "wrong_average",
        "confidence": "likely",
        "title": f"The moving average{at} takes {share:.3g} of the newest parameters in each step, "
        f"and the model that holds it is evaluated as late as step {last}, where "
        f"{units.share(left)} of it are still the weights that the training began with. Let the "
        "decay grow, as in min(decay, (1 + n) / (10 + n)), begin the average later as a copy of "
        "the trained model, or evaluate that model in a training this short.",
        "evidence": {"cause": "cold_average", "share": share, "left": left},
    }
