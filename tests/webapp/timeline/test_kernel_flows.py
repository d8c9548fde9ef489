"""Streams of devices on the timeline: their lanes, colours, and the ties to what launched."""

from __future__ import annotations

import pytest

from lanescope.webapp.plugins.collectives.communication import communication
from lanescope.webapp.runs.run import open_run
from lanescope.webapp.timeline import span_details
from lanescope.webapp.timeline.lanes import LaneSlices, lanes_of
from lanescope.webapp.timeline.spans import SpanNames
from lanescope.webapp.timeline.styles import STYLES
from lanescope.webapp.timeline.timeline import Timeline
from tests.support.synthetic import START_NS, Builder

MAIN, AUTOGRAD, STREAM = "1000-0", "1000-1", "1000-2"


@pytest.fixture(scope="module")
def timeline(tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    """A forward and a backward operator, each with what it launched on one stream.

    main      aten::linear [0, 100) holds aten::addmm [10, 60)
    autograd  AddmmBackward0 [200, 300), recorded as of phase backward
    stream    a copy launched at 5, a kernel at 20, one at 70, one at 210, one of unknown origin
    """
    folder = tmp_path_factory.mktemp("launches")
    builder = Builder(folder / "run")
    builder.thread()
    builder.thread(ordinal=1, name="pt_autograd_0", kind="native")
    builder.thread(ordinal=2, name="stream 7 (cuda:0)", kind="stream", native_id=0)
    builder.phase(START_NS, 150, "forward")
    builder.phase(START_NS + 150, 300, "backward")
    builder.op(START_NS, 100, "aten::linear")
    builder.op(START_NS + 10, 50, "aten::addmm", depth=1)
    builder.op(
        START_NS + 200, 100, "AddmmBackward0", thread=AUTOGRAD, scope="backward", phase="backward"
    )
    for start, duration, name, launch, thread in (
        (30, 10, "Memcpy HtoD (Pageable -> Device)", START_NS + 5, MAIN),
        (40, 100, "sgemm", START_NS + 20, MAIN),
        (140, 20, "vectorized_add", START_NS + 70, MAIN),
        (220, 90, "sgemm", START_NS + 210, AUTOGRAD),
        (310, 40, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", START_NS + 220, AUTOGRAD),
        (360, 5, "unknown", None, ""),
    ):
        builder.op(
            START_NS + start,
            duration,
            name,
            thread=STREAM,
            scope="kernel",
            device="cuda:0",
            launch_ns=launch,
            launch_thread=thread,
        )
    return Timeline.open(open_run(builder.write()), cache=folder / "cache")


def facts(timeline: Timeline, key: str, name: str) -> span_details.Json:
    """The facts of the first slice of that name on a lane."""
    lane = next(lane for lane in timeline.index.lanes if lane.key == key)
    base = timeline.index.row_begin[timeline.index.lane_rows[lane.id][0]]
    end = timeline.index.row_end[timeline.index.lane_rows[lane.id][-1]]
    names = [timeline.index.names[int(k)] for k in timeline.index.slices.name[base:end]]
    return span_details.slice_facts(timeline, lane.id, names.index(name))


def test_a_stream_is_a_lane_coloured_like_what_launched(timeline: Timeline) -> None:
    names = SpanNames()
    lanes = {lane.key: (lane, content) for lane, content in lanes_of(timeline.run, names)}
    lane, slices = lanes[f"0/{STREAM}"]
    assert lane.label == "stream 7 (cuda:0)"
    assert lane.title == "train.py 1000 on node-0, kernels and copies on a stream of its device"
    assert isinstance(slices, LaneSlices)
    styles = [STYLES[style] for style in slices.style]
    assert styles == ["data", "forward", "forward", "backward", "collective", "other"]


def test_an_operator_shows_what_calls_within_it_launched(timeline: Timeline) -> None:
    answer = facts(timeline, f"0/{MAIN}", "aten::linear")["launches"]
    assert [(one["name"], one["launch_ns"], one["start_ns"]) for one in answer] == [
        ("Memcpy HtoD (Pageable -> Device)", 5, 30),
        ("sgemm", 20, 40),
        ("vectorized_add", 70, 140),
    ]
    assert {(one["label"], one["outgoing"]) for one in answer} == {("stream 7 (cuda:0)", True)}
    inner = facts(timeline, f"0/{MAIN}", "aten::addmm")["launches"]
    assert [one["start_ns"] for one in inner] == [40]
    node = facts(timeline, f"0/{AUTOGRAD}", "AddmmBackward0")["launches"]
    assert [one["start_ns"] for one in node] == [220, 310]


def test_a_kernel_shows_the_innermost_operator_that_launched_it(timeline: Timeline) -> None:
    kernel = facts(timeline, f"0/{STREAM}", "sgemm")
    (by,) = kernel["launches"]
    assert (by["name"], by["outgoing"], by["launch_ns"]) == ("aten::addmm", False, 20)
    assert (kernel["launch_ns"], kernel["launch_thread"]) == ("20", MAIN)
    assert facts(timeline, f"0/{STREAM}", "vectorized_add")["launches"][0]["name"] == "aten::linear"
    assert facts(timeline, f"0/{STREAM}", "unknown")["launches"] == []


def test_kernels_compute_and_those_of_nccl_do_not(timeline: Timeline) -> None:
    (row,) = communication(timeline.run).to_dict("records")
    # Kernels [40, 160), [220, 310), [360, 365); of NCCL [310, 350). Copies and the host count not.
    assert row["computation_ns"] == 120 + 90 + 5
    assert row["communication_ns"] == 40
