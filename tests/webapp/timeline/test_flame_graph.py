"""Spans folded into frames, on runs whose tree can be worked out on paper."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lanescope.webapp.analysis.arrow_columns import ends_ns
from lanescope.webapp.runs.intervals import Intervals, union
from lanescope.webapp.runs.run import Run, Thread, open_run
from lanescope.webapp.runs.types import Window
from lanescope.webapp.timeline.flame_graph import flame
from lanescope.webapp.timeline.flame_graph.flame import Flame, fold, parts_of
from lanescope.webapp.timeline.flame_graph.frame_tree import FrameTree
from lanescope.webapp.timeline.flame_graph.lane_walk import By
from tests.support.synthetic import START_NS, Builder, write_run

MAIN = {"file": "/w/train.py", "line": 40, "function": "main"}
STEP = {"file": "/w/train.py", "line": 12, "function": "step"}
LAYER = {"file": "/w/model.py", "line": 7, "function": "forward"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One thread as the tests say; another with two operators that overlap without nesting."""
    builder = Builder(tmp_path_factory.mktemp("flame") / "run")
    main, other = builder.thread(), builder.thread(ordinal=1)
    builder.rows("stack", 0, None, stack=[0, 1], frames=[[STEP, MAIN], [LAYER, STEP, MAIN]])
    at = START_NS
    builder.phase(at, 100, "forward", thread=main)
    builder.op(at + 10, 50, "aten::linear", thread=main, stack=1, module="net.a")
    builder.op(at + 20, 30, "aten::addmm", thread=main, depth=1)
    builder.op(at + 70, 20, "aten::mm", thread=main, stack=0)
    builder.op(at + 95, 15, "aten::relu", thread=main, module="net")  # past the end of forward
    builder.op(at, 40, "aten::add", thread=other, stack=0)
    builder.op(at + 30, 20, "aten::mul", thread=other, stack=0)
    return open_run(builder.write())


def times(run: Run, by: By, window: Window | None = None) -> dict[str, int]:
    """Frames joined by ";" -> time in which the last one was innermost."""
    tree = FrameTree()
    own = fold(run, parts_of(run, window), by, tree)
    return {
        ";".join(frame.title for frame in tree.path(node)): int(own[node])
        for node in np.flatnonzero(own).tolist()
    }


def test_by_nesting_on_the_lanes(run: Run) -> None:
    assert times(run, "nesting") == {
        "forward": 10 + 10 + 5,
        "forward;aten::linear": 10 + 10,
        "forward;aten::linear;aten::addmm": 30,
        "forward;aten::mm": 20,
        "forward;aten::relu": 5,
        "aten::relu": 10,
        "aten::add": 30,
        "aten::add;aten::mul": 10,
        "aten::mul": 10,
    }


def test_by_python_stack(run: Run) -> None:
    step = "main (train.py:40);step (train.py:12)"
    assert times(run, "stack") == {
        f"{step};forward (model.py:7);aten::linear": 20,
        f"{step};forward (model.py:7);aten::linear;aten::addmm": 30,
        f"{step};aten::mm": 20,
        "no Python stack recorded;aten::relu": 15,
        f"{step};aten::add": 30,
        f"{step};aten::add;aten::mul": 10,
        f"{step};aten::mul": 10,
    }


def test_by_module_within_a_window(run: Run) -> None:
    assert times(run, "module", (45, 100)) == {
        "net;net.a;aten::linear": 10,
        "net;net.a;aten::linear;aten::addmm": 5,
        "outside of modules;aten::mm": 20,
        "net;aten::relu": 5,
        "outside of modules;aten::mul": 5,
    }


def test_backward_nodes_are_of_the_module_whose_operator_made_them(tmp_path: Path) -> None:
    """Numbers count per thread: the maker on the node's own thread is preferred to a later one."""
    builder = Builder(tmp_path / "run")
    threads = [builder.thread(ordinal=k) for k in range(3)]
    made = (
        *((0, 0, "aten::addmm", "net.a", 5), (10, 0, "aten::mul", "net.b", 5)),
        *((20, 1, "aten::addmm", "net.c", 5), (30, 0, "aten::addmm", "", 6)),
    )
    nodes = ((50, 0, "AddmmBackward0", 5), (60, 0, "MulBackward0", 5), (70, 2, "AddmmBackward0", 5))
    for start, thread, name, module, sequence in made:
        lane = {"thread": threads[thread], "module": module, "sequence": sequence}
        builder.op(START_NS + start, 5, name, **lane)
    for start, thread, name, sequence in (*nodes, (80, 0, "AddmmBackward0", 6)):
        lane = {"thread": threads[thread], "scope": "backward", "sequence": sequence}
        builder.op(START_NS + start, 8, name, **lane)
        builder.op(START_NS + start + 2, 3, "aten::mm", thread=threads[thread], depth=1)
    builder.phase(START_NS, 100, "optimizer", thread=threads[0])
    addmm, mul = "AddmmBackward0", "MulBackward0"
    assert times(open_run(builder.write()), "module", (45, 100)) == {
        f"net;net.a;{addmm}": 5,
        f"net;net.a;{addmm};aten::mm": 3,
        f"net;net.b;{mul}": 5,
        f"net;net.b;{mul};aten::mm": 3,
        f"net;net.c;{addmm}": 5,
        f"net;net.c;{addmm};aten::mm": 3,
        f"outside of modules;{addmm}": 5,
        f"outside of modules;{addmm};aten::mm": 3,
    }


@pytest.mark.parametrize("by", ["nesting", "stack", "module"])
def test_times_add_up_to_the_time_in_which_anything_runs(
    by: By, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_run(write_run(tmp_path / "run", ranks=1, threads=2, steps=2, ops=40))
    tables = ("phase", "op") if by == "nesting" else ("op",)
    for window in (None, (123_456, 1_234_567)):
        whole = times(run, by, window)
        assert sum(whole.values()) == sum(
            union(_spans(run, table, thread) for table in tables)
            .clip(*(window or (0, run.duration_ns)))
            .total
            for thread in run.threads
        )
        with monkeypatch.context() as patch:  # as runs are that do not fit into memory at once
            patch.setattr(flame, "OPERATORS_AT_ONCE", 50)
            assert times(run, by, window) == whole


def _spans(run: Run, table: str, thread: Thread) -> Intervals:
    lane = thread.rank, thread.thread
    rows = run.events(table, *lane, ["start_ns", "duration_ns"])
    return Intervals.of(rows["start_ns"].to_numpy(), ends_ns(rows, run))


def test_short_frames_are_gathered_and_counted(run: Run) -> None:
    tree = FrameTree()
    found = Flame("nesting", tree, fold(run, parts_of(run), "nesting", tree))

    def rows(least: float, most: int) -> list[tuple[str, int, int, int]]:
        table = found.frames(least, most)
        assert table["self_ns"].sum() == table["total_ns"][0] == 160
        return sorted(
            (row.frame.name if row.frame else "", row.total_ns, row.self_ns, row.gathered)
            for row in table.itertuples()
        )

    kept = [("aten::add", 40, 30, 0), ("aten::linear", 50, 20, 0), ("forward", 100, 25, 0)]
    long = [("aten::addmm", 30, 30, 0), *kept]
    gathered = [("", 160, 0, 0), ("", 10, 10, 1), ("", 20, 20, 2), ("", 25, 25, 2)]
    assert rows(0.16, 99) == sorted([*gathered, *long])  # of 160 ns, 25.6
    assert rows(0.0, 5) == sorted([*gathered, *long])
    assert rows(0.0, 4) == sorted([*gathered, ("", 30, 30, 1), *kept])
