"""What a device does all the time, worked out by hand, and how the page shows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lanescope.webapp.plugins.collectives import page_devices as devices
from lanescope.webapp.plugins.collectives.charts import breakdown
from lanescope.webapp.plugins.collectives.devices import temporal_breakdown
from lanescope.webapp.runs.run import Run, open_run
from tests.support.synthetic import START_NS, Builder


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """1000 ns: compute 0-400, all-reduce 300-600, a copy 700-800, compute 900-1000."""
    builder = Builder(tmp_path / "run", world_size=2)
    for rank in (0, 1):
        builder.process(rank)
        builder.thread(rank)
    kernels = (
        (0, 400, "gemm"),
        (300, 300, "ncclDevKernel_AllReduce"),
        (700, 100, "Memcpy HtoD"),
        (900, 100, "gemm"),
    )
    for start, length, name in kernels:
        builder.op(START_NS + start, length, name, scope="kernel")
    builder.op(START_NS, 5, rank=1)  # a rank without a device
    return open_run(builder.write())


def test_a_breakdown_on_paper(run: Run) -> None:
    (row,) = temporal_breakdown(run).to_dict("records")
    assert row == {
        "rank": 0,
        "kernel_time_ns": 1000,
        "idle_ns": 200,
        "compute_ns": 500,
        "non_compute_ns": 300,
        "communication_ns": 300,
        "overlap_ns": 100,
        "overlap": pytest.approx(1 / 3),
    }
    figure = breakdown(temporal_breakdown(run), "dark")
    assert [(bar.name, list(bar.x)) for bar in figure.data] == [
        ("computes", [50]),
        ("only communicates or copies", [30]),
        ("does nothing", [20]),
    ]


def test_of_many_devices_those_that_compute_least_are_drawn_and_listed(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run", world_size=40)
    for rank in range(40):
        builder.process(rank)
        builder.thread(rank)
        busy = 900 if rank % 5 == 4 else 100 + rank  # eight devices that compute nearly always
        builder.op(START_NS, busy, "gemm", rank=rank, scope="kernel")
        builder.op(START_NS + 990, 10, "Memcpy HtoD", rank=rank, scope="kernel")
    many = open_run(builder.write())
    figure = breakdown(temporal_breakdown(many), "light")
    assert list(figure.data[0].y) == [f"rank {rank}" for rank in range(40) if rank % 5 != 4]
    assert "32 of 40 ranks that compute least" in figure.layout.xaxis.title.text
    answer = json.dumps([part.to_plotly_json() for part in devices.section(many)], default=str)
    assert "8 more rows in the file below." in answer


def test_the_page_shows_devices_where_there_are_any(run: Run, tmp_path: Path) -> None:
    answer = json.dumps([part.to_plotly_json() for part in devices.section(run)], default=str)
    for words in ("computes, ns", "500", "300", "200", "33.3 %", "/table/temporal_breakdown.csv"):
        assert words in answer
    builder = Builder(tmp_path / "host")
    builder.thread()
    builder.op(START_NS, 5)
    assert devices.section(open_run(builder.write())) == []
