"""The chart of whole norms draws few lines, also of a thousand ranks."""

from __future__ import annotations

import numpy as np
import pandas as pd

from lanescope.webapp.plugins.gradients.charts import farthest_ranks, total_norms
from lanescope.webapp.ui.charts import MAX_LINES


def norms(ranks: int) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "rank": np.repeat(np.arange(ranks), 3),
            "step": np.tile(np.arange(3), ranks),
            "norm": np.tile([3.0, 2.0, 1.0], ranks),
        }
    )


def test_few_ranks_are_all_drawn() -> None:
    assert len(total_norms(norms(4), "light", log=False).data) == 4


def test_of_many_ranks_those_farthest_from_the_median_are_drawn() -> None:
    table = norms(1000)
    table.loc[(table["rank"] == 700) & (table["step"] == 1), "norm"] = 5.0
    table.loc[(table["rank"] == 900) & (table["step"] == 2), "norm"] = np.nan
    assert farthest_ranks(table)[:2] == [900, 700]
    drawn = total_norms(table, "light", log=False).data
    assert {"rank 700", "rank 900"} <= {one.name for one in drawn}
    assert sum(str(one.name).startswith("rank") for one in drawn) == MAX_LINES
