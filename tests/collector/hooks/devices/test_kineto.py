"""Kineto's events: their category, their instants on the recorder's clock, their threads."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lanescope.collector.format.names import ON_DEVICE
from lanescope.collector.format.record_kinds import ThreadKind
from lanescope.collector.hooks.devices.kineto import (
    Reading,
    ThreadOrdinals,
    WallToLocal,
    activities,
)
from lanescope.collector.journal.writer import ThreadJournal
from tests.support import ROOT

TRACES = ROOT.parent / "shared" / "data"
needs_traces = pytest.mark.skipif(
    not (TRACES / "kineto_ns_resolution_rank-0.json.gz").exists(), reason="traces are not here"
)


def reading(local: int, offset: int, half_width: int = 10) -> Reading:
    return Reading(local, offset, half_width)


def test_the_offset_moves_in_a_straight_line_between_the_readings() -> None:
    to_local = WallToLocal(reading(1_000_000, 10**18), reading(2_000_000, 10**18 + 100, 30))
    assert to_local(10**18 + 1_000_000) == 1_000_000
    assert to_local(10**18 + 1_500_050) == 1_500_000
    assert to_local(10**18 + 2_000_100) == 2_000_000
    assert to_local(10**18 + 900_000) == 900_000  # before the first: its offset
    assert to_local.error_ns == 130


def test_threads_are_found_by_id_and_by_the_instant(tmp_path: Path) -> None:
    for ordinal, native_id, created in ((1, 70, 100), (2, 70, 200), (3, 71, 50)):
        ThreadJournal(
            tmp_path,
            pid=7,
            ordinal=ordinal,
            native_id=native_id,
            kind=int(ThreadKind.native),
            created_ns=created,
        ).close()
    threads = ThreadOrdinals(tmp_path)
    found = [threads.at(*one) for one in ((70, 150), (70, 250), (71, 250), (70, 99), (72, 250))]
    assert found == [1, 2, 3, None, None]


@dataclass
class Traced:
    """An event of a trace as Kineto gives it, without its category."""

    event: dict[str, Any]

    def name(self) -> str:
        return str(self.event["name"])

    def start_ns(self) -> int:
        return _ns(self.event["ts"])

    def end_ns(self) -> int:
        return _ns(self.event["ts"]) + _ns(self.event["dur"])

    def correlation_id(self) -> int:
        return int(self.event["args"].get("correlation", 0))

    def device_type(self) -> Any:
        on_device = self.event["cat"] in (*ON_DEVICE, "gpu_user_annotation")
        return SimpleNamespace(name="CUDA" if on_device else "CPU")

    def is_user_annotation(self) -> bool:
        return str(self.event["cat"]).endswith("user_annotation")

    def device_index(self) -> int:
        return int(self.event["args"]["device"])

    def device_resource_id(self) -> int:
        return int(self.event["tid"])


class Categorised(Traced):
    """The same with its category."""

    def activity_type(self) -> str:
        return str(self.event["cat"])


def _ns(text: str) -> int:
    micros, _, rest = text.partition(".")
    return int(micros) * 1000 + int(rest.ljust(3, "0")[:3])


@cache
def trace(name: str) -> list[Categorised]:
    with gzip.open(TRACES / f"{name}.json.gz", "rt") as file:
        events = json.load(file, parse_float=str, parse_int=str)["traceEvents"]
    return [Categorised(event) for event in events if event.get("ph") == "X" and "cat" in event]


@needs_traces
@pytest.mark.parametrize("kind", [Categorised, Traced])
@pytest.mark.parametrize(
    ("name", "count", "streams"),
    [
        ("kineto_ns_resolution_rank-0", 6095, {7}),
        ("kineto_sampled_rank-0", 1204, {7, 23, 25, 84, 203}),
    ],
)
def test_kernels_of_real_traces_begin_after_the_call_that_launched_them(
    name: str, count: int, streams: set[int], kind: type[Traced]
) -> None:
    origin = reading(0, 1_000)
    events = [kind(one.event) for one in trace(name)]
    found = activities(events, WallToLocal(origin, origin), None)
    assert len(found) == count
    assert {one.stream for one in found} == streams
    assert {one.device for one in found} == {"cuda:0"}
    assert all(one.launch_ns and one.launch_ns <= one.start_ns <= one.end_ns for one in found)
    assert [one.start_ns for one in found] == sorted(one.start_ns for one in found)


@needs_traces
def test_launches_of_real_traces_are_within_the_operator_that_kineto_links() -> None:
    """The tie by instant and thread is the one that Kineto makes by number."""
    events = trace("kineto_ns_resolution_rank-0")
    linked = {
        one.event["args"]["External id"]: one
        for one in events
        if one.activity_type() == "cpu_op" and "External id" in one.event["args"]
    }
    calls = {one.correlation_id(): one for one in events if one.activity_type() == "cuda_runtime"}
    checked = 0
    for one in events:
        if one.activity_type() != "kernel" or one.event["args"]["External id"] not in linked:
            continue
        op, call = linked[one.event["args"]["External id"]], calls[one.correlation_id()]
        assert op.device_resource_id() == call.device_resource_id()
        assert op.start_ns() <= call.start_ns() <= op.end_ns()
        checked += 1
    assert checked > 1000
