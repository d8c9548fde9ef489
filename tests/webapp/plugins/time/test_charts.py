"""Heat maps of time begin with the slowest ranks; lengths of bars that are cut off can be read."""

from __future__ import annotations

import pandas as pd

from lanescope.webapp.plugins.time.breakdown import CATEGORIES
from lanescope.webapp.plugins.time.charts import category_heat, slowdown_heat, step_bars

RANKS = [0, 0, 1, 1, 2, 2]
STEPS = [0, 1] * 3


def test_ranks_are_drawn_in_the_order_given() -> None:
    times = pd.DataFrame(
        {"rank": RANKS, "step": STEPS, "python_ns": [1, 3, 8, 8, 2, 2], "duration_ns": [10] * 6}
    )
    (drawn,) = category_heat(times, "python", "light", [2, 7, 0, 1]).data
    assert drawn.y == ("rank 2", "rank 0", "rank 1")  # rank 7 has no step
    assert [list(row) for row in drawn.z] == [[20, 20], [10, 30], [80, 80]]
    assert drawn.text[1][1] == "rank 0, step 1"
    (drawn,) = category_heat(times, "python", "light").data
    assert drawn.y == ("rank 0", "rank 1", "rank 2")


def test_the_slowest_rank_comes_first() -> None:
    table = pd.DataFrame({"rank": RANKS, "step": STEPS, "slowdown": [1, 1, 1.1, 1, 2, 1.5]})
    (drawn,) = slowdown_heat(table, "light").data
    assert drawn.y == ("rank 2", "rank 1", "rank 0")


def test_lengths_of_neighbouring_bars_that_are_cut_off_do_not_overlap() -> None:
    lengths = [7_000_000, 9_000_000, *[1_000_000] * 17, 8_000_000]
    steps = pd.DataFrame({"step": range(20), "duration_ns": lengths})
    steps = steps.assign(**{f"{name}_ns": 0 for name in CATEGORIES}).assign(python_ns=lengths)
    words = [(one.x, one.text) for one in step_bars(steps, "light").layout.annotations]
    assert words == [(1, "↑ 9.00 ms"), (19, "↑ 8.00 ms")]
