"""Heat maps of time begin with the slowest ranks."""

from __future__ import annotations

import pandas as pd

from lanescope.webapp.plugins.time.charts import category_heat, slowdown_heat

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
