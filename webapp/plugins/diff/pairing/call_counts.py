"""How often each operator ran in two runs, by step, rank and thread."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lanescope.collector.format import schema
from lanescope.webapp.analysis.tensor_fingerprints import ARRIVES, Words
from lanescope.webapp.plugins.diff.grouped_rows import grouped_rows
from lanescope.webapp.plugins.diff.op_totals import op_totals
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import Int64Array


def call_counts(base: Run, run: Run, names: Mapping[tuple[int, str], str]) -> pd.DataFrame:
    """Returns calls of both runs: kind ("op"), rank, thread (its name), step, name, base, run,
    difference and state, which says what a side has more of, by step, rank, thread and name.

    `names` are those of threads of `base`, by rank and id, that `run` calls otherwise.
    """
    words = Words()
    sides = [_counted(base, names, words), _counted(run, {}, words)]
    step, rank, thread, name, calls = (
        np.concatenate(column) for column in zip(*sides, strict=True)
    )
    threads, thread = _in_order(words.known["thread"], thread)
    ops, name = _in_order(words.known["name"], name)
    grouped = grouped_rows([step, rank, thread, name])
    in_base = np.arange(len(calls)) < len(sides[0][0])
    low, high = (
        pd.Series(grouped.sums(np.where(of_side, calls, 0)).astype(np.float64)).replace(0, np.nan)
        for of_side in (in_base, ~in_base)
    )
    apart = high.fillna(0) - low.fillna(0)
    state = np.where(apart == 0, "identical", np.where(apart > 0, "only_in_run", "only_in_base"))
    return pd.DataFrame(
        {
            "kind": "op",
            "rank": rank[grouped.row],
            "thread": pd.Series(threads[thread[grouped.row]], dtype="object"),
            "step": step[grouped.row],
            "name": pd.Series(ops[name[grouped.row]], dtype="object"),
            "base": low,
            "run": high,
            "difference": apart,
            "state": state,
        }
    )


def _in_order(texts: list[str], codes: Int64Array) -> tuple[NDArray[np.object_], Int64Array]:
    """Returns the texts sorted, and codes that sort as their texts do."""
    known = np.array(texts, object)
    order = np.argsort(known)
    ranked = np.empty(len(order), np.int64)
    ranked[order] = np.arange(len(order))
    return known[order], ranked[codes]


def _counted(
    run: Run, other_names: Mapping[tuple[int, str], str], words: Words
) -> tuple[Int64Array, ...]:
    """Step, rank, thread name and op name (numbers in `words`) and calls, in rows to be summed:
    without those of ARRIVES and of accesses that are noted by chance. Threads of one name are
    counted as one; `other_names` are those of threads that the other run calls otherwise.
    """
    names = {**{(t.rank, t.thread): t.name for t in run.threads}, **other_names}
    found = op_totals(run)
    ops, ids = found["name"].cat.categories, found["thread"].cat.categories
    counted = ~ops.isin([ARRIVES, *schema.NOTED_ACCESSES])
    found = found[counted[found["name"].cat.codes.to_numpy()]]
    # Few threads, and many rows of each.
    rank = found["rank"].to_numpy(np.int64)
    places, at = np.unique(
        rank * len(ids) + found["thread"].cat.codes.to_numpy(), return_inverse=True
    )
    owners = [names.get((one // len(ids), ids[one % len(ids)]), "") for one in places.tolist()]
    threads = np.array([words.code("thread", name) for name in owners], np.int64)
    numbers = np.array([words.code("name", text) for text in ops], np.int64)
    return (
        found["step"].to_numpy(np.int64),
        rank,
        threads[at],
        numbers[found["name"].cat.codes.to_numpy()],
        found["calls"].to_numpy(np.int64),
    )
