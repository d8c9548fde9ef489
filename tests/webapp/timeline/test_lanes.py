"""Which lanes a run gets, and the rows, extents and colours of their slices."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lanescope.collector.format import schema
from lanescope.collector.format.names import SHARED_ADDRESS, TRAINING_MODE
from lanescope.webapp.analysis.parameter_history import gradient_norms as analysed_norms
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.run import Run, open_run
from lanescope.webapp.timeline import spans
from lanescope.webapp.timeline.lanes import Lane, LaneSamples, gradient_norm_samples, lanes_of
from lanescope.webapp.timeline.span_details import run_facts
from lanescope.webapp.timeline.spans import SPAN_TABLES, LaneSlices, SpanNames
from lanescope.webapp.timeline.styles import STYLES
from lanescope.webapp.timeline.tile_columns import STYLE_UNFINISHED
from lanescope.webapp.timeline.timeline import Timeline
from tests.support import run_builder
from tests.support.synthetic import START_NS, Builder, write_run

MAIN = "1000-0"


def read(run: Run) -> tuple[dict[str, tuple[Lane, LaneSlices | LaneSamples]], list[str]]:
    names = SpanNames()
    lanes = {lane.key: (lane, content) for lane, content in lanes_of(run, names)}
    return lanes, names.texts


def rows(run: Run, key: str) -> list[list[tuple[int, int, str, str]]]:
    """Per row of a lane (start, end, name, style) of each slice; "!" marks unfinished ones."""
    lanes, names = read(run)
    content = lanes[key][1]
    assert isinstance(content, LaneSlices)
    found = []
    for low, high in zip(content.row_at[:-1], content.row_at[1:], strict=True):
        found.append(
            [
                (
                    int(content.start[i]),
                    int(content.end[i]),
                    names[content.name[i]],
                    STYLES[int(content.style[i]) & ~STYLE_UNFINISHED]
                    + "!" * bool(content.style[i] & STYLE_UNFINISHED),
                )
                for i in range(low, high)
            ]
        )
    return found


def test_lanes_of_a_run_in_order(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run", ranks=2, threads=2, steps=3, ops=10))
    lanes, names = read(run)
    assert list(lanes) == [
        "0/1000-0",
        "0/1000-1",
        "0/collectives/0",
        "0/gradient norm",
        "0/value/loss",
        "1/1001-0",
        "1/1001-1",
        "1/collectives/0",
        "1/gradient norm",
        "1/value/loss",
    ]
    assert [lane.id for lane, _ in lanes.values()] == list(range(10))
    main = lanes["0/1000-0"][0]
    assert (main.label, main.kind, main.rank, main.pid) == ("MainThread", "thread", 0, 1000)
    assert main.title == "train.py 1000 on node-0, main thread 1000"
    assert (main.rows, main.phase_rows, main.first_ns, main.last_ns) == (3, 1, 0, 3_200_000)
    group = lanes["1/collectives/0"][0]
    assert (group.kind, group.process_group, group.rows) == ("collectives", "0", 1)
    loss, samples = lanes["0/value/loss"]
    assert isinstance(samples, LaneSamples)
    assert samples.value.tolist() == [2.0, 1.0, 2 / 3]
    assert samples.step.tolist() == [0, 1, 2]
    assert (loss.min, loss.max, loss.series, loss.rows) == (2 / 3, 2.0, "loss", 1)
    assert len(names) == len(set(names))


def test_lanes_of_a_rank_with_several_processes_stand_process_by_process(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run", world_size=2)
    for rank, pid, thread in ((0, 1000, 0), (0, 1000, 1), (0, 4000, 0), (1, 1001, 0)):
        builder.op(START_NS, 10, rank=rank, thread=builder.thread(rank, pid, thread))
        builder.row("value", rank, f"{pid}-0", time_ns=START_NS, name="loss", value=1.0)
    builder.row("gradient", 0, "1000-0", time_ns=START_NS, norm=1.0, parameter="w")
    child = next(p for p in builder.manifest["processes"] if p["pid"] == 4000)
    child |= {"role": "child", "parent_pid": 1000}
    timeline = Timeline.open(open_run(builder.write()))
    own = {"name": "process 1000", "about": "train.py"}
    worker = {"name": "process 4000", "about": "train.py · started by 1000"}
    lanes = run_facts(timeline)["lanes"]
    assert [(lane["key"], lane["group"], lane["process"]) for lane in lanes] == [
        ("0/1000-0", "rank 0", own),
        ("0/1000-1", "rank 0", own),
        ("0/gradient norm", "rank 0", own),
        ("0/value/loss", "rank 0", own),
        ("0/4000-0", "rank 0", worker),
        ("0/value/loss/4000", "rank 0", worker),
        ("1/1001-0", "rank 1", None),
        ("1/value/loss", "rank 1", None),
    ]


def test_rows_are_phases_by_depth_then_ops_by_depth(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    builder.thread()
    builder.phase(START_NS, 1000, "forward")
    builder.phase(START_NS + 100, 500, "user", name="attention", depth=1)
    builder.op(START_NS + 10, 20, "aten::a")
    builder.op(START_NS + 200, 300, "aten::b")
    builder.op(START_NS + 210, 100, "aten::c", depth=2)
    run = open_run(builder.write())
    assert rows(run, f"0/{MAIN}") == [
        [(0, 1000, "forward", "forward")],
        [(100, 600, "attention", "user")],
        [(10, 30, "aten::a", "forward"), (200, 500, "aten::b", "forward")],
        [(210, 310, "aten::c", "forward")],
    ]
    lane, content = read(run)[0][f"0/{MAIN}"]
    assert (lane.rows, lane.phase_rows) == (4, 2)
    assert isinstance(content, LaneSlices)
    assert [SPAN_TABLES[table] for table in content.row_table] == ["phase", "phase", "op", "op"]
    assert content.source.tolist() == [0, 1, 0, 1, 2]


def test_overlap_without_nesting_goes_to_a_row_below_and_nothing_is_lost(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    builder.thread()
    builder.op(START_NS, None, "aten::stuck")
    for start, duration in ((10, 20), (20, 20), (30, 10), (45, 5)):
        builder.op(START_NS + start, duration, f"op {start}")
    builder.op(START_NS + 20, 5, "aten::child", depth=1)
    assert rows(open_run(builder.write()), f"0/{MAIN}") == [
        [(0, 50, "aten::stuck", "other!")],
        [(10, 30, "op 10", "other"), (30, 40, "op 30", "other"), (45, 50, "op 45", "other")],
        [(20, 40, "op 20", "other")],
        [(20, 25, "aten::child", "other")],
    ]


def test_rows_are_the_same_however_the_log_is_cut_and_ordered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(7)
    ops: list[tuple[int, int | None, str, int, str]] = []
    for k in range(60):
        at = START_NS + 100 * k
        # Every third overlaps the next without nesting; the one around a child may be another
        # stretch, and the child's colour with it.
        ops.append((at, 130 if k % 3 == 0 else 90, f"outer {k % 5}", 0, "user"))
        for child in range(int(random.integers(4))):
            begin = at + 10 + 20 * child
            ops.append((begin, 15, ("aten::mm", "gloo:send")[child % 2], 1, "function"))
            ops.append((begin, 0, "aten::t", 2, ("function", "backward")[k % 2]))
    ops.append((START_NS + 6_100, None, "stuck", 0, "function"))

    def laid_out(name: str, chosen: list[int], group: int) -> list[list[tuple[int, int, str, str]]]:
        monkeypatch.setattr(run_builder, "ROW_GROUP_ROWS", group)
        builder = Builder(tmp_path / name)
        builder.thread()
        builder.phase(START_NS + 1_000, 2_000, "forward")
        builder.phase(START_NS + 1_500, 400, "user", depth=1)
        for k in chosen:
            start, duration, op, depth, scope = ops[k]
            builder.op(start, duration, op, depth=depth, scope=scope)
        return rows(open_run(builder.write()), f"0/{MAIN}")

    monkeypatch.setattr(spans, "STRETCH", 1)
    every = list(range(len(ops)))
    whole = laid_out("whole", every, len(ops))
    assert len(whole) > 5
    assert laid_out("cut", every, 4) == whole
    late = [*every[:40], *every[41:70], 40, *every[70:]]
    assert laid_out("late", late, 4) == whole


def test_colours(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    builder.thread()
    kinds = ("data", "forward", "backward", "optimizer", "evaluation", "user")
    for position, kind in enumerate(kinds):
        builder.phase(START_NS + 100 * position, 100, kind)
        builder.op(START_NS + 100 * position, 50, f"aten::{kind}")
    builder.phase(START_NS + 700, 0, "mark", name="here")
    builder.op(START_NS + 100, 10, "c10d::allreduce_", depth=1)
    builder.op(START_NS + 120, 10, "AddBackward0", scope="backward", depth=1)
    builder.op(START_NS + 800, 10, "outside")
    builder.op(START_NS + 810, 50, "region", scope="user")
    builder.op(START_NS + 820, 10, "within", depth=1)
    run = open_run(builder.write())
    found = {name: style for row in rows(run, f"0/{MAIN}") for _, _, name, style in row}
    assert found == {
        **{kind: kind for kind in kinds},
        **{f"aten::{kind}": kind for kind in kinds},
        "here": "mark",
        "c10d::allreduce_": "collective",
        "AddBackward0": "backward",
        "outside": "other",
        "region": "user",
        "within": "user",
    }


def test_ops_of_autograds_own_thread_know_their_phase_by_name(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    builder.phase(START_NS, 1000, "optimizer", name="AdamW.step", thread=builder.thread())
    worker = builder.thread(ordinal=1, kind="native")
    builder.op(START_NS, 100, "aten::add_", thread=worker, phase="AdamW.step")
    builder.op(START_NS + 200, 100, "MulBackward0", thread=worker, scope="backward")
    builder.op(START_NS + 210, 50, "aten::mul", thread=worker, depth=1)
    run = open_run(builder.write())
    assert [[style for *_, style in row] for row in rows(run, f"0/{worker}")] == [
        ["optimizer", "backward"],
        ["backward"],
    ]


def test_collectives_last_until_they_are_complete(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run", world_size=2)
    first, second = builder.thread(), builder.thread(ordinal=1)
    common = {"group_size": 2, "duration_ns": 10, "name": "all_reduce"}
    at = START_NS
    builder.row("collective", 0, first, start_ns=at, complete_ns=at + 90, group="0", **common)
    builder.row("collective", 0, second, start_ns=at + 50, complete_ns=None, group="0", **common)
    builder.row(
        "collective",
        0,
        first,
        start_ns=at + 70,
        complete_ns=None,
        group="0",
        **{**common, "duration_ns": None, "name": "barrier"},
    )
    builder.row("collective", 0, first, start_ns=at + 5, complete_ns=at + 6, group="dp", **common)
    builder.op(START_NS + 100, 100, thread=first)
    run = open_run(builder.write())
    assert rows(run, "0/collectives/0") == [
        [(0, 90, "all_reduce", "collective")],
        [(50, 60, "all_reduce", "collective"), (70, 200, "barrier", "collective!")],
    ]
    assert rows(run, "0/collectives/dp") == [[(5, 6, "all_reduce", "collective")]]
    lanes, _ = read(run)
    assert lanes["0/collectives/dp"][0].label == "collectives dp"
    content = lanes["0/collectives/0"][1]
    assert isinstance(content, LaneSlices)
    groups = run.events("collective", 0)["group"].to_pylist()
    assert [groups[i] for i in content.source] == ["0", "0", "0"]
    # A thread with nothing else shows the calls themselves.
    assert rows(run, f"0/{second}") == [[(50, 60, "all_reduce", "collective")]]


def test_gradient_norm_of_the_whole_gradient(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    thread = builder.thread()
    builder.rows(
        "gradient",
        0,
        thread,
        time_ns=START_NS + np.array([10, 11, 20, 21, 30, 40]),
        step=[0, 0, 1, 1, 2, 3],
        norm=[3.0, 4.0, None, 2.0, math.nan, None],
        parameter=["a", "b", "a", "b", "a", "a"],
    )
    builder.op(START_NS, 100)
    run = open_run(builder.write())
    samples = gradient_norm_samples(run, 0)
    assert samples.time.tolist() == [11, 21, 30]
    assert samples.step.tolist() == [0, 1, 2]
    assert samples.value[:2].tolist() == [5.0, 2.0]
    assert math.isnan(samples.value[2])
    lane = read(run)[0]["0/gradient norm"][0]
    assert (lane.min, lane.max) == (2.0, 5.0)


def test_gradient_norm_is_the_one_of_the_analysis(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run", ranks=2, steps=5, ops=2))
    frame = analysed_norms(run)
    for rank in run.ranks:
        samples = gradient_norm_samples(run, rank)
        mine = frame[frame["rank"] == rank]
        assert samples.step.tolist() == mine["step"].tolist()
        np.testing.assert_allclose(samples.value, mine["norm"], rtol=1e-14)
        assert samples.time.tolist() == mine["time_ns"].tolist()


def test_series_of_processes_do_not_mix(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    main, worker = builder.thread(), builder.thread(pid=900)
    builder.manifest["processes"][1]["role"] = "child"
    name = "lanescope/rss"
    builder.rows("value", 0, worker, time_ns=[START_NS + 5], name=name, value=[7.0])
    builder.rows("value", 0, main, time_ns=[START_NS + 9, START_NS], name=name, value=[2.0, 1.0])
    lanes, _ = read(open_run(builder.write()))
    own, other = lanes["0/value/lanescope/rss"], lanes["0/value/lanescope/rss/900"]
    label = "memory of the process"
    assert (own[0].label, other[0].label, own[0].unit) == (label, f"{label} (900)", "B")
    assert (own[0].series, name in own[0].title) == (name, True)
    assert isinstance(own[1], LaneSamples)
    assert own[1].value.tolist() == [1.0, 2.0]


def test_what_only_checks_read_has_no_lane(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    thread = builder.thread()
    names = ["loss", schema.ADDED_NORM, SHARED_ADDRESS, f"{TRAINING_MODE}Net"]
    for place, name in enumerate(names):
        builder.rows("value", 0, thread, time_ns=[START_NS + place], name=name, value=[1.0])
    lanes, _ = read(open_run(builder.write()))
    assert [key for key in lanes if "/value/" in key] == [f"0/value/{one}" for one in names[:2]]


def test_places_in_names_have_no_directories() -> None:
    names = SpanNames()
    texts = ["lost context: a at /home/me/run.py:14 was 1", "a/b.py(3): f", "at /x/y.py:2"]
    column = pa.chunked_array([pa.array([*texts, "at /z/y.py:2"]).dictionary_encode()])
    assert names.of_phases(column).tolist() == [0, 1, 2, 2]
    assert names.texts == ["lost context: a at run.py:14 was 1", texts[1], "at y.py:2"]


def test_threads_without_events_have_no_lane(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    builder.op(START_NS, 5, thread=builder.thread())
    builder.thread(ordinal=1)
    assert list(read(open_run(builder.write()))[0]) == [f"0/{MAIN}"]


def test_times_outside_the_axis_are_drawn_at_its_edge(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    # The thread's own span is what the axis begins with, and this table is wrong about it.
    thread = builder.thread(start_ns=START_NS, end_ns=START_NS + 100)
    builder.op(START_NS - 50, 60, "aten::early", thread=thread)
    builder.op(START_NS + 20, 2**54, "aten::late", thread=thread)
    run = open_run(builder.write())
    assert rows(run, f"0/{thread}") == [
        [(0, 10, "aten::early", "other"), (20, 2**53, "aten::late", "other")]
    ]


def test_lane_of_absurdly_many_rows_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lanescope.webapp.timeline.spans.MAX_LANE_ROWS", 3)
    builder = Builder(tmp_path / "run")
    builder.thread()
    for depth in range(4):
        builder.op(START_NS, 10, depth=depth)
    run = open_run(builder.write())
    with pytest.raises(RunError, match=r"a lane would have 4 rows .* at most 3"):
        read(run)
