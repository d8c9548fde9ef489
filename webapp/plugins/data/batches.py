"""The samples of batches, of models' arguments and of what models return, as a table."""

from __future__ import annotations

from functools import lru_cache
from typing import TypedDict

import pandas as pd

from lanescope.collector.format.names import BATCH_HASH, BATCH_ROWS
from lanescope.webapp.analysis.findings import NotRecorded
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.analysis.process_exits import of_last_attempt
from lanescope.webapp.runs.run import Run

BATCH_KEYS = ["step", "call"]


class RepeatedData(TypedDict):
    """What repeats, and at how many sampled steps it was seen to."""

    cause: str
    steps: int


def given_to_models(samples: pd.DataFrame) -> pd.DataFrame:
    """Returns the inputs of models; losses that are modules get targets as well."""
    of_losses = samples["model"].astype("str").str.contains("Loss|Criterion")
    return samples[(samples["what"] == "input") & ~of_losses]


@lru_cache(maxsize=4)
def batch_samples(run: Run) -> pd.DataFrame:
    """Returns one row per sampled tensor: rank, thread, time_ns, step, call, what, model, position,
    hash, rows, alike.

    what: loaded, input or output; call: number of the sample of that name in its step, from 0;
    alike: all rows are the same. Raises NotApplicable where the run holds none.
    """
    hashes, rows = (
        of_last_attempt(run, logged(run, None, prefix=prefix))
        for prefix in (BATCH_HASH, BATCH_ROWS)
    )
    if hashes.empty or len(rows) != len(hashes):
        raise NotRecorded("record training steps with --level access: no batch was sampled")
    order = ["rank", "thread", "name", "step", "time_ns"]
    both = [frame.sort_values(order, kind="stable", ignore_index=True) for frame in (hashes, rows)]
    frame = both[0].rename(columns={"value": "hash"})
    names = frame["name"].astype("str")
    parts = names.str.split("/", n=1, expand=True)
    frame["what"] = parts[0]
    rest = parts[1].str.rpartition("/")
    frame["model"], frame["position"] = rest[0], rest[2].astype("int64")
    frame["call"] = frame.groupby(["rank", "name", "step"], observed=True).cumcount()
    frame["rows"], frame["alike"] = both[1]["value"].abs(), both[1]["value"] < 0
    return frame.drop(columns="name").sort_values(["rank", "time_ns"], ignore_index=True)
