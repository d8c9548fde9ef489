"""How often each operator ran in two runs, by step, rank and thread."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from lanescope.collector.format import schema
from lanescope.webapp.analysis.tensor_fingerprints import ARRIVES, Words
from lanescope.webapp.plugins.diff.op_totals import op_totals
from lanescope.webapp.runs.run import Run


def call_counts(base: Run, run: Run, names: Mapping[tuple[int, str], str]) -> pd.DataFrame:
    """Returns calls of both runs: kind ("op"), rank, thread (its name), step, name, base, run,
    difference and state, which says what a side has more of, by step, rank, thread and name.

    `names` are those of threads of `base`, by rank and id, that `run` calls otherwise.
    """
    keys = ["step", "rank", "thread", "name"]
    words = Words()
    both = _counted(base, names, words).merge(
        _counted(run, {}, words), on=keys, how="outer", suffixes=("_base", "_run")
    )
    for key in ("thread", "name"):  # numbers that sort as their texts do
        texts = np.array(words.known[key], object)
        order = np.argsort(texts)
        ranked = np.empty(len(order), np.int64)
        ranked[order] = np.arange(len(order))
        both[key] = pd.Categorical.from_codes(ranked[both[key].to_numpy(np.int64)], texts[order])
    both = both.sort_values(keys, kind="stable", ignore_index=True)
    low, high = both["calls_base"], both["calls_run"]
    apart = high.fillna(0) - low.fillna(0)
    state = np.where(apart == 0, "identical", np.where(apart > 0, "only_in_run", "only_in_base"))
    return pd.DataFrame(
        {
            "kind": "op",
            "rank": both["rank"],
            "thread": both["thread"].astype("object"),
            "step": both["step"],
            "name": both["name"].astype("object"),
            "base": low.astype("float64"),
            "run": high.astype("float64"),
            "difference": apart.astype("float64"),
            "state": state,
        }
    )


def _counted(run: Run, other_names: Mapping[tuple[int, str], str], words: Words) -> pd.DataFrame:
    """Calls per step, rank, thread name and op name (numbers in `words`), without those of ARRIVES
    and of accesses that are noted by chance. Threads of one name are counted as one; `other_names`
    are those of threads that the other run calls otherwise.
    """
    names = {**{(t.rank, t.thread): t.name for t in run.threads}, **other_names}
    found = op_totals(run)
    found = found[~found["name"].isin([ARRIVES, *schema.NOTED_ACCESSES])]
    ids = found["thread"].cat.categories
    # Few threads, and many rows of each.
    place = found["rank"].to_numpy(np.int64) * len(ids) + found["thread"].cat.codes.to_numpy()
    places, at = np.unique(place, return_inverse=True)
    owners = [names.get((one // len(ids), ids[one % len(ids)]), "") for one in places.tolist()]
    ops = [words.code("name", text) for text in found["name"].cat.categories]
    frame = pd.DataFrame(
        {
            "step": found["step"].to_numpy(np.int64),
            "rank": found["rank"].to_numpy(np.int64),
            "thread": np.array([words.code("thread", name) for name in owners], np.int64)[at],
            "name": np.array(ops, np.int64)[found["name"].cat.codes.to_numpy()],
            "calls": found["calls"].to_numpy(np.int64),
        }
    )
    keys = ["step", "rank", "thread", "name"]
    return frame.groupby(keys, as_index=False, sort=False)["calls"].sum()
