"""Predictions: of steps worked out on paper, and of programs that are really changed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from lanescope.webapp.analysis.findings import NotApplicable
from lanescope.webapp.plugins.time.buckets import MIB, assigned
from lanescope.webapp.plugins.time.job_steps import job_steps
from lanescope.webapp.plugins.time.what_if import what_if
from lanescope.webapp.runs.run import Run, open_run
from tests.support.recording import record_script
from tests.support.synthetic import Builder
from tests.webapp.plugins.time.test_breakdown import MS, call, op, training_step

PROGRAM = Path(__file__).parents[4] / "benchmarks/programs/planted_causes.py"


def predicted(run: Run, spec: str, step: int | None = None) -> float:
    return what_if(run, [spec], step)[0].step_ns / MS


def gradient(builder: Builder, rank: int, begin: int, ready: int) -> None:
    """One of 4 MiB, computed from `begin` to `ready`, ms."""
    work = {"name": "AccumulateGrad", "shapes": "[1024, 1024]", "dtypes": "float32"}
    op(builder, begin, ready, rank, **work)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Gradients of 4 MiB are ready at 40, 50, 60 and 70; one all-reduce of all lasts 70 to 79."""
    builder = Builder(tmp_path / "run", world_size=2)
    for rank in (0, 1):
        training_step(builder, rank)
        for ready in (40, 50, 60, 70):
            gradient(builder, rank, ready - 10, ready)
        size = {"bytes": 16 * MIB, "phase": "backward", "duration_ns": 0}
        call(builder, rank, 70, 79, **size)
        op(builder, 79, 80, rank)
    return open_run(builder.write())


def test_smaller_buckets(run: Run) -> None:
    """Each of the two takes 4.5 of the 9 ms, the first 50 to 54.5 under backward's work."""
    assert predicted(run, "bucket=8") == pytest.approx(90 - 4.5)
    assert predicted(run, "bucket=1000") == pytest.approx(90)
    assert predicted(run, "bucket=1") == pytest.approx(90 - 9 * 3 / 4)


def test_a_slow_link_is_used_one_bucket_after_the_other(tmp_path: Path) -> None:
    """Four transfers of 9 ms after gradients that come at 40, 42, 44 and 46: 40 to 76."""
    builder = Builder(tmp_path / "run", world_size=2)
    for rank in (0, 1):
        training_step(builder, rank)
        for ready in (40, 42, 44, 46):
            gradient(builder, rank, ready - 2, ready)
        call(builder, rank, 46, 82, bytes=16 * MIB, phase="backward", duration_ns=0)
    made = open_run(builder.write())
    # The wait ends in the middle of the step; what remains of it, 8 ms, follows.
    assert predicted(made, "bucket=4") == predicted(made, "bucket=1000") - 6


def test_a_bucket_takes_gradients_until_it_holds_the_limit() -> None:
    sizes = np.array([3, 3, 3, 9, 1, 1]) * MIB
    assert assigned(sizes, 6 * MIB) == [[0, 1], [2, 3], [4, 5]]
    assert assigned(sizes, 1) == [[0], [1], [2], [3], [4], [5]]
    assert assigned(sizes[:0], 1) == []


def test_without_gradients_there_are_no_buckets(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    training_step(builder)
    with pytest.raises(NotApplicable, match="no reduction of gradients"):
        what_if(open_run(builder.write()), ["bucket=5"])


def test_an_operator_is_changed_with_all_that_it_calls(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    training_step(builder)
    op(builder, 40, 60, name="aten::linear")
    op(builder, 45, 55, name="aten::addmm", depth=1)
    made = open_run(builder.write())
    assert predicted(made, "op=aten::linear:x0.5") == 80
    assert predicted(made, "op=aten::addmm:x2") == 100
    assert what_if(made, ["op=aten::addmm:x2"])[0].words == "aten::addmm half as fast"


@pytest.mark.parametrize(
    "spec", ["rank=7:delay=0", "op=aten::addmn:x0.5", "module=block:x0.5", "phase=forwards:x0"]
)
def test_a_name_that_the_step_does_not_have_is_refused(tmp_path: Path, spec: str) -> None:
    builder = Builder(tmp_path / "run")
    training_step(builder)
    op(builder, 40, 60, name="aten::addmm")
    with pytest.raises(NotApplicable, match=r"no such rank|nothing in the step"):
        what_if(open_run(builder.write()), [spec])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cause", "spec", "known", "changed"),
    [
        ("delay", "rank=1:delay=0", "with", "without"),
        ("operator", "op=planted::work:x2", "without", "with"),
        ("loader", "data=0", "with", "without"),
    ],
)
def test_a_prediction_is_near_the_changed_program(
    tmp_path: Path, cause: str, spec: str, known: str, changed: str
) -> None:
    """Of the planted difference the prediction misses less than half, on the busiest machine:
    benchmarks/bench_what_if.py measures the error."""
    runs = []
    for one in (known, changed):
        recorded = record_script(tmp_path / one, PROGRAM, cause, one, ranks=2)
        assert recorded.status == 0, recorded.stderr
        runs.append(open_run(recorded.run))
    steps = [job_steps(one)[2:] for one in runs]
    before, after = (float(np.median([s.end_ns - s.start_ns for s in one])) / MS for one in steps)
    guesses = []
    for one in steps[0]:  # one with waits that were not recorded, as on a busy machine, is refused
        with suppress(NotApplicable):
            guesses.append(predicted(runs[0], spec, one.step))
    assert len(guesses) > len(steps[0]) / 2
    guess = np.median(guesses)
    assert abs(guess - after) < abs(before - after) / 2
