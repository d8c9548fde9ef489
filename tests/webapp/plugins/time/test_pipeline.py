"""Bubbles of pipelines in traces without sends and receives, worked out on paper."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest

from lanescope.collector.importers.workers import Fields
from lanescope.webapp.plugins.time.breakdown import CATEGORIES, step_time
from lanescope.webapp.plugins.time.critical_path import critical_path
from lanescope.webapp.plugins.time.job_steps import job_steps
from lanescope.webapp.runs.run import Run
from tests.support.trace_files import imported, slice_, write_trace

STEPS = 2


def pipeline(named: str, stages: int = 3, microbatches: int = 2) -> list[dict[str, Any]]:
    """All forwards of 10 us, then all backwards of 20 us; stage 1 needs 30 us for forward 1.

    Microbatches are named in the slices' names, in their arguments, or not at all.
    """
    events: list[dict[str, Any]] = []
    for step in range(STEPS):
        free = [400 * step] * stages
        ready: dict[int, int] = {}
        there, back = range(stages), range(stages - 1, -1, -1)
        for kind, order in (("forward", there), ("backward", back)):
            for batch in range(microbatches):
                for stage in order:
                    slow = (kind, batch, stage) == ("forward", 1, 1)
                    length = 30 if slow else 10 if kind == "forward" else 20
                    at = max(free[stage], ready.get(batch, 0))
                    free[stage] = ready[batch] = at + length
                    args = {"step": step}
                    if named == "arguments":
                        args["micro_batch_id"] = batch
                    name = f"{kind} {batch}" if named == "names" else kind
                    events.append(slice_(name, at, length, pid=stage, tid=0, args=args))
    return events


@pytest.fixture(scope="module", params=["names", "arguments", "nothing"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The pipeline, its microbatches named in one way."""
    folder = tmp_path_factory.mktemp(request.param)
    trace = write_trace(folder / "trace.json", pipeline(request.param))
    return imported(folder / request.param, trace, fields=Fields("pid", "args.step"))


def test_a_bubble_is_a_wait_for_the_stage_before(run: Run) -> None:
    times = step_time(run)
    total = sum(times[f"{name}_ns"] for name in CATEGORIES)
    assert total.tolist() == times["duration_ns"].tolist()
    assert not times["python_ns"].any()
    named = run.path.name != "nothing"
    assert times["waiting_for_ranks_ns"].any() == named
    last = times[(times["rank"] == 2) & (times["step"] == 1)].iloc[0]
    # Stage 2 works for 60 us of each step.
    bubble = last["waiting_for_ranks_ns"] + last["idle_ns"]
    assert bubble == last["duration_ns"] - 60_000


def test_the_path_goes_through_the_stages(run: Run) -> None:
    (window,) = [one for one in job_steps(run) if one.step == 0]
    path = critical_path(run, 0)
    assert path["duration_ns"].sum() == window.end_ns - window.start_ns
    found = list(zip(path["rank"], path["name"], path["duration_ns"], strict=True))
    if run.path.name == "nothing":
        assert {rank for rank, _, _ in found} == {0}
        return
    # Stage 2 comes to backward 0 late, after forward 1, for which stage 1 took long.
    assert [rank for rank, _ in groupby(path["rank"])] == [0, 1, 2, 1, 0]
    first = ["forward 0", "forward 1"] if run.path.name == "names" else ["forward"] * 2
    assert found[0] == (0, first[0], 10_000)
    assert sum(length for rank, name, length in found if (rank, name) == (1, first[1])) >= 30_000
    assert path["category"].isin(["forward", "backward"]).all()
