"""How often each operator ran in two runs, by step, rank and thread."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from lanescope.collector.format import schema
from lanescope.webapp.analysis.grouped_rows import grouped_rows
from lanescope.webapp.analysis.tensor_fingerprints import ARRIVES, Words
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
    keys = ["step", "rank", "thread", "name"]
    frames = [pd.DataFrame(columns=[*keys, "calls"], dtype="int64")]
    for rows in run.pieces("op", columns=["rank", "thread", "step", "name"]):
        if not len(rows):
            continue
        rank, thread = rows["rank"][0].as_py(), rows["thread"][0].as_py()
        step, name = rows["step"].to_numpy(), words.codes("name", rows["name"])
        counted = grouped_rows([step, name])
        frame = pd.DataFrame(
            {
                "step": step[counted.row],
                "rank": rank,
                "thread": words.code("thread", names.get((rank, thread), "")),
                "name": name[counted.row],
                "calls": counted.counts,
            }
        )
        frames.append(frame.astype("int64"))
    frame = pd.concat(frames, ignore_index=True)
    left_out = [words.code("name", name) for name in (ARRIVES, *schema.NOTED_ACCESSES)]
    frame = frame[~frame["name"].isin(left_out)]
    return frame.groupby(keys, as_index=False, sort=False)["calls"].sum()
