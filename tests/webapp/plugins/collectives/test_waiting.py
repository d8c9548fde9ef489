"""How long a rank waits for others, against what can be worked out on paper."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanescope.webapp.plugins.collectives.skew import waiting_ranks
from lanescope.webapp.plugins.threads.overlap import overlap, phase_lanes
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.run import Run, open_run
from tests.support.synthetic import write_missing_rank, write_run

STEPS = 3


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path: Path = tmp_path_factory.mktemp("waiting") / "run"
    return open_run(write_run(path, ranks=3, threads=2, steps=STEPS, ops=20))


def test_each_rank_waits_for_the_last_one(run: Run) -> None:
    # Each rank comes 1 us after the one before, once per step.
    table = waiting_ranks(run)
    assert table["rank"].tolist() == [0, 1, 2]
    assert table["waiting_ns"].tolist() == [2000 * STEPS, 1000 * STEPS, 0]
    assert table["share"][0] == pytest.approx(2000 * STEPS / run.duration_ns)


def test_only_calls_in_the_window_count(run: Run) -> None:
    start = run.events("collective", 0, columns=["start_ns"])["start_ns"][0].as_py()
    table = waiting_ranks(run, (start + 500, start + 1500))
    assert table["waiting_ns"].tolist() == [1000, 500, 0]
    assert table["share"].tolist() == [1.0, 0.5, 0.0]


def test_a_call_that_never_ended_is_waited_for_to_the_end(tmp_path: Path) -> None:
    run = open_run(write_missing_rank(tmp_path / "stuck", 1000, 5000))
    table = waiting_ranks(run)
    assert table["rank"].tolist() == [0, 1]
    assert table["waiting_ns"].tolist() == [4000, 0]
    assert waiting_ranks(run, (2000, 3000))["share"].tolist() == [1.0, 0.0]


def test_overlap_of_names(run: Run) -> None:
    named, phase = overlap(run, "/^BACKWARD$/"), overlap(run, "backward")
    assert named["overlap_ns"].tolist() == phase["overlap_ns"].tolist()
    ops = phase_lanes(run, 0, "/aten::mul/")
    table = run.events("op", 0).to_pandas()
    for thread, lane in ops.items():
        own = table[(table["thread"] == thread) & (table["name"] == "aten::mul")]
        assert lane.total == own["duration_ns"].sum()
    assert overlap(run, "/no such name/").empty


@pytest.mark.parametrize("text", ["/(/", "nonsense"])
def test_what_cannot_be_looked_for_is_said(run: Run, text: str) -> None:
    with pytest.raises(RunError, match=r"regular expression|no phase"):
        overlap(run, text)
