"""Imported traces keep everything: arguments, arrows and the events of other versions."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lanescope.webapp.bundles.redaction import REDACTED, Redactor
from lanescope.webapp.exporters.perfetto import write_trace as export
from lanescope.webapp.plugins.collectives.devices import temporal_breakdown
from lanescope.webapp.runs.run import Run
from lanescope.webapp.timeline.span_details import slice_facts
from lanescope.webapp.timeline.timeline import Timeline
from tests.support.trace_files import DATA, accounted, imported, kernel, rows, slice_, write_trace

REAL = sorted(DATA.glob("*.json.gz"))
DESCRIBED = {"grid": [4, 106, 1], "block": [128, 1, 1], "registers per thread": 30}


def args_of(run: Run, table: str, name: str | None = None) -> list[Any]:
    """Arguments of the rows of a table, or of those of a name, in order."""
    columns = ["args"] if name is None else ["args", "name"]
    found = run.events(table, columns=columns).to_pylist()
    return [row["args"] and json.loads(row["args"]) for row in found if row.get("name") == name]


def exported(run: Run, path: Path) -> list[dict[str, Any]]:
    with path.open("w") as sink:
        export(run, sink)
    return list(json.loads(path.read_text())["traceEvents"])


def test_arguments_are_kept_shown_and_exported(tmp_path: Path) -> None:
    one = kernel("gemm", 20, 5, 7)
    one["args"] |= DESCRIBED
    events = [
        one,
        slice_("call", 0, 9, cat="FEE", args={"func_args": {"n": "'ü'"}, "return_value": "None"}),
        {"ph": "B", "name": "part", "ts": 10, "pid": 7, "tid": 7, "args": {"detail": "a"}},
        {"ph": "E", "ts": 12, "pid": 7, "tid": 7, "args": {"status": 3}},
        {"ph": "i", "name": "here", "ts": 13, "pid": 7, "tid": 7, "args": {"why": "x"}},
        slice_("long", 14, 1, args={"text": "x" * 70_000}),
    ]
    trace = write_trace(tmp_path / "trace.json", events)
    trace.write_text(json.dumps(json.loads(trace.read_text()), indent=2, ensure_ascii=False))
    run = imported(tmp_path / "run", trace)
    assert args_of(run, "op", "gemm") == [one["args"]]
    assert args_of(run, "op", "call") == [events[1]["args"]]
    assert args_of(run, "op", "part") == [{"detail": "a", "status": 3}]
    assert args_of(run, "phase", "here") == [{"why": "x"}]
    assert args_of(run, "op", "long") == [None]
    assert run.coverage["unread_arguments_longer_than_64_KB"] == 1
    assert any("1 arguments longer than 64 KB" in warning for warning in run.warnings)

    timeline = Timeline.open(run)
    lane = next(o.id for o in timeline.index.lanes if o.label.startswith("stream"))
    facts = slice_facts(timeline, lane, 0)
    assert ("grid", "[4, 106, 1]") in facts["args"]

    again = {e["name"]: e.get("args", {}) for e in exported(run, tmp_path / "out.json")}
    assert DESCRIBED.items() <= again["gemm"].items()
    assert again["call"]["func_args"] == {"n": "'ü'"}
    assert again["here"]["why"] == "x"

    bare = Redactor().rows("op", run.events("op", columns=["name", "args"])).to_pylist()
    by_name = {row["name"]: row["args"] and json.loads(row["args"]) for row in bare}
    assert by_name["gemm"] == one["args"]
    assert by_name["call"] == {"func_args": {"n": REDACTED}, "return_value": REDACTED}


def test_arrows_of_both_versions_are_kept_on_export(tmp_path: Path) -> None:
    place = {"pid": 7, "cat": "net", "name": "packet"}
    events = [
        slice_("a", 0, 5),
        slice_("b", 10, 5, tid=8),
        {"ph": "s", "id": 4, "ts": 1, "tid": 7, **place},
        {"ph": "f", "id": 4, "ts": 11, "tid": 8, "bp": "e", **place, "args": {"size": 3}},
        slice_("out", 20, 2, bind_id="0x9", flow_out=True),
        slice_("through", 25, 2, tid=8, bind_id="0x9", flow_in=True, flow_out=True),
        {**slice_("in", 30, 0, bind_id="0x9", flow_in=True), "ph": "B"},
    ]
    run = imported(tmp_path / "run", write_trace(tmp_path / "trace.json", events))
    columns = ("start_ns", "thread", "kind", "object")
    found = rows(run, "sync", *columns)
    at = sorted((start, kind) for start, _, kind, _ in found)
    assert at == [
        (1_000, "future_set"),
        (11_000, "future_get"),
        (20_000, "future_set"),
        (25_000, "future_get"),
        (25_000, "future_set"),
        (30_000, "future_get"),
    ]
    assert len({number for _, _, _, number in found}) == 2
    arrows = [e for e in exported(run, tmp_path / "out.json") if e["ph"] in "sf"]
    assert len(arrows) == 6
    assert {("packet", "net", 4)} <= {(e["name"], e["cat"], e["id"]) for e in arrows}
    assert {"size": 3} in [e["args"] for e in arrows]
    again = imported(tmp_path / "again", tmp_path / "out.json")
    assert sorted(row[0] for row in rows(again, "sync", *columns)) == [start for start, _ in at]


def test_counters_written_as_texts_are_numbers(tmp_path: Path) -> None:
    counter = {"ph": "C", "name": "heap", "pid": 7, "tid": 7}
    events = [
        slice_("a", 0, 1),
        {**counter, "ts": 1, "args": {"used": "12.5", "free": 4, "unit": "MB"}},
        {**counter, "ts": 2, "args": {"used": "nan", "unit": "MB"}},
    ]
    run = imported(tmp_path / "run", write_trace(tmp_path / "trace.json", events))
    assert rows(run, "value", "name", "value") == [("heap used", 12.5), ("heap free", 4.0)]
    assert args_of(run, "value") == [{"used": "12.5", "free": 4, "unit": "MB"}, None]
    assert accounted(run) == {"imported_slices": 1, "imported_counters": 1, "dropped_no_value": 1}


def test_begins_and_ends_may_be_in_any_order(tmp_path: Path) -> None:
    place = {"pid": 7, "tid": 7}
    events = [
        {"ph": "E", "ts": 9, **place},
        {"ph": "E", "ts": 5, **place},
        {"ph": "B", "name": "outer", "ts": 1, **place},
        {"ph": "B", "name": "inner", "ts": 3, **place},
        # Slices that overlap, with ends that name them.
        {"ph": "B", "name": "first", "ts": 20, **place},
        {"ph": "B", "name": "second", "ts": 22, **place},
        {"ph": "E", "name": "first", "ts": 24, **place},
        {"ph": "E", "name": "second", "ts": 28, **place},
        {"ph": "e", "name": "request", "cat": "net", "id": 1, "ts": 33, **place},
        {"ph": "b", "name": "request", "cat": "net", "id": 1, "ts": 31, **place},
    ]
    run = imported(tmp_path / "run", write_trace(tmp_path / "trace.json", events))
    assert sorted(rows(run, "op", "start_ns", "duration_ns", "name")) == [
        (0, 8_000, "outer"),
        (2_000, 2_000, "inner"),
        (19_000, 4_000, "first"),
        (21_000, 6_000, "second"),
        (30_000, 2_000, "request"),
    ]
    assert accounted(run) == {"imported_slices": 5, "imported_ends": 5}


def test_categories_of_2021_and_of_mtia(tmp_path: Path) -> None:
    launch = {"correlation": 5}
    on_stream = {"device": 0, "stream": 7, **launch}
    events = [
        slice_("ProfilerStep#3", 0, 40, cat="Operator", pid=24, tid="24"),
        slice_("aten::mm", 1, 20, cat="Operator", pid=24, tid="24"),
        slice_("cudaLaunchKernel", 2, 3, cat="Runtime", pid=24, tid="24", args=launch),
        slice_("gemm", 10, 5, cat="Kernel", pid=0, tid="stream 7", args=on_stream),
        slice_("Memcpy HtoD", 16, 2, cat="Memcpy", pid=0, tid="stream 7", args=on_stream),
    ]
    run = imported(tmp_path / "run", write_trace(tmp_path / "trace.json", events))
    assert rows(run, "op", "name", "scope", "step", "launch_ns") == [
        ("aten::mm", "function", 3, None),
        ("cudaLaunchKernel", "function", 3, None),
        ("gemm", "kernel", 3, 2_000),
        ("Memcpy HtoD", "kernel", 3, 2_000),
    ]
    assert [(t.name, t.kind) for t in run.threads][1] == ("stream 7 (cuda:0)", "stream")
    events = [
        slice_("mtiaLaunch", 2, 3, cat="mtia_runtime", args=launch),
        slice_("matmul", 10, 5, cat="mtia_ccp_events", pid=0, tid=3, args={"device": 0, **launch}),
    ]
    run = imported(tmp_path / "mtia", write_trace(tmp_path / "mtia.json", events))
    assert rows(run, "op", "name", "scope", "device", "launch_ns")[1] == (
        "matmul",
        "kernel",
        "mtia:0",
        0,
    )


@pytest.mark.parametrize(
    "name",
    [
        "void c10d::symmetric_memory::(anonymous namespace)::"
        "multimem_one_shot_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)",
        "two_shot_all_reduce_kernel_inplace<float, 16, 8>",
        "ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_bf16",
        "ncclAllReduceRingLLKernel_sum_f32(ncclColl)",
    ],
)
def test_kernels_that_communicate(name: str, tmp_path: Path) -> None:
    events = [slice_("aten::mm", 0, 9, cat="cpu_op"), kernel(name, 1, 4, 7), kernel("g", 9, 1, 7)]
    run = imported(tmp_path / "run", write_trace(tmp_path / "trace.json", events))
    (row,) = temporal_breakdown(run).to_dict("records")
    assert (row["communication_ns"], row["compute_ns"]) == (4_000, 1_000)


def test_names_are_kept_in_full(tmp_path: Path) -> None:
    name = "cutlass::" + "GemmUniversal<" * 700
    run = imported(tmp_path / "run", write_trace(tmp_path / "t.json", [slice_(name, 0, 1)]))
    assert rows(run, "op", "name") == [(name,)]


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name)
def test_all_events_read_are_written(path: Path, tmp_path: Path) -> None:
    document = json.loads(gzip.decompress(path.read_bytes()))
    events = document["traceEvents"]
    run = imported(tmp_path / "run", path)
    found = accounted(run)
    assert run.coverage["read_events"] == len(events)
    slices = sum(event["ph"] == "X" for event in events)
    marks = sum(event["ph"] == "i" for event in events)
    assert slices + marks == run.counts["op"] + run.counts["phase"]
    arrows = Counter(event["cat"] for event in events if event["ph"] in "stf")
    assert found.get("imported_repeated_arrows", 0) == arrows["ac2g"] + arrows["fwdbwd"]
    assert run.counts["sync"] == arrows.total() - arrows["ac2g"] - arrows["fwdbwd"]
    # Every argument of every event, as it was.
    wanted = Counter(_text(e["args"]) for e in events if e["ph"] in "Xi" and e.get("args"))
    kept = [*args_of(run, "op"), *args_of(run, "phase")]
    assert Counter(_text(args) for args in kept if args) == wanted


@pytest.mark.parametrize("path", [p for p in REAL if "_ns_" in p.name], ids=lambda p: p.name)
@pytest.mark.slow
def test_arrows_of_torch_are_in_columns_and_come_back(path: Path, tmp_path: Path) -> None:
    document = json.loads(gzip.decompress(path.read_bytes()), parse_float=str)
    ends: dict[Any, dict[str, Any]] = {}
    for event in document["traceEvents"]:
        if event.get("cat") == "fwdbwd":
            ends.setdefault(event["id"], {})[event["ph"]] = event["ts"]
    run = imported(tmp_path / "run", path)
    again: dict[Any, dict[str, int]] = {}
    for event in exported(run, tmp_path / "out.json"):
        if event.get("cat") == "fwdbwd":
            at = round(float(event["ts"]) * 1000)
            again.setdefault(event["id"], {})[event["ph"]] = at
    origin = int(run.origin_ns)
    wanted = {(_ns(one["s"]) - origin, _ns(one["f"]) - origin) for one in ends.values()}
    assert wanted <= {(one["s"], one["f"]) for one in again.values()}


def _ns(text: Any) -> int:
    whole, _, part = str(text).partition(".")
    return int(whole) * 1000 + int(part.ljust(3, "0")[:3] or 0)


def _text(args: Any) -> str:
    return json.dumps(args, sort_keys=True)
