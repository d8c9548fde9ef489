"""What threads contribute to gradients, where several of a rank run backward."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lanescope.collector.format.schema import ADDED_NORM, ADDED_NORM_OF
from lanescope.webapp.plugins.gradients import page_threads as page
from lanescope.webapp.plugins.gradients.backward_threads import added_by_layer, backward_threads
from lanescope.webapp.runs.run import Run, open_run
from lanescope.webapp.ui.context import Context
from tests.support.synthetic import START_NS, Builder

MAIN, FIRST, SECOND = "1000-0", "1000-1", "1000-2"
MILLISECOND = 1_000_000


def run_of(path: Path, *threads: str, steps_on: tuple[str, ...] = (MAIN,)) -> Run:
    """Two steps; of rank 0 each thread runs backward, thread k of them adds k + 1 gradients."""
    builder = Builder(path, world_size=2)
    for step in range(2):
        at = START_NS + step * 100 * MILLISECOND
        for place, thread in enumerate(threads):
            common = {"thread": thread, "step": step}
            builder.phase(at, (place + 1) * 10 * MILLISECOND, **common)
            builder.phase(at + MILLISECOND, MILLISECOND, depth=1, **common)  # of a checkpoint
            for k in range(place + 1):
                builder.op(
                    at + (2 + k) * MILLISECOND,
                    1000,
                    "AccumulateGrad",
                    scope="backward",
                    shapes="[4, 8]",
                    phase="backward",
                    **common,
                )
            builder.op(at + 5 * MILLISECOND, 10, "aten::add_", shapes="[4, 8] [4, 8]", **common)
        if steps_on == (SECOND,):
            for norm in (3.0, 4.0):
                builder.row(
                    "value",
                    0,
                    FIRST,
                    time_ns=at + 20 * MILLISECOND,
                    step=step,
                    name=ADDED_NORM,
                    value=norm,
                )
        for thread in steps_on:
            norms = (3.0, 4.0, None) if step == 0 else (3.0, float("nan"), None)
            for name, norm in zip("abc", norms, strict=True):
                builder.row(
                    "gradient",
                    0,
                    thread,
                    time_ns=at + 50 * MILLISECOND,
                    step=step,
                    parameter=name,
                    norm=norm,
                    numel=32,
                )
        builder.phase(at, 10 * MILLISECOND, rank=1, thread="1001-0", step=step)
    return open_run(builder.write())


def test_contributions_per_thread_and_step(tmp_path: Path) -> None:
    table = backward_threads(run_of(tmp_path, FIRST, SECOND))
    assert table[["rank", "thread", "step", "accumulations", "elements"]].values.tolist() == [
        [0, FIRST, 0, 1, 32],
        [0, FIRST, 1, 1, 32],
        [0, SECOND, 0, 2, 64],
        [0, SECOND, 1, 2, 64],
    ]
    assert table["backward_s"].tolist() == pytest.approx([0.01, 0.01, 0.02, 0.02])  # nested: once
    assert table["norm"].isna().all()  # the main thread's step uses the sum of both


def test_a_backward_that_outlasts_its_step_counts_for_it(tmp_path: Path) -> None:
    builder = Builder(tmp_path)
    for step in range(2):
        builder.phase(START_NS + 100 * step, 50, thread=MAIN, step=step)
    builder.phase(START_NS + 60, 80, thread=FIRST, step=0)
    builder.phase(START_NS + 110, 5, thread=FIRST, step=1, depth=1)
    for step, at in ((0, 70), (1, 112), (1, 130)):
        builder.op(
            START_NS + at,
            1,
            "AccumulateGrad",
            scope="backward",
            shapes="[4]",
            thread=FIRST,
            step=step,
            phase="backward",
        )
    for name in (ADDED_NORM, f"{ADDED_NORM_OF}head"):
        builder.row("value", 0, FIRST, time_ns=START_NS + 139, step=1, name=name, value=3.0)
    run = open_run(builder.write())
    table = backward_threads(run)
    one = table[(table["thread"] == FIRST) & (table["accumulations"] > 0)]
    assert one[["step", "accumulations", "elements", "added"]].values.tolist() == [[0, 3, 12, 3.0]]
    assert added_by_layer(run)[["thread", "step", "layer"]].values.tolist() == [[FIRST, 0, "head"]]


def test_norms_where_threads_step_themselves(tmp_path: Path) -> None:
    table = backward_threads(run_of(tmp_path, FIRST, SECOND, steps_on=(FIRST, SECOND)))
    norms = table["norm"].to_numpy()
    assert norms[[0, 2]].tolist() == [5.0, 5.0]
    assert np.isnan(norms[[1, 3]]).all()  # a NaN gradient is not left out of the sum


def test_norms_that_threads_add(tmp_path: Path) -> None:
    run = run_of(tmp_path, FIRST, SECOND, steps_on=(SECOND,))
    table = backward_threads(run)
    assert table.loc[table["thread"] == FIRST, "added"].tolist() == [5.0, 5.0]
    assert table.loc[table["thread"] == SECOND, "added"].isna().all()
    assert page.section(Context(run))[1].children[0].children[1].value == "added"
    figure, note = page.threads_figure(run, "added", 0, "light")
    assert [trace.name for trace in figure.data] == ["Thread-1"]
    assert "not measured" not in note


def test_what_the_page_shows(tmp_path: Path) -> None:
    run = run_of(tmp_path / "two", FIRST, SECOND)
    dropdown = page.section(Context(run))[1].children[0].children[1]
    assert [one["value"] for one in dropdown.options] == ["accumulations", "elements", "backward_s"]
    figure, note = page.threads_figure(run, "accumulations", 0, "light")
    assert [trace.name for trace in figure.data] == ["Thread-1", "Thread-2"]
    assert list(figure.data[1].x) == [0, 1]
    assert list(figure.data[1].y) == [2.0, 2.0]
    assert "was not measured in this run" in note
    own = run_of(tmp_path / "own", FIRST, SECOND, steps_on=(FIRST, SECOND))
    figure, note = page.threads_figure(own, "norm", 0, "dark")
    assert list(figure.data[0].y) == [5.0, None]
    assert "own optimizer steps" in note


def test_many_threads_are_cut_to_those_with_most(tmp_path: Path) -> None:
    run = run_of(tmp_path, *[f"1000-{k}" for k in range(1, 15)])
    figure, note = page.threads_figure(run, "backward_s", 0, "light")
    assert [trace.name for trace in figure.data] == [
        f"Thread-{k}" for k in range(3, 15)
    ]  # in the order of threads
    assert "12 of 14 threads" in note


def test_one_thread_a_rank_has_nothing_to_compare(tmp_path: Path) -> None:
    run = run_of(tmp_path, FIRST)
    assert backward_threads(run).empty
    assert page.section(Context(run)) == []
