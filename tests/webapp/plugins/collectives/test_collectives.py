"""Collectives at call level: counts, bytes, latency."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lanescope.webapp.plugins.collectives.charts import by_size
from lanescope.webapp.plugins.collectives.collectives import collectives
from lanescope.webapp.runs.run import Run, open_run
from lanescope.webapp.ui.charts import MAX_LINES
from tests.support.synthetic import START_NS, Builder

T = START_NS


def run_of(path: Path, *calls: dict[str, Any]) -> Run:
    builder = Builder(path, world_size=2)
    for call in calls:
        rank = call.pop("rank", 0)
        start = T + call.pop("at", 0)
        done = call.pop("done", None)
        values: dict[str, Any] = {
            "name": "all_reduce",
            "group": "0",
            "group_size": 2,
            "duration_ns": 10,
            **call,
        }
        values["complete_ns"] = None if done is None else T + done
        builder.row("collective", rank, f"{1000 + rank}-0", start_ns=start, **values)
    return open_run(builder.write())


def test_calls_of_one_operation_group_and_size_are_one_row(tmp_path: Path) -> None:
    run = run_of(
        tmp_path,
        {"bytes": 100, "at": 0, "done": 50},
        {"bytes": 100, "at": 10, "done": 110, "duration_ns": 30},
        {"bytes": 100, "rank": 1, "at": 5, "done": 55},
        {"bytes": 700},
        {"bytes": 100, "group": "1"},
        {"bytes": 100, "name": "broadcast", "rank": 1, "duration_ns": None},
    )
    found = collectives(run)
    assert found[
        ["name", "group", "group_size", "bytes", "ranks", "calls", "total_bytes", "unfinished"]
    ].values.tolist() == [
        ["all_reduce", "0", 2, 700, 1, 1, 700, 0],
        ["all_reduce", "0", 2, 100, 2, 3, 300, 0],
        ["all_reduce", "1", 2, 100, 1, 1, 100, 0],
        ["broadcast", "0", 2, 100, 1, 1, 100, 1],
    ]
    row = found.iloc[1]
    assert (row["call_p50_ns"], row["call_max_ns"]) == (10, 30)
    assert (row["latency_p50_ns"], row["latency_max_ns"]) == (50, 100)
    assert row["latency_p99_ns"] == 50 + 0.98 * 50
    assert math.isnan(found.iloc[0]["latency_p50_ns"])
    assert math.isnan(found.iloc[3]["call_max_ns"])


def test_a_run_without_collectives_has_an_empty_table(tmp_path: Path) -> None:
    builder = Builder(tmp_path)
    builder.op(T, 1)
    found = collectives(open_run(builder.write()))
    assert found.empty
    assert "latency_p99_ns" in found.columns


@pytest.mark.parametrize("times", [(2.17e6, 3.88e6), (5.2e6, 5.4e6), (3e6, 3e6), (2e3, 4e8)])
def test_axes_have_labels_where_sizes_are_close(times: tuple[float, float]) -> None:
    table = pd.DataFrame(
        {
            "name": "all_reduce",
            "group": "0",
            "bytes": [64, 64],
            "total_bytes": [640, 640],
            "transfer_ns": times,
        }
    )
    layout = by_size(table, "transfer_ns", "median transfer", "light").layout
    for axis, values in ((layout.xaxis, (64, 64)), (layout.yaxis, times)):
        ends = axis.range or np.log10(values)
        shown = [tick for tick in axis.tickvals if ends[0] <= np.log10(tick) <= ends[1]]
        assert len(shown) >= 2
        assert ends[0] <= np.log10(min(values)) <= np.log10(max(values)) <= ends[1]


def test_axes_have_labels_for_the_lines_that_are_drawn() -> None:
    groups = [str(group) for group in range(MAX_LINES + 1)]
    totals = [*([640] * MAX_LINES), 1]  # the last one is not drawn
    table = pd.DataFrame(
        {
            "name": "all_reduce",
            "group": groups,
            "bytes": 64,
            "total_bytes": totals,
            "transfer_ns": [*([1.52e5] * MAX_LINES), 9e8],
        }
    )
    axis = by_size(table, "transfer_ns", "median transfer", "light").layout.yaxis
    assert 10 ** axis.range[1] < 1e6
