"""The op table of a window, on intervals whose answer can be worked out on paper."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from lanescope.webapp.plugins.timeline_page import op_table as ranges
from lanescope.webapp.plugins.timeline_page.op_table import OP_COLUMNS
from lanescope.webapp.runs.run import Run, RunError, open_run
from lanescope.webapp.timeline.index import open_index
from tests.support.synthetic import START_NS, Builder, write_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """linear 0-100 with addmm 20-60 with copy 30-40 in it; mm 200-260; one that never ended."""
    builder = Builder(tmp_path / "run")
    builder.thread()
    at = START_NS
    builder.phase(at, 150, "forward")
    builder.phase(at + 180, 100, "backward")
    builder.op(at, 100, "aten::linear", phase="forward")
    builder.op(at + 20, 40, "aten::addmm", phase="forward", depth=1)
    builder.op(at + 30, 10, "aten::copy_", phase="forward", depth=2)
    builder.op(at + 200, 60, "aten::mm", phase="backward")
    builder.op(at + 205, 50, "c10d::allreduce_", phase="backward", depth=1)
    builder.op(at + 300, None, "aten::mm")
    builder.op(at + 400, 0, "aten::view")
    return open_run(builder.write())


def op_table(run: Run, window: tuple[int, int] | None = None) -> pd.DataFrame:
    return ranges.op_table(open_index(run, None), window)


def rows(run: Run, window: tuple[int, int] | None = None) -> dict[str, tuple[int, int, int, str]]:
    table = op_table(run, window)
    assert tuple(table.columns) == OP_COLUMNS
    return {r.op: (r.count, r.total_ns, r.self_ns, r.kind) for r in table.itertuples()}


def test_whole_run(run: Run) -> None:
    end = run.duration_ns
    assert end == 400
    assert rows(run) == {
        "aten::linear": (1, 100, 60, "forward"),
        "aten::addmm": (1, 40, 30, "forward"),
        "aten::copy_": (1, 10, 10, "forward"),
        "aten::mm": (2, 60 + 100, 10 + 100, "other"),
        "c10d::allreduce_": (1, 50, 50, "collective"),
        "aten::view": (1, 0, 0, "other"),
    }


def test_window_cuts_times_and_counts_what_reaches_in(run: Run) -> None:
    # linear 50 of it, less addmm's 25 in it, less copy's 5 within that.
    assert rows(run, (35, 85)) == {
        "aten::linear": (1, 50, 25, "forward"),
        "aten::addmm": (1, 25, 20, "forward"),
        "aten::copy_": (1, 5, 5, "forward"),
    }


def test_self_times_add_up_to_the_time_spent_in_ops(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run", ranks=2, threads=2, steps=3, ops=40))
    for window in ((0, run.duration_ns), (123_456, 1_234_567)):
        table = op_table(run, window)
        outer = run.events("op", columns=["start_ns", "duration_ns", "depth"]).to_pandas()
        outer = outer[outer["depth"] == 0]
        low = outer["start_ns"].clip(lower=window[0])
        high = (outer["start_ns"] + outer["duration_ns"]).clip(upper=window[1])
        assert table["self_ns"].sum() == (high - low).clip(lower=0).sum()
        assert (table["self_ns"] >= 0).all()


def test_quantiles_are_those_of_whole_calls(run: Run) -> None:
    table = op_table(run, (210, 220)).set_index("op")
    assert table.loc["aten::mm", ["mean_ns", "p50_ns", "p99_ns", "max_ns"]].tolist() == [60] * 4
    assert table.loc["aten::mm", "total_ns"] == 10


def test_empty_window(run: Run) -> None:
    table = op_table(run, (110, 190))
    assert table.empty
    assert tuple(table.columns) == OP_COLUMNS


def test_edges_belong_to_the_window_as_half_open(run: Run) -> None:
    assert set(rows(run, (100, 200))) == set()
    assert set(rows(run, (400, 401))) == {"aten::view"}
    assert set(rows(run, (399, 400))) == {"aten::mm"}


def test_a_large_run_is_summed_up_a_stretch_at_a_time(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = [(0, 401), (35, 85), (205, 206), (399, 401), (150, 160)]
    whole = [op_table(run, window) for window in windows]
    monkeypatch.setattr(ranges, "KEPT_OPS", 1)
    for window, expected in zip(windows, whole, strict=True):
        assert op_table(run, window).equals(expected)
    with pytest.raises(RunError, match="choose a shorter window"):
        op_table(run)
