"""How often each operator ran in two runs, by step, rank and thread."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import plain_keys, to_frame
from lanescope.webapp.analysis.tensor_fingerprints import ARRIVES
from lanescope.webapp.runs.run import Run


def call_counts(base: Run, run: Run, names: Mapping[tuple[int, str], str]) -> pd.DataFrame:
    """Calls of both runs: kind ("op"), rank, thread (its name), step, name, base, run, difference
    and state, which says what a side has more of, by step, rank, thread and name.

    `names` are those of threads of `base`, by rank and id, that `run` calls otherwise.
    """
    keys = ["step", "rank", "thread", "name"]
    both = _counted(base, names).merge(
        _counted(run, {}), on=keys, how="outer", suffixes=("_base", "_run")
    )
    both = both.sort_values(keys, kind="stable", ignore_index=True)
    low, high = both["calls_base"], both["calls_run"]
    apart = high.fillna(0) - low.fillna(0)
    state = np.where(apart == 0, "identical", np.where(apart > 0, "only_in_run", "only_in_base"))
    return pd.DataFrame(
        {
            "kind": "op",
            "rank": both["rank"],
            "thread": both["thread"],
            "step": both["step"],
            "name": both["name"],
            "base": low.astype("float64"),
            "run": high.astype("float64"),
            "difference": apart.astype("float64"),
            "state": state,
        }
    )


def _counted(run: Run, other_names: Mapping[tuple[int, str], str]) -> pd.DataFrame:
    """Calls per step, rank, thread name and op name, without those of ARRIVES and of accesses that
    are noted by chance. Threads of one name are counted as one; `other_names` are those of threads
    that the other run calls otherwise.
    """
    names = {**{(t.rank, t.thread): t.name for t in run.threads}, **other_names}
    rows = run.events("op", columns=["rank", "thread", "step", "name"])
    counted = rows.group_by(["rank", "thread", "step", "name"]).aggregate([([], "count_all")])
    frame = to_frame(counted)
    frame["thread"] = [
        names.get(place, "") for place in zip(frame["rank"], frame["thread"], strict=True)
    ]
    keys = ["step", "rank", "thread", "name"]
    frame = plain_keys(frame, "thread", "name")
    frame = frame[~frame["name"].isin({ARRIVES, *schema.NOTED_ACCESSES})]
    return (
        frame.groupby(keys, as_index=False)["count_all"]
        .sum()
        .rename(columns={"count_all": "calls"})
    )
