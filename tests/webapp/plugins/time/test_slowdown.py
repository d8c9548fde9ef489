"""The slowdown by stragglers of steps that are worked out on paper."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lanescope.webapp.analysis.findings import NotApplicable
from lanescope.webapp.plugins.time.job_steps import JobStep
from lanescope.webapp.plugins.time.replay import Actor, Replay, StretchEnd
from lanescope.webapp.plugins.time.slowdown import (
    pipeline_stages,
    slowdown,
    slowdown_of,
    worker_slowdown,
)
from lanescope.webapp.runs.run import open_run
from tests.support.synthetic import Builder
from tests.webapp.plugins.time.test_breakdown import training_step
from tests.webapp.plugins.time.test_critical_path import straggling


def step(number: int, forward: list[int], transfer: int = 6, optimizer: int = 4) -> Replay:
    """Each rank computes for its own time, all come to a collective, and then step."""
    actors = [
        Actor(
            rank,
            0.0,
            (StretchEnd("arrive", ("0", 0)), StretchEnd("wait", ("0", 0), transfer)),
            np.array([length, optimizer], float),
            np.array([0, 2]),
            (("forward", (), ""), ("optimizer", (), "")),
        )
        for rank, length in enumerate(forward)
    ]
    length = max(forward) + transfer + optimizer
    return Replay(JobStep(number, 0, length, 0), tuple(actors), {})


def test_one_slow_rank() -> None:
    """T is 40 + 6 + 4 = 50. Forward takes 20 ideally, so T_ideal is 30."""
    found = slowdown_of({7: step(7, [10, 10, 40])}, {})
    assert (found.step_ns, found.ideal_ns) == pytest.approx((50, 30))
    assert found.job == pytest.approx(50 / 30)
    assert found.wasted == pytest.approx(20 / 50)
    assert found.operations == pytest.approx(
        {"forward": 50 / 30, "optimizer": 1, "exposed_communication": 1}
    )
    assert found.workers == pytest.approx({0: 1, 1: 1, 2: 50 / 30})
    assert found.slowest == (2,)
    assert found.slowest_share == pytest.approx(1)
    assert replace(found, slowest_share=1.69).slowest_part == "all"
    assert (found.last_stage, found.last_stage_share) == ((), None)


def test_steps_share_one_ideal() -> None:
    """Forward takes (60 + 30) / 6 = 15 ideally; one transfer of 60 leaves the median at 6."""
    steps = {
        1: step(1, [10, 10, 40]),
        2: step(2, [10, 10, 10]),
        3: step(3, [15, 15, 15], transfer=60),
    }
    found = slowdown_of(steps, {})
    assert found.step_ns == pytest.approx((50 + 20 + 79) / 3)
    assert found.ideal_ns == pytest.approx(15 + 6 + 4)
    assert found.operations["exposed_communication"] == pytest.approx((25 + 25 + 79) / 75)
    assert found.workers[2] == pytest.approx((50 + 25 + 79) / 75)
    by_step = found.by_step[found.by_step["rank"] == 2].set_index("step")["slowdown"]
    assert by_step.to_dict() == pytest.approx({1: 50 / 25, 2: 1, 3: 79 / 25})


def test_a_step_without_work_has_no_slowdown() -> None:
    """Ranks that only wait in a collective that never completes."""
    with pytest.raises(NotApplicable, match="no work"):
        slowdown_of({0: step(0, [0, 0], transfer=0, optimizer=0)}, {})


def test_a_long_last_stage() -> None:
    """Fixed, it takes 20 as the mean does, but so does the slow first stage's other rank."""
    found = slowdown_of({1: step(1, [10, 22, 10, 38])}, {0: 0, 1: 0, 2: 1, 3: 1})
    assert found.last_stage == (2, 3)
    # T is 48 and T_ideal 30; with ranks 2 and 3 at 20 the step waits for the 22 of rank 1.
    assert found.last_stage_share == pytest.approx((48 - 32) / (48 - 30))


def test_ranks_without_the_same_collectives_are_compared_by_the_step() -> None:
    long, short = step(1, [30, 10]).actors
    both = (
        StretchEnd("arrive", ("0", 0)),
        StretchEnd("arrive", ("1", 0)),
        StretchEnd("wait", ("0", 0), 6),
    )
    other = Actor(1, 0.0, both, short.length, np.array([0, 3]), short.about)
    found = slowdown_of({1: Replay(JobStep(1, 0, 40, 0), (long, other), {})}, {})
    assert found.ideal_ns == pytest.approx(20 + 6 + 4)
    assert found.workers == pytest.approx({0: 40 / 30, 1: 1})


def test_a_category_that_only_one_rank_has_is_spread() -> None:
    slow, clean = step(1, [10, 10]).actors
    sleeping = Actor(
        0,
        0.0,
        slow.events,
        np.array([20.0, *slow.length]),
        np.array([0, *slow.stretch]),
        (("python", (), ""), *slow.about),
    )
    found = slowdown_of({1: Replay(JobStep(1, 0, 40, 0), (sleeping, clean), {})}, {})
    assert (found.step_ns, found.ideal_ns) == pytest.approx((40, 30))
    assert found.operations["python"] == pytest.approx(40 / 30)


def test_of_a_run(tmp_path: Path) -> None:
    """Backward takes 10 and 30 ms before the collective, and rank 0 ends 5 ms later than rank 1."""
    run = straggling(Builder(tmp_path / "run", world_size=2))
    found = slowdown(run)
    assert found.steps == (0,)
    assert found.step_ns == 95_000_000
    assert found.ideal_ns == pytest.approx(95e6 - 10e6 - 2.5e6)
    assert found.slowest == (1,)
    assert worker_slowdown(run)["slowdown"].max() == max(found.workers.values())


def test_stages_and_what_cannot_be_measured(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run", world_size=1)
    builder.manifest["groups"] = {
        "PP_GROUP": {"ranks": [0, 4], "description": ""},
        "3": {"ranks": [1, 5], "description": "mesh_pipeline"},
        "4": {"ranks": [0, 1], "description": "support"},
    }
    training_step(builder)
    run = open_run(builder.write())
    assert pipeline_stages(run) == {0: 0, 4: 1, 1: 0, 5: 1}
    with pytest.raises(NotApplicable, match="needs two ranks"):
        slowdown(run)
    assert worker_slowdown(run).empty
