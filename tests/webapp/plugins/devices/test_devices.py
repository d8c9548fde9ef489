"""Streams, kernels, copies, operators: of a small trace on paper, of a real one from its file."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lanescope.webapp.plugins.devices import charts, page
from lanescope.webapp.plugins.devices.annotations import device_annotations
from lanescope.webapp.plugins.devices.idle import IDLE_CAUSES, streams
from lanescope.webapp.plugins.devices.kernels import (
    copies,
    device_operators,
    has_kernels,
    kernels,
)
from lanescope.webapp.runs.run import Run, open_run
from tests.support import ROOT
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
    idle = {name: first[f"idle_{name}_ns"] / US for name in IDLE_CAUSES if first[f"idle_{name}_ns"]}
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


def annotation(name: str, ts: int, dur: int, **fields: Any) -> dict[str, Any]:
    return slice_(name, ts, dur, cat="user_annotation", **fields)


def of_annotations(run: Run) -> dict[str, tuple[int, ...]]:
    table = device_annotations(run)
    columns = ["calls", "kernels", "device_total_ns", "device_self_ns", "device_span_ns", "host_ns"]
    return {
        name: tuple((row[columns].astype(int) // [1, 1, US, US, US, US]).tolist())
        for name, row in table.set_index("name").iterrows()
    }


def test_annotations_on_paper(tmp_path: Path) -> None:
    """The step holds all kernels, `attention` two calls of one kernel each, `loss` one that an
    autograd thread launched; a function of Python and a wait of a stream are no annotations."""
    events = [
        annotation("ProfilerStep#3", 0, 500),
        annotation("block", 10, 200),
        annotation("attention", 20, 40),
        annotation("attention", 100, 40),
        slice_("train.py(3): step", 5, 400, cat="python_function", args={"Python id": 1}),
        launch(25, 1),
        kernel("softmax", 50, 30, 1, 1),
        launch(105, 2),
        kernel("softmax", 150, 50, 1, 2),
        launch(180, 3),
        kernel("gelu", 220, 7, 2, 3),
        annotation("loss", 300, 100),
        slice_("autograd::engine::evaluate_function: MulBackward0", 320, 50, cat="cpu_op", tid=8),
        {**launch(330, 4), "tid": 8},
        kernel("mul", 340, 11, 1, 4),
        annotation("no kernels", 450, 10),
        slice_("Stream Wait Event", 40, 300, cat="cuda_sync", pid=0, tid=1)
        | {"args": {"cuda_sync_kind": "Stream Wait Event", "device": 0, "stream": 1}},
        slice_("attention", 50, 150, cat="gpu_user_annotation", pid=0, tid=1),
        slice_("of another process", 215, 20, cat="gpu_user_annotation", pid=0, tid=2),
    ]
    run = imported(tmp_path / "run", write_trace(tmp_path / "trace.json", events))
    assert of_annotations(run) == {
        "ProfilerStep": (1, 4, 98, 0, 301, 500),
        "block": (1, 3, 87, 7, 177, 200),
        "attention": (2, 2, 80, 80, 80, 80),
        "loss": (1, 1, 11, 11, 11, 100),
        "of another process": (1, 1, 7, 7, 7, 0),
    }


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
    for table in (streams, kernels, copies, device_operators, device_annotations):
        assert table(run).empty


def test_the_page_of_a_run_on_a_gpu() -> None:
    run = open_run(ROOT / "tests" / "fixtures" / "gpu" / "whole_step_graph.lanes")
    for draw, table, name in (
        (page._kernels, kernels, "Memcpy HtoD"),
        (page._copies, copies, "Memcpy DtoD"),
        (page._operators, device_operators, "aten::copy_"),
        (page._annotations, device_annotations, "Adam.step"),
    ):
        assert name in str(draw(table(run)).to_plotly_json())


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
    idle = sum(row[f"idle_{name}_ns"] for name in IDLE_CAUSES)
    assert row["busy_ns"] + idle == row["window_ns"]


@pytest.mark.parametrize("path", [REAL] if REAL.exists() else [], ids=lambda path: path.name)
def test_spans_of_annotations_are_those_of_the_profiler(path: Path, tmp_path: Path) -> None:
    """Autograd threads work for `backward`; the profiler counts the launches of its own thread."""
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    spans: dict[str, float] = defaultdict(float)
    for event in events:
        if event.get("cat") == "gpu_user_annotation":
            spans[event["name"]] += event["dur"] * US
    found = device_annotations(imported(tmp_path / "run", path)).set_index("name")
    lengths = found["device_span_ns"]
    assert lengths["DistributedDataParallel.forward"] == pytest.approx(
        spans["DistributedDataParallel.forward"], abs=10
    )
    assert lengths["SGD.step"] == pytest.approx(spans["Optimizer.step#SGD.step"], abs=10)
    assert lengths["backward"] > spans["## backward ##"] > 0
    assert not set(spans) & set(found.index) - {"DistributedDataParallel.forward"}
    kernels_of_backward = sum(
        event.get("cat") == "kernel" and "Backward" in event["name"] for event in events
    )
    assert found.loc["backward", "kernels"] >= kernels_of_backward


def test_of_many_streams_the_busiest_are_drawn(run: Run) -> None:
    table = streams(run)
    many = table.loc[table.index.repeat(20)].reset_index(drop=True)
    many["stream"] = [f"stream {number}" for number in many.index]
    many["busy_ns"] = many.index
    figure = charts.stream_times(many, "light")
    assert list(figure.data[0].y) == [f"stream {number}" for number in range(8, 40)]
    assert "32 of 40 streams that run kernels longest" in figure.layout.xaxis.title.text
