"""A flame graph beside that of a baseline: the same steps, threads, lines and modules."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanescope.webapp.plugins.flame.baseline import flame, parts_of_baseline
from lanescope.webapp.plugins.flame.charts import change
from lanescope.webapp.runs.run import Run, open_run
from lanescope.webapp.timeline.flame_graph.flame import parts_of
from lanescope.webapp.timeline.flame_graph.lane_walk import By
from tests.support.synthetic import START_NS, Builder


def recorded(path: Path, folder: str, step_ns: int, moved: int, extra: str) -> Run:
    """Two steps with three operators each: half the step, a quarter, and one that has no like.

    The program's lines are `moved` down, as by lines added at the top of its file.
    """
    builder = Builder(path)
    thread = builder.thread()
    texts = {10: "def step():", 11: "x = net(x)", 12: "loss(x)", 13: "x = net(x)"}
    builder.rows(
        "source",
        0,
        None,
        file=f"{folder}/train.py",
        line=[line + moved for line in texts],
        text=list(texts.values()),
    )
    frames = [
        [{"file": f"{folder}/train.py", "line": line + moved, "function": "step"}]
        for line in (11, 12, 13)
    ]
    builder.rows("stack", 0, None, stack=[0, 1, 2], frames=frames)
    for step in range(2):
        at = START_NS + step * step_ns
        builder.op(at, step_ns // 2, "aten::mm", thread=thread, step=step, stack=0)
        builder.op(at + step_ns // 2, step_ns // 4, "aten::mm", thread=thread, step=step, stack=2)
        builder.op(at + step_ns * 3 // 4, step_ns // 8, extra, thread=thread, step=step, stack=1)
        builder.phase(at, step_ns, "optimizer", thread=thread, step=step)
    return open_run(builder.write())


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Run, Run]:
    """The run takes twice as long as its baseline."""
    base = recorded(tmp_path / "base", "/old", 800, 0, "aten::sum")
    return base, recorded(tmp_path / "run", "/new", 1600, 3, "aten::mean")


def times(runs: tuple[Run, Run], by: By, step: int) -> dict[str, tuple[int, int, int, int]]:
    """Frame -> total and self time in the run, then in the baseline."""
    base, run = runs
    steps = run.steps(0)
    window = int(steps.start_ns[step]), int(steps.end_ns[step])
    table = flame(run, parts_of(run, window), by, base).frames()
    return {
        row.frame.title if row.frame else "all": (
            *(row.total_ns, row.self_ns),
            *(row.base_total_ns, row.base_self_ns),
        )
        for row in table.itertuples()
        if row.frame is None or row.frame.kind != "op" or row.frame.name != "aten::mm"
    }


def test_a_step_is_compared_with_the_step_of_its_number(runs: tuple[Run, Run]) -> None:
    base, run = runs
    [(_, window)] = parts_of_baseline(base, run, parts_of(run, (1600, 3200)))
    assert window == (800, 1600)
    [(_, window)] = parts_of_baseline(base, run, parts_of(run, (400, 1600)))
    assert window == (200, 800)
    for step in range(2):
        assert times(runs, "nesting", step) == {
            "all": (1600, 0, 800, 0),
            "optimizer": (1600, 200, 800, 100),
            "aten::mean": (200, 200, 0, 0),
            "aten::sum": (0, 0, 100, 100),
        }


def test_lines_that_were_only_moved_are_the_same_frames(runs: tuple[Run, Run]) -> None:
    # Lines 11 and 13 have the same text, the first of them stays the first.
    assert times(runs, "stack", 1) == {
        "all": (1400, 0, 700, 0),
        "step (train.py:14)": (800, 0, 400, 0),
        "step (train.py:16)": (400, 0, 200, 0),
        "step (train.py:15)": (200, 0, 100, 0),
        "aten::mean": (200, 200, 0, 0),
        "aten::sum": (0, 0, 100, 100),
    }


def test_differences_in_words() -> None:
    assert [change(*pair) for pair in ((280, 200), (200, 200), (0, 5), (5, 0))] == [
        "×1.4",
        "same",
        "removed",
        "added",
    ]
