"""Memory by category: on paper, of a trace's allocator events, and of a program that counts it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lanescope.webapp.analysis.findings import NotApplicable
from lanescope.webapp.plugins.memory.changes import memory_changes, memory_changes_by
from lanescope.webapp.plugins.memory.page_baseline import peak_note
from lanescope.webapp.plugins.memory.recorded import recorded_storages
from lanescope.webapp.plugins.memory.storages import STORAGE_CATEGORIES
from lanescope.webapp.plugins.memory.usage import Usage, memory, memory_peak, storages_of
from lanescope.webapp.runs.run import Run, open_run
from tests.support import ROOT
from tests.support.recording import record_program
from tests.support.synthetic import START_NS, Builder
from tests.support.trace_files import imported, slice_, write_trace

MS = 1_000_000

TRAINING = """
    import json, sys
    import torch
    from torch import nn

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    optimizer = torch.optim.Adam(model.parameters())

    def train(steps):
        for _ in range(steps):
            model(torch.randn(128, 64)).pow(2).mean().backward()
            optimizer.step()
            if _ < steps - 1:
                optimizer.zero_grad()

    def size(tensors):
        return sum(one.untyped_storage().nbytes() for one in tensors)

    train(2)
    optimizer.zero_grad()
    kept = size(model.parameters())
    kept += size(x for state in optimizer.state.values() for x in state.values())
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profiler:
        train(2)
    profiler.export_chrome_trace(sys.argv[1])
    events = json.load(open(sys.argv[1]))["traceEvents"]
    now, peak = kept, 0
    for event in events:
        if event.get("name") == "[memory]":
            now += event["args"]["Bytes"]
            peak = max(peak, now)
    print(json.dumps({
        "parameters": size(model.parameters()),
        "optimizer_state": size(x for s in optimizer.state.values() for x in s.values()),
        "gradients": size(p.grad for p in model.parameters()),
        "peak": peak,
    }))
"""


def bytes_of(row: dict[str, Any]) -> dict[str, int]:
    """Categories of a row that are not zero."""
    found = {name: int(row[f"{name}_bytes"]) for name in STORAGE_CATEGORIES if row[f"{name}_bytes"]}
    assert sum(found.values()) == row["peak_bytes"]
    return found


def test_of_a_program_that_counts_its_own_storages(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    recorded = record_program(tmp_path, TRAINING, "--level", "access", arguments=(str(trace),))
    assert recorded.status == 0, recorded.stderr
    truth = json.loads(recorded.stdout)
    run = open_run(recorded.run)
    table = memory(run).set_index("step")
    storages = storages_of(run, 0)
    at_the_end = Usage.of(storages, "cpu").by(storages.category, run.steps(0).end_ns[-1:] - 1)
    for name in ("parameters", "optimizer_state", "gradients"):
        assert at_the_end[name] == truth[name]
    for row in (table.loc[2], table.loc[3]):
        bytes_of(row.to_dict())
        assert row["peak_bytes"] <= truth["peak"] <= row["at_most_bytes"]
    assert table.loc[2:3, "peak_bytes"].max() > 0.9 * truth["peak"]
    peak = memory_peak(run)
    assert peak["bytes"].sum() == table["peak_bytes"].max()
    assert {"0.weight", "2.bias"} <= {*peak["name"]}
    wheres = peak.loc[peak["category"] == "gradients", "where"]
    assert {one.partition(":")[0] for one in wheres} == {"program.py"}
    # The same from the trace that the profiler wrote, where the allocator states each release.
    usage = Usage.of(storages_of(imported(tmp_path / "imported", trace), 0), "cpu")
    assert usage.bytes.max() == truth["peak"] - truth["parameters"] - truth["optimizer_state"]


def access(
    builder: Builder,
    start: int,
    address: int,
    size: int,
    birth: bool = False,
    write: bool = False,
) -> None:
    """A row of the table `access`, `start` ms from the begin: a tensor is used, or made."""
    builder.row(
        "access",
        0,
        "1000-0",
        start_ns=START_NS + start * MS,
        duration_ns=MS,
        storage=address,
        bytes=size,
        run=size,
        write=birth or write,
        birth=birth,
    )


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Two steps of 100 ms: forward to 40, backward to 80, optimizer to 100."""
    builder = Builder(tmp_path / "run")
    for step in (0, 1):
        at = START_NS + 100 * step * MS
        for kind, begin, length in (
            ("forward", 0, 40),
            ("backward", 40, 40),
            ("optimizer", 80, 20),
        ):
            builder.phase(at + begin * MS, length * MS, kind, step=step)
    builder.rows("storage", 0, None, pid=[1000], storage=[0x1000], name=["weight"])

    for at in (1, 50, 90, 101, 150, 190):
        access(builder, at, 0x1000, 100)  # the parameter
    for step in (0, 100):
        access(builder, step + 2, 0x2000, 40, birth=True)  # for backward
        access(builder, step + 60, 0x2000, 40)
        access(builder, step + 10, 0x3000, 7, birth=True)  # within forward
        access(builder, step + 61, 0x4000, 100, birth=True)  # the gradient
        access(builder, step + 82, 0x4000, 100)
        within_optimizer = 0x5000 if step == 0 else 0x5800
        access(builder, step + 85, within_optimizer, 9, birth=True)
    access(builder, 86, 0x6000, 200, birth=True)  # state
    access(builder, 186, 0x6000, 200)
    access(builder, 120, 0x2FF8, 16, birth=True)  # has bytes of 0x3000
    access(builder, 3, 0x7000, 50, birth=True)  # a bucket that DDP makes in a forward
    for step in (0, 100):
        access(builder, step + 62, 0x7000, 50, write=True)
    return open_run(builder.write())


def test_categories_and_bounds_on_paper(run: Run) -> None:
    first, second = (bytes_of(row) for row in memory(run).to_dict("records"))
    assert first == {
        "parameters": 100,
        "gradients": 100 + 50,
        "optimizer_state": 200,
    }
    assert second == {
        "parameters": 100,
        "gradients": 100 + 50,
        "optimizer_state": 200,
    }
    usage = Usage.of(storages_of(run, 0), "cpu")
    assert np.diff(usage.time_ns).min() >= 0
    # All that forward made may still be allocated: nothing else has had its memory yet.
    assert usage.at_most(61 * MS, 62 * MS) == 100 + 40 + 7 + 100 + 50
    assert usage.at_most(0, run.duration_ns) == 100 + 40 + 16 + 100 + 9 + 9 + 200 + 50
    peak = memory_peak(run)
    assert peak["bytes"].tolist() == [200, 100 + 50, 100]
    assert peak["name"].tolist().count("weight") == 1


def allocated(path: Path, activation: int, gradient: int) -> Run:
    """A step with a parameter of 100 bytes, an activation in module `net` and a gradient."""
    builder = Builder(path)
    for kind, begin, length in (("forward", 0, 40), ("backward", 40, 40), ("optimizer", 80, 20)):
        builder.phase(START_NS + begin * MS, length * MS, kind)
    builder.rows("storage", 0, None, pid=[1000], storage=[0x1000], name=["weight"])
    builder.op(START_NS + 2 * MS, MS, name="aten::mm", module="net")
    for at, address, size, birth in (
        (1, 0x1000, 100, False),
        (2, 0x2000, activation, True),
        (60, 0x2000, activation, False),
        (61, 0x4000, gradient, True),
        (82, 0x4000, gradient, False),
        (90, 0x1000, 100, False),
    ):
        access(builder, at, address, size, birth)
    return open_run(builder.write())


def test_the_peaks_of_two_runs(tmp_path: Path) -> None:
    """The activation grew by 5000 bytes, the gradient shrank by 10: the changes add up."""
    base = allocated(tmp_path / "a", 1000, 60)
    run = allocated(tmp_path / "b", 6000, 50)
    changes = memory_changes(base, run)
    assert changes["change_bytes"].sum() == memory_peak(run)["bytes"].sum() - (1000 + 100)
    by = {
        key: memory_changes_by(changes, key).set_index(key)["change_bytes"].to_dict()
        for key in ("category", "module", "op")
    }
    assert by["category"] == {"activations": 5000, "parameters": 0}
    assert by["module"] == {"net": 5000, "": 0}
    assert by["op"]["aten::mm"] == 5000
    assert peak_note(changes) == (
        "Peak 6.10 kB, 5.00 kB more than the baseline's 1.10 kB. "
        "Activations + 5.00 kB, most of it in net by aten::mm."
    )
    same = memory_changes(run, run)
    assert not same["change_bytes"].any()
    assert peak_note(same) == "Peak 6.10 kB, as much as the baseline's."


def test_runs_without_allocations_have_no_changes(tmp_path: Path, run: Run) -> None:
    builder = Builder(tmp_path / "none")
    builder.op(START_NS, MS)
    bare = open_run(builder.write())
    assert memory_changes(bare, run).empty
    assert memory_changes(run, bare).empty


def test_allocator_events_on_paper(tmp_path: Path) -> None:
    def memory_event(ts: float, address: int, size: int, total: int) -> dict[str, Any]:
        args = {
            "Addr": address,
            "Bytes": size,
            "Total Allocated": total,
            "Total Reserved": 0,
            "Device Type": 1,
            "Device Id": 0,
        }
        return {"ph": "i", "s": "t", "pid": 7, "tid": 7, "ts": ts, "name": "[memory]", "args": args}

    events = [
        slice_("ProfilerStep#1", 0, 1000, cat="user_annotation"),
        slice_("aten::linear", 100, 50, cat="cpu_op"),
        memory_event(120, 0x10, 300, 1300),  # 1000 were allocated before
        slice_("autograd::engine::evaluate_function: AddmmBackward0", 400, 300, cat="cpu_op"),
        memory_event(450, 0x20, 500, 1800),
        memory_event(500, 0x10, -300, 1500),
        memory_event(600, 0x99, -400, 1100),  # of those before
        slice_("Optimizer.step#SGD.step", 800, 200, cat="user_annotation"),
        memory_event(990, 0x20, -500, 600),
    ]
    run = imported(tmp_path / "run", write_trace(tmp_path / "trace.json", events))
    (row,) = memory(run).to_dict("records")
    assert row["device"] == "cuda:0"
    assert bytes_of(row) == {"before": 1000, "activations": 300, "gradients": 500}
    assert row["at_most_bytes"] == row["peak_bytes"] == 1800


def test_the_device_is_known_from_a_later_operator(tmp_path: Path) -> None:
    """A filtered operator allocates the storage, and leaves no row."""
    builder = Builder(tmp_path / "run")
    for at, birth in ((0, True), (5, False)):
        start = START_NS + at * MS
        builder.row(
            "access", 0, "1000-0", start_ns=start, storage=16, bytes=8, write=birth, birth=birth
        )
    builder.op(START_NS + 5 * MS, MS, device="cuda:0")
    storages = storages_of(open_run(builder.write()), 0)
    assert (storages.device.tolist(), storages.op.tolist()) == (["cuda:0"], [""])


def test_a_run_without_allocations(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    builder.op(START_NS, MS)
    run = open_run(builder.write())
    with pytest.raises(NotApplicable, match="record with --level access"):
        storages_of(run, 0)
    assert memory(run).empty
    assert memory_peak(run).empty


def test_parameters_that_were_moved_are_on_the_device() -> None:
    run = open_run(ROOT / "tests" / "fixtures" / "gpu" / "two_models_two_threads.lanes")
    found = recorded_storages(run, 0, (0, run.duration_ns))
    assert found is not None
    of = dict(zip(found.category, found.device, strict=True))
    assert set(found.device) == {"cpu", "cuda:0"}
    assert {of[kind] for kind in ("parameters", "gradients", "activations")} == {"cuda:0"}
    sizes = found.size[(found.category == "parameters") & (found.device == "cuda:0")]
    layers = 4 * (256 * 256 + 256) + 256 * 10 + 10
    assert sizes.sum() == 2 * 4 * layers
