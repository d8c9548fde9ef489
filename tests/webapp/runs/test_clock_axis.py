"""Instants and steps of a run: one axis for all ranks, one order, one division into steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from lanescope.webapp.runs.clock_axis import Axis
from tests.support.synthetic import START_NS, Builder
from tests.webapp.runs.test_run import column, opened

T = START_NS


def test_times_count_from_the_first_event_of_any_rank(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run", world_size=2)
    builder.op(T + 500, 10, rank=1, thread="1001-0")
    builder.op(T + 300, 20, rank=0, thread="1000-0")
    run = opened(builder)
    assert run.origin_ns == T + 300
    assert run.duration_ns == 210
    assert column(run, "op", "start_ns") == [0, 200]
    assert [(t.start_ns, t.end_ns) for t in run.threads] == [(0, 20), (200, 210)]


def test_ranks_are_put_on_one_axis_by_their_offsets(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run", world_size=2)
    builder.process(0)
    clock = {"offset_ns": -(10**18), "host": "other", "uncertainty_ns": 40}
    builder.process(1, clock=clock, start_ns=T + 10**18)
    builder.op(T, 10, rank=0)
    builder.row(
        "collective",
        1,
        "1001-0",
        start_ns=T + 10**18 + 7,
        duration_ns=5,
        complete_ns=T + 10**18 + 9,
        name="barrier",
    )
    run = opened(builder)
    assert column(run, "collective", "start_ns") == [7]
    assert column(run, "collective", "complete_ns") == [9]
    assert run.clock_uncertainty_ns == 40
    assert run.clock_calibrated
    assert run.warnings == ()


def test_drift_stretches_instants_and_keeps_nesting(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run", world_size=1)
    builder.process(0, start_ns=T, clock={"drift_ppb": 1e6})
    builder.op(T, 10_000)
    builder.op(T + 2_500, 7_500, depth=1, name="aten::add")
    builder.op(T + 20_000, None)
    run = opened(builder)
    assert column(run, "op", "start_ns") == [0, 2_502, 20_020]
    assert column(run, "op", "duration_ns") == [10_010, 7_508, None]
    ends = np.add(column(run, "op", "start_ns")[:2], column(run, "op", "duration_ns")[:2])
    assert ends.tolist() == [10_010, 10_010]


@given(
    st.lists(st.integers(0, 10**15), min_size=2, max_size=30),
    st.floats(-1e6, 1e6),
    st.integers(-(2**60), 2**60),
)
def test_the_axis_keeps_the_order_of_instants(times: list[int], drift: float, offset: int) -> None:
    axis = Axis(offset, drift, T)
    local = sorted(T + t for t in times)
    mapped = axis.instants(pa.chunked_array([local], pa.int64()), offset).to_pylist()
    assert mapped == sorted(mapped)
    exact = [t + round((t - T) * drift / 1e9) for t in local]
    assert all(abs(a - b) <= 1 for a, b in zip(mapped, exact, strict=True))


def test_steps_end_with_the_last_optimizer_phase(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    builder.phase(T, 5, "data", step=0)
    builder.phase(T + 10, 20, "optimizer", step=0)
    builder.phase(T + 31, 4, "optimizer", step=0)
    builder.phase(T + 50, 10, "optimizer", step=1)
    builder.phase(T + 90, 5, "forward", step=5)
    builder.phase(T + 100, 10, "optimizer", step=5)
    builder.phase(T + 120, 10, "forward", step=6)
    builder.phase(T + 140, None, "optimizer", step=6)
    steps = opened(builder).steps(0)
    assert steps.index.tolist() == [0, 1, 5]
    assert steps.start_ns.tolist() == [0, 35, 90]
    assert steps.end_ns.tolist() == [35, 60, 110]
    assert len(steps) == 3


def test_steps_of_children_are_not_the_rank_s(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    builder.phase(T, 10, "optimizer", step=0)
    builder.process(0, pid=2000, role="child")
    builder.phase(T, 500, "optimizer", step=0, thread="2000-0")
    assert opened(builder).steps(0).end_ns.tolist() == [10]


def test_steps_without_an_optimizer_come_from_the_phases(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    builder.phase(T, 10, "forward", step=0)
    builder.phase(T + 10, 10, "user", step=0)
    builder.phase(T + 30, 10, "forward", step=1)
    steps = opened(builder).steps(0)
    assert (steps.start_ns.tolist(), steps.end_ns.tolist()) == ([0, 20], [20, 40])


def test_a_run_without_phases_has_no_steps(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    builder.op(T, 1)
    assert len(opened(builder).steps(0)) == 0
