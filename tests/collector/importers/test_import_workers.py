"""Files of several workers become ranks, with steps, phases and groups."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from lanescope.collector.importers.import_limits import ImportRejected
from lanescope.collector.importers.spill import USER_SLICE, Trace, new_slices
from lanescope.collector.importers.worker_slices import by_rank, take_steps
from lanescope.collector.importers.workers import Fields
from lanescope.webapp.cli import main
from lanescope.webapp.plugins.time.breakdown import step_time
from tests.support.trace_files import accounted, imported, kernel, rows, slice_, write_trace

STAGES, STEPS, MICROBATCHES = 3, 2, 2


def pipeline() -> list[dict[str, Any]]:
    """Two microbatches through three stages of 10 us forward and 20 us backward, per step 200 us.

    Stage s begins forward of microbatch m at 10 (s + m), backward at 60 + 20 (2 - s + m).
    """
    events: list[dict[str, Any]] = []
    for step in range(STEPS):
        for stage in range(STAGES):
            place = {"pid": stage + 40, "tid": 0}
            for batch in range(MICROBATCHES):
                args = {"step": step, "microbatch": batch}
                at = 200 * step + 10 * (stage + batch)
                events.append(slice_(f"F{batch}", at, 10, args=args, **place))
                at = 200 * step + 60 + 20 * (STAGES - 1 - stage + batch)
                events.append(slice_(f"B{batch}", at, 20, args=args, **place))
    return events


def test_a_pipeline_is_judged(tmp_path: Path) -> None:
    trace, run_path = write_trace(tmp_path / "trace.json", pipeline()), tmp_path / "run"
    options = ["--rank-from", "pid", "--step-from", "args.step"]
    done = CliRunner().invoke(main, ["import", str(trace), "-o", str(run_path), *options])
    assert done.exit_code == 0, done.output
    run = imported(tmp_path / "again", trace, fields=Fields("pid", "args.step"))
    assert (run.ranks, run.world_size) == ((0, 1, 2), 3)
    assert any("0 is pid 40, 1 is pid 41, 2 is pid 42" in warning for warning in run.warnings)
    assert accounted(run) == {"imported_slices": STAGES * STEPS * MICROBATCHES * 2}
    assert run.counts["op"] == STAGES * STEPS * MICROBATCHES * 2
    times = step_time(run)
    assert times["step"].tolist() == [0, 1] * STAGES
    assert times["forward_ns"].tolist() == [20_000] * 6
    assert times["backward_ns"].tolist() == [40_000] * 6
    for rank in run.ranks:
        steps = run.steps(rank)
        ends = [1000 * (200 * k + 60 + 20 * (STAGES - 1 - rank + 2)) for k in range(STEPS)]
        assert steps.end_ns.tolist() == ends
        kinds = rows(run, "phase", "name", "kind", rank=rank)
        assert kinds.count(("Step#1", "user")) == 1
        assert kinds.count(("F1", "forward")) == STEPS


def test_the_rank_may_be_an_argument_and_calls_are_named(tmp_path: Path) -> None:
    events = [
        slice_("work", 0, 9, args={"worker": "stage 1", "iter": "it 7"}),
        slice_("work", 0, 8, args={"worker": "stage 0", "iter": "it 7"}),
        slice_("send_forward", 8, 2, args={"worker": "stage 0", "iter": "it 7"}),
        {"ph": "C", "name": "heap", "ts": 1, "pid": 7, "tid": 7, "args": {"used": 3}},
    ]
    trace = write_trace(tmp_path / "trace.json", events)
    run = imported(tmp_path / "run", trace, fields=Fields("args.worker", "args.iter"))
    assert rows(run, "op", "rank", "name", "duration_ns", "step") == [
        (0, "work", 8_000, 7),
        (0, "send_forward", 2_000, 7),
        (1, "work", 9_000, 7),
    ]
    assert rows(run, "collective", "rank", "name", "duration_ns") == [(0, "send", 2_000)]
    assert run.counts["value"] == 1
    with pytest.raises(
        ImportRejected, match=r"no slice has args\.rank, found args\.iter, args\.work"
    ):
        imported(tmp_path / "other", trace, fields=Fields("args.rank"))
    with pytest.raises(ImportRejected, match="one file of several workers"):
        imported(tmp_path / "other", trace, trace, fields=Fields("pid"))


@pytest.mark.slow
def test_memory_does_not_grow_with_the_slices_of_workers(tmp_path: Path) -> None:
    trace = Trace.create(tmp_path / "trace.json", tmp_path, "chrome")
    rows = new_slices(1 << 20)
    lanes = {rank: [trace.lanes[rank, 0, False]] for rank in range(4)}
    rows["lane"], rows["kind"], rows["name"] = (
        np.arange(len(rows)) % 4,
        USER_SLICE,
        trace.texts["F1"],
    )
    trace.slices.add(rows)
    tracemalloc.start()
    take_steps(trace, lanes, None)
    found = by_rank(trace, lanes)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Every slice is a phase too.
    assert [len(mine) for mine in found.values()] == [len(rows) // 2] * 4
    assert all((mine["lane"] == rank).all() for rank, mine in found.items())
    assert peak < rows.nbytes


def test_coordinates_of_merged_traces_are_groups(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    for stage in range(2):
        for part in range(2):
            label = f"[TP{part:02}-PP{stage:02}]"
            own = kernel("gemm", 10, 5, 7, 5)
            place = {"pid": f"{label} 24", "tid": 24}
            events += [
                slice_("aten::mm", 0, 9, cat="cpu_op", **place),
                slice_(
                    "cudaLaunchKernel", 1, 3, cat="cuda_runtime", args={"correlation": 5}, **place
                ),
                {**own, "pid": f"{label} 0"},
            ]
    run = imported(tmp_path / "run", write_trace(tmp_path / "merged.json", events))
    assert run.ranks == (0, 1, 2, 3)
    assert {name: group["ranks"] for name, group in run.manifest["groups"].items()} == {
        "PP of TP00": [0, 2],
        "PP of TP01": [1, 3],
        "TP of PP00": [0, 1],
        "TP of PP01": [2, 3],
    }
    assert any("2 is PP01-TP00" in warning for warning in run.warnings)
    for rank in run.ranks:
        streams = [t for t in run.threads if (t.rank, t.kind) == (rank, "stream")]
        assert [stream.name for stream in streams] == ["stream 7 (cuda:0)"]
        assert rows(run, "op", "launch_ns", rank=rank, thread=streams[0].thread) == [(1_000,)]
