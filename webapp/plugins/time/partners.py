"""Sends and receives between two ranks: which belongs to which, and when the later one began.

They are numbered per peer, apart from the collectives of their group.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pandas as pd

from lanescope.webapp.analysis.collective_calls import calls, exchanges
from lanescope.webapp.runs.run import Run

_COLUMNS = ["label", "partner_rank", "partner_thread", "partner_ns"]
_OWN = ["sequence", "done_ns", "returned_ns"]
_OTHER = ["sequence", "rank", "thread", "start_ns"]


@lru_cache(maxsize=4)
def partners(run: Run) -> pd.DataFrame:
    """Returns the partner of each send and receive, by label of the row of `calls`: its rank, its
    thread and the instant of its call, ns: COLUMNS but the first, which is the index.

    A call that returned before its partner began did not wait for it, and has no row. There are no
    rows where clocks were not compared. Callers must not change it.
    """
    sides = [
        side
        for one in (exchanges(run) if run.clock_calibrated else ())
        for side in ((one.sends, one.receives), (one.receives, one.sends))
    ]
    if not sides:
        return pd.DataFrame(columns=_COLUMNS).set_index("label")
    # All in one: a merge takes as long for a hundred thousand rows as for a hundred.
    mine, theirs = (
        calls(run)
        .iloc[np.concatenate([rows.index for rows in of])][names]
        .assign(side=np.repeat(np.arange(len(of)), [len(rows) for rows in of]))
        .rename_axis("label")
        .reset_index()
        .set_index(["side", "sequence"])
        for of, names in zip(zip(*sides, strict=True), (_OWN, _OTHER), strict=True)
    )
    both = mine.join(theirs.drop(columns="label"), how="inner", validate="many_to_many")
    ended = np.where(both["done_ns"] >= 0, both["done_ns"], both["returned_ns"])
    found = both[(both["start_ns"] < ended) | (ended < 0)]
    found = found.rename(columns=dict(zip(_OTHER[1:], _COLUMNS[1:], strict=True)))[_COLUMNS]
    return found.drop_duplicates("label").set_index("label")
