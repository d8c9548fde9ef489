"""Streams, kernels, copies, operators: of a small trace on paper, of a real one from its file."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lanescope.webapp.plugins.devices.idle import CAUSES, streams
from lanescope.webapp.plugins.devices.kernels import (
    copies,
    device_operators,
    has_kernels,
    kernels,
)
from lanescope.webapp.runs.run import Run, open_run
from tests.support.synthetic import START_NS, Builder
from tests.support.trace_files import DATA, imported, kernel, slice_, write_trace

US = 1000
REAL = DATA / "kineto_ns_resolution_rank-0.json.gz"


def launch(ts: int, correlation: int, name: str = "cudaLaunchKernel") -> dict[str, Any]:
    args = {"correlation": correlation}
    return slice_(name, ts, 5, cat="cuda_runtime", args=args)


def with_arguments(event: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**event, "args": {**event["args"], **more}}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Stream 1 runs from 110 to 150, 160 to 260 and 400 to 410 us, stream 2 from 300 to 390."""
    gemm = {
        "grid": [4, 2, 1],
        "block": [128, 1, 1],
        "registers per thread": 40,
        "shared memory": 512,
        "est. achieved occupancy %": 75,
    }
    events = [
        slice_("aten::linear", 95, 100, cat="cpu_op"),
        slice_("aten::addmm", 98, 40, cat="cpu_op"),
        launch(100, 1),
        with_arguments(kernel("gemm", 110, 40, 1, 1), **gemm),
        launch(145, 2),
        with_arguments(kernel("gemm", 160, 100, 1, 2), **gemm),
        slice_("aten::copy_", 280, 20, cat="cpu_op"),
        launch(290, 3, "cudaMemcpyAsync"),
        with_arguments(kernel("Memcpy HtoD (Pinned -> Device)", 300, 90, 2, 3), bytes=180_000),
        slice_("cudaStreamWaitEvent", 310, 5, cat="cuda_runtime"),
        slice_("aten::add", 330, 20, cat="cpu_op"),
        launch(340, 4),
        kernel("add", 400, 10, 1, 4),
    ]
    return imported(tmp_path / "run", write_trace(tmp_path / "trace.json", events))


def test_idle_time_by_cause_on_paper(run: Run) -> None:
    """The kernel at 160 was launched at 145, that at 400 at 340, and waited for the copy."""
    table = streams(run).set_index("kernels")
    first = table.loc[3]
    idle = {name: first[f"idle_{name}_ns"] / US for name in CAUSES if first[f"idle_{name}_ns"]}
    assert idle == {"host": 80, "copy": 50, "start": 20}
    assert first["busy_ns"] == 150 * US
    assert first["window_ns"] == 300 * US
    assert first["launch_delay_p50_ns"] == 15 * US
    assert (first["queue_p50"], first["queue_max"]) == (1, 2)
    assert table.loc[1, "window_ns"] == table.loc[1, "busy_ns"] == 90 * US


def test_kernels_copies_and_operators_on_paper(run: Run) -> None:
    assert has_kernels(run)
    table = kernels(run).set_index("name")
    gemm = table.loc["gemm"]
    assert (gemm["type"], gemm["calls"], gemm["time_ns"]) == ("compute", 2, 140 * US)
    assert (gemm["grid"], gemm["block"], gemm["registers"]) == ("4 x 2 x 1", "128 x 1 x 1", 40)
    assert (gemm["shared_bytes"], gemm["occupancy"]) == (512, 75)
    assert gemm["launch_delay_p50_ns"] == 12.5 * US
    (copy,) = copies(run).to_dict("records")
    assert (copy["bytes"], copy["time_ns"]) == (180_000, 90 * US)
    assert copy["bytes_per_s"] == pytest.approx(2e9)
    operators = device_operators(run).set_index("name")
    assert operators["device_total_ns"].to_dict() == {
        "aten::linear": 140 * US,
        "aten::addmm": 40 * US,
        "aten::copy_": 90 * US,
        "aten::add": 10 * US,
    }
    assert operators["device_self_ns"].sum() == 240 * US
    assert operators.loc["aten::linear", "device_self_ns"] == 100 * US


def test_a_wait_without_a_record_is_not_explained(tmp_path: Path) -> None:
    events = [
        launch(0, 1),
        kernel("first", 10, 10, 1, 1),
        launch(15, 2),
        kernel("second", 120, 10, 1, 2),
        kernel("without a launch", 180, 10, 1),
    ]
    run = imported(tmp_path / "run", write_trace(tmp_path / "trace.json", events))
    (row,) = streams(run).to_dict("records")
    assert (row["idle_start_ns"], row["idle_unknown_ns"]) == (10 * US, (90 + 50) * US)


def test_a_run_without_a_device(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    builder.op(START_NS, 1000)
    run = open_run(builder.write())
    assert not has_kernels(run)
    for table in (streams, kernels, copies, device_operators):
        assert table(run).empty


@pytest.mark.skipif(not REAL.exists(), reason="the trace is not at hand")
def test_a_real_trace_counted_from_its_file(tmp_path: Path) -> None:
    with gzip.open(REAL) as file:
        events = json.load(file)["traceEvents"]
    kinds = ("kernel", "gpu_memcpy", "gpu_memset")
    activities = [event for event in events if event.get("cat") in kinds]
    run = imported(tmp_path / "run", REAL)
    table = kernels(run)
    assert dict(zip(table["name"], table["calls"], strict=True)) == Counter(
        event["name"] for event in activities
    )
    spent: dict[str, float] = defaultdict(float)
    moved: dict[str, int] = defaultdict(int)
    for event in activities:
        spent[event["name"]] += event["dur"] * US
        if event["cat"] != "kernel":
            moved[event["name"]] += event["args"]["bytes"]
    found = table.set_index("name")["time_ns"]
    assert found.to_dict() == pytest.approx(spent, rel=1e-6, abs=len(activities))
    assert copies(run).set_index("name")["bytes"].to_dict() == moved
    starts = {
        event["args"]["correlation"]: event["ts"]
        for event in events
        if event.get("cat") == "cuda_runtime"
    }
    delays = [event["ts"] - starts[event["args"]["correlation"]] for event in activities]
    (row,) = streams(run).to_dict("records")
    assert row["launch_delay_p50_ns"] == pytest.approx(np.median(delays) * US, abs=2 * US)
    idle = sum(row[f"idle_{name}_ns"] for name in CAUSES)
    assert row["busy_ns"] + idle == row["window_ns"]
