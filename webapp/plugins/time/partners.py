"""Sends and receives between two ranks: which belongs to which, and when the later one began.

They are numbered per peer, apart from the collectives of their group.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pandas as pd

from lanescope.webapp.analysis.collective_calls import exchanges
from lanescope.webapp.runs.run import Run

_COLUMNS = ["label", "partner_rank", "partner_thread", "partner_ns"]


@lru_cache(maxsize=4)
def partners(run: Run) -> pd.DataFrame:
    """Returns the partner of each send and receive, by label of the row of `calls`: its rank, its
    thread and the instant of its call, ns: COLUMNS but the first, which is the index.

    A call that returned before its partner began did not wait for it, and has no row. There are no
    rows where clocks were not compared. Callers must not change it.
    """
    parts = [pd.DataFrame(columns=_COLUMNS)]
    for one in exchanges(run) if run.clock_calibrated else ():
        for mine, theirs in ((one.sends, one.receives), (one.receives, one.sends)):
            both = mine.assign(label=mine.index).merge(
                theirs, on="sequence", suffixes=("", "_other"), validate="many_to_many"
            )
            found = both[["label", "rank_other", "thread_other", "start_ns_other"]]
            found.columns = pd.Index(_COLUMNS)
            ended = np.where(both["done_ns"] >= 0, both["done_ns"], both["returned_ns"])
            parts.append(found[(both["start_ns_other"] < ended) | (ended < 0)])
    table = pd.concat(parts[1:], ignore_index=True) if len(parts) > 1 else parts[0]
    return table.drop_duplicates("label").set_index("label")
