"""The chart of overlap over time draws few lines, also of a thousand ranks."""

from __future__ import annotations

import numpy as np
import pandas as pd

from lanescope.webapp.plugins.threads.charts import overlap_rates
from lanescope.webapp.runs import units
from lanescope.webapp.ui.charts import MAX_LINES


def test_of_many_ranks_those_that_overlap_most_are_drawn() -> None:
    ranks = 1000
    table = pd.DataFrame(
        {
            "rank": np.repeat(np.arange(ranks), 2),
            "start_ns": np.tile([0, 100], ranks),
            "end_ns": np.tile([100, 200], ranks),
            "rate": np.repeat(np.where(np.arange(ranks) == 700, 0.9, 0.1), 2),
        }
    )
    figure = overlap_rates(table, None, "light")
    assert len(figure.data) == MAX_LINES
    assert "rank 700" in {one.name for one in figure.data}
    assert (
        figure.layout.legend.title.text == f"the 12 of {units.count(ranks)} ranks that overlap most"
    )
    few = overlap_rates(table[table["rank"] < 4], None, "light")
    assert len(few.data) == 4
    assert few.layout.legend.title.text is None
