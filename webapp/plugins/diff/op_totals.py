"""Calls and self time of operators by thread, step, name and module: read once for a comparison."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pandas as pd

from lanescope.webapp.analysis.tensor_fingerprints import Words
from lanescope.webapp.plugins.diff.grouped_rows import grouped_rows
from lanescope.webapp.runs.run import Run

_TEXTS = ("thread", "name", "module")


@lru_cache(maxsize=2)
def op_totals(run: Run) -> pd.DataFrame:
    """Returns rank, thread (its id), step, name, module, calls and ns (self time), a row for each
    combination that occurs in a piece of the operators; the texts are categories."""
    words = Words()
    columns = ["rank", "thread", "step", "name", "module", "self_ns"]
    frames = [pd.DataFrame(columns=[*columns[:-1], "calls", "ns"], dtype="int64")]
    for rows in run.pieces("op", columns=columns):
        if not len(rows):
            continue
        step = rows["step"].to_numpy()
        name, module = (words.codes(key, rows[key]) for key in ("name", "module"))
        grouped = grouped_rows([step, name, module])
        found = {
            "rank": rows["rank"][0].as_py(),
            "thread": words.code("thread", rows["thread"][0].as_py()),
            "step": step[grouped.row],
            "name": name[grouped.row],
            "module": module[grouped.row],
            "calls": grouped.counts,
            "ns": grouped.sums(rows["self_ns"].fill_null(0).to_numpy()),
        }
        frames.append(pd.DataFrame(found).astype("int64"))
    frame = pd.concat(frames, ignore_index=True)
    for key in _TEXTS:
        texts = np.array(words.known[key], object)
        frame[key] = pd.Categorical.from_codes(frame[key].to_numpy(), texts)
    return frame
