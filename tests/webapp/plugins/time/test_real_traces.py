"""Of traces of other people's programs, where somebody has put them: categories and paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanescope.webapp.plugins.time.breakdown import CATEGORIES, step_time
from lanescope.webapp.plugins.time.critical_path import critical_path
from lanescope.webapp.plugins.time.job_steps import job_steps
from lanescope.webapp.plugins.time.what_if import ready_made
from tests.support.trace_files import DATA, imported

TRACES = sorted(DATA.glob("kineto_*.json.gz"))


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
def test_steps_are_made_of_their_parts(path: Path, tmp_path: Path) -> None:
    """The categories of a step add up to it, and the critical path is as long, to the ns."""
    run = imported(tmp_path / "run", path)
    times = step_time(run)
    assert len(times)
    spent = times[[f"{name}_ns" for name in CATEGORIES]].to_numpy()
    assert spent.min() >= 0
    assert spent.sum(axis=1).tolist() == times["duration_ns"].tolist()
    for step in job_steps(run):
        walked = critical_path(run, step.step)
        assert walked["duration_ns"].sum() == step.end_ns - step.start_ns
        assert walked["duration_ns"].min() > 0


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
def test_a_prediction_gains_what_the_path_has_of_it(path: Path, tmp_path: Path) -> None:
    """Work that takes half as long saves at most half of what it is on the critical path: the rest
    of the path stays."""
    run = imported(tmp_path / "run", path)
    for step in job_steps(run):
        spent = critical_path(run, step.step).groupby("category")["duration_ns"].sum()
        length = step.end_ns - step.start_ns
        for found in ready_made(run, step.step):
            name = found.spec.removeprefix("phase=").removesuffix(":x0.5")
            if name in spent:
                assert length - found.step_ns <= spent[name] / 2 + length / 100, found.spec
