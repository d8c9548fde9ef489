"""Traces of the Chrome format: every event accounted for, every instant exact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

from lanescope.collector.importers.events import TraceEvent, decode_events, decode_one
from lanescope.collector.importers.import_limits import ImportRejected
from lanescope.collector.importers.json_stream import Document, Member
from lanescope.webapp.plugins.collectives.communication import comm_compute_overlap
from lanescope.webapp.plugins.collectives.devices import temporal_breakdown
from lanescope.webapp.timeline.lanes import LaneSlices, lanes_of
from lanescope.webapp.timeline.spans import SpanNames
from tests.support.trace_files import DATA, accounted, imported, kernel, rows, slice_, write_trace

REAL = sorted(DATA.glob("*.json.gz"))


def test_each_kind_of_event_has_its_place(tmp_path: Path) -> None:
    events: list[Any] = [
        "no event",
        {"ph": "M", "name": "thread_name", "pid": 7, "tid": 8, "args": {"name": "worker"}},
        slice_("outer", 10, 20),
        slice_("inner", 12.5, 2.25),
        {"ph": "B", "name": "begun", "ts": 40, "pid": 7, "tid": 8},
        {"ph": "B", "name": "within", "ts": 41, "pid": 7, "tid": 8},
        {"ph": "E", "ts": 42, "pid": 7, "tid": 8},
        {"ph": "E", "ts": 45, "pid": 7, "tid": 8},
        {"ph": "E", "ts": 46, "pid": 7, "tid": 8},
        {"ph": "B", "name": "open", "ts": 50, "pid": 7, "tid": 8},
        {"ph": "i", "name": "here", "ts": 15, "pid": 7, "tid": 7},
        {"ph": "C", "name": "heap", "ts": 16, "pid": 7, "tid": 7, "args": {"used": 3, "free": 4}},
        {"ph": "s", "name": "go", "cat": "flow", "id": 1, "ts": 13, "pid": 7, "tid": 7},
        {"ph": "f", "name": "go", "cat": "flow", "id": 1, "ts": 41.5, "pid": 7, "tid": 8},
        {"ph": "b", "name": "request", "cat": "net", "id": "0x1", "ts": 17, "pid": 7, "tid": 7},
        {"ph": "b", "name": "request", "cat": "net", "id": "0x2", "ts": 18, "pid": 7, "tid": 7},
        {"ph": "e", "name": "request", "cat": "net", "id": "0x1", "ts": 19, "pid": 7, "tid": 7},
        {"ph": "e", "name": "request", "cat": "net", "id": "0x2", "ts": 21, "pid": 7, "tid": 7},
        {"ph": "X", "name": "no time", "pid": 7, "tid": 7, "dur": 1},
        {"ph": "N", "name": "object", "ts": 1, "pid": 7, "tid": 7},
    ]
    run = imported(tmp_path / "run", write_trace(tmp_path / "trace.json", events))
    assert accounted(run) == {
        "imported_metadata": 1,
        "imported_slices": 7,
        "imported_ends": 4,
        "imported_marks": 1,
        "imported_counters": 1,
        "imported_arrows": 2,
        "dropped_unmatched_ends": 1,
        "dropped_no_time": 1,
        "dropped_malformed": 1,
        "dropped_unsupported": 1,
    }
    assert rows(run, "op", "name", "start_ns", "duration_ns", "self_ns", "depth") == [
        ("outer", 0, 20_000, 17_750, 0),
        ("inner", 2_500, 2_250, 2_250, 1),
        ("begun", 30_000, 5_000, 4_000, 0),
        ("within", 31_000, 1_000, 1_000, 1),
        ("open", 40_000, None, None, 0),
        ("request", 7_000, 2_000, 2_000, 0),
        ("request", 8_000, 3_000, 3_000, 0),
    ]
    assert [(t.name, t.kind) for t in run.threads] == [
        ("thread 7", "main"),
        ("worker", "native"),
        ("net (asynchronous)", "native"),
    ]
    assert rows(run, "phase", "name", "kind", "start_ns") == [("here", "mark", 5_000)]
    assert rows(run, "value", "name", "value") == [("heap used", 3.0), ("heap free", 4.0)]
    kinds = rows(run, "sync", "kind", "object")
    assert [kind for kind, _ in kinds] == ["future_set", "future_get"]
    assert kinds[0][1] == kinds[1][1] < 0


def test_slices_that_overlap_without_nesting_all_stay(tmp_path: Path) -> None:
    events = [slice_("a", 0, 10), slice_("b", 5, 10), slice_("c", 6, 2), slice_("d", 12, 1)]
    run = imported(tmp_path / "run", write_trace(tmp_path / "trace.json", events))
    assert rows(run, "op", "name", "depth") == [("a", 0), ("b", 0), ("c", 2), ("d", 1)]
    drawn = [one for _, one in lanes_of(run, SpanNames()) if isinstance(one, LaneSlices)]
    assert [len(one.start) for one in drawn] == [4]
    for row in range(len(drawn[0].row_table)):
        part = slice(drawn[0].row_at[row], drawn[0].row_at[row + 1])
        assert (drawn[0].start[part][1:] >= drawn[0].end[part][:-1]).all()


@pytest.mark.parametrize("size", [1, 3, 17, 200, 5000])
def test_a_document_is_the_same_in_blocks_of_any_size(size: int) -> None:
    events = [
        slice_('quote " and }, {"ph" in a name', i, 1, args={"list": [{"a": [i]}, {"b": "]"}]})
        for i in range(30)
    ]
    text = json.dumps({"first": {"a": [1, "}"]}, "traceEvents": events, "last": "ö\\"}).encode()
    blocks = [text[i : i + size] for i in range(0, len(text), size)]
    document = Document(Path("trace"), blocks, decode_events)
    members, found = [], []
    for part in document.parts():
        if isinstance(part, Member):
            members.append((part.name, json.loads(part.value or b"")))
        else:
            found += part.decoded or []
    assert members == [("first", {"a": [1, "}"]}), ("last", "ö\\")]
    assert [(e.name, bytes(e.ts)) for e in found] == [
        (e["name"], str(e["ts"]).encode()) for e in events
    ]
    assert not document.truncated


def test_the_list_form_and_what_stands_before_a_cut_are_read(tmp_path: Path) -> None:
    text = json.dumps([slice_("a", 1, 1), slice_("b", 3, 1), slice_("c", 5, 1)])
    path = tmp_path / "trace.json"
    path.write_text(text[:-30])
    run = imported(tmp_path / "run", path)
    assert rows(run, "op", "name") == [("a",), ("b",)]
    assert not run.complete
    assert any("trace.json ends early" in warning for warning in run.warnings)


def test_an_event_with_what_json_has_not_is_read_alone(tmp_path: Path) -> None:
    events = [slice_("a", 1712195495519689.0, 1), slice_("b", 3, 1)]
    text = json.dumps({"traceEvents": events}).replace(
        '"name": "b"', '"name": "b", "args": {"x": NaN, "y": [Infinity]}, "dur": 2.5'
    )
    path = tmp_path / "trace.json"
    path.write_bytes(text.replace('"a"', '"a\xff"').encode("latin-1"))
    run = imported(tmp_path / "run", path)
    assert sorted(rows(run, "op", "name")) == [("a�",), ("b",)]
    assert accounted(run) == {"imported_slices": 2}
    one = decode_one(b'{"ph": "X", "ts": 1712195495519689.047, "dur": NaN, "name": 5}')
    assert one == TraceEvent(ph="X", name=5, ts=one.ts, dur=one.dur) if one else False


def test_kernels_are_on_streams_with_the_thread_that_launched_them(tmp_path: Path) -> None:
    call = {"correlation": 5}
    events = [
        slice_(
            "aten::mm",
            0,
            10,
            cat="cpu_op",
            args={
                "Sequence number": 4,
                "Input Dims": [[2, 3], [3, 4], []],
                "Input type": ["float", "c10::BFloat16", "Scalar"],
                "Fwd thread id": 0,
            },
        ),
        slice_("cudaLaunchKernel", 2, 3, cat="cuda_runtime", args=call),
        kernel("gemm", 20, 5, 7, 5),
        slice_(
            "MmBackward0",
            40,
            4,
            cat="cpu_op",
            tid=9,
            args={
                "Sequence number": 4,
                "Fwd thread id": 1,
            },
        ),
        slice_("ProfilerStep#3", 0, 30, cat="user_annotation"),
        slice_("Optimizer.step#SGD.step", 25, 4, cat="user_annotation"),
        slice_("mine", 26, 1, cat="user_annotation"),
        {"ph": "f", "cat": "ac2g", "id": 5, "ts": 20, "pid": 0, "tid": 7, "name": "ac2g"},
    ]
    run = imported(tmp_path / "run", write_trace(tmp_path / "trace.json.gz", events))
    assert [(t.name, t.kind) for t in run.threads] == [
        ("thread 7", "main"),
        ("thread 9", "native"),
        ("stream 7 (cuda:0)", "stream"),
    ]
    columns = ("name", "scope", "device", "launch_ns", "launch_thread")
    assert rows(run, "op", *columns) == [
        ("aten::mm", "function", "cpu", None, ""),
        ("cudaLaunchKernel", "function", "cpu", None, ""),
        ("mine", "user", "cpu", None, ""),
        ("MmBackward0", "backward", "cpu", None, ""),
        ("gemm", "kernel", "cuda:0", 2_000, "7-0"),
    ]
    assert rows(run, "op", "sequence", "shapes", "dtypes", "step", "phase", thread="7-0")[0] == (
        4,
        "[2, 3] [3, 4]",
        "float32 bfloat16",
        3,
        "",
    )
    assert rows(run, "op", "phase", thread="7-0")[2] == ("SGD.step",)
    assert rows(run, "phase", "name", "kind", "step", "depth") == [
        ("ProfilerStep#3", "user", 3, 0),
        ("SGD.step", "optimizer", 3, 1),
    ]
    assert run.steps(0).index.tolist() == [3]


def test_breakdown_of_a_device_can_be_worked_out_on_paper(tmp_path: Path) -> None:
    # Stream 1:  ####......####     0-4 and 10-14 compute
    # Stream 2:  ..nnnnnn...cc..    2-8 communication, 11-13 copy
    events = [
        kernel("gemm", 0, 4, 1),
        kernel("gemm", 10, 4, 1),
        kernel("ncclDevKernel_AllReduce", 2, 6, 2),
        kernel("Memcpy DtoH", 11, 2, 2),
        slice_("aten::mm", 0, 20, cat="cpu_op"),
    ]
    run = imported(tmp_path / "run", write_trace(tmp_path / "trace.json", events))
    (row,) = temporal_breakdown(run).to_dict("records")
    assert row == {
        "rank": 0,
        "kernel_time_ns": 14_000,
        "idle_ns": 2_000,
        "compute_ns": 8_000,
        "non_compute_ns": 4_000,
        "communication_ns": 6_000,
        "overlap_ns": 2_000,
        "overlap": 1 / 3,
    }
    assert comm_compute_overlap(run, 0) == 1 / 3  # the operator on the host does not count


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name)
def test_real_traces_are_accounted_for(path: Path, tmp_path: Path) -> None:
    run = imported(tmp_path / "run", path)
    found = accounted(run)
    assert not run.dropped
    kept = sum(run.counts[table] for table in ("op", "phase"))
    assert kept == found["imported_slices"] + found.get("imported_marks", 0)
    for thread in run.threads:
        ops = run.events("op", thread.rank, thread.thread, ["start_ns", "duration_ns", "depth"])
        start, depth = ops["start_ns"].to_numpy(), ops["depth"].to_numpy()
        end = pc.add(ops["start_ns"], ops["duration_ns"]).to_numpy()
        for level in np.unique(depth):
            mine = depth == level
            if thread.kind != "stream" and "asynchronous" not in thread.name:
                overlaps = int((start[mine][1:] < end[mine][:-1]).sum())
                assert overlaps == 0, (thread.name, level)


def test_other_files_are_rejected_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    for content, words in (
        (b"", "is empty"),
        (b"hello", "expected JSON"),
        (b'{"a": 1}', "holds no traceEvents"),
        (b'{"traceEvents": []}', "holds no events"),
        (b"{1: 2}", "is not JSON"),
        (b"\x1f\x8bnonsense", "not the gzip file"),
    ):
        path.write_bytes(content)
        with pytest.raises(ImportRejected, match=words) as refusal:
            imported(tmp_path / "run", path)
        assert "\n" not in str(refusal.value)
        assert not (tmp_path / "run").exists()
    assert [one.name for one in tmp_path.iterdir()] == ["trace.json"]


def test_numbers_beyond_a_column_become_null(tmp_path: Path) -> None:
    args = {
        "Collective name": "allreduce",
        "Process Group Name": "0",
        "Group size": 1 << 70,
        "In msg nelems": 1 << 70,
        "dtype": "Float",
    }
    events = [
        slice_("record_param_comms", 1, 5, cat="cpu_op", args=args),
        slice_("a text that is a number", 20, "3.5"),
        slice_("a text without length", 20, "long"),
        slice_("longer than can be", 20, 10**30),
        slice_("before 1970", -(2**40), 1),
    ]
    run = imported(tmp_path / "run", write_trace(tmp_path / "trace.json", events))
    assert accounted(run) == {"imported_slices": 3, "dropped_no_time": 2}
    assert rows(run, "collective", "name", "group_size", "bytes") == [("all_reduce", None, 0)]
    assert rows(run, "op", "name", "duration_ns")[2] == ("a text that is a number", 3_500)


def test_long_lists_of_inputs_keep_their_shapes_apart(tmp_path: Path) -> None:
    def args(first: int) -> dict[str, Any]:  # of more than a thousand bytes
        return {"Input Dims": [[first], *[[7]] * 200], "Input type": ["float"] * 201}

    firsts = [1, 2, 1, 3]
    events = [
        slice_("aten::cat", 10 * place, 5, cat="cpu_op", args=args(first))
        for place, first in enumerate(firsts)
    ]
    run = imported(tmp_path / "run", write_trace(tmp_path / "trace.json", events))
    shown = [f"[{first}] {' '.join(['[7]'] * 200)}"[:500] for first in firsts]
    assert [shapes for (shapes,) in rows(run, "op", "shapes")] == shown
