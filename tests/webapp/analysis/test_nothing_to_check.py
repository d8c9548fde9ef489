"""A program that did not train, or has one thread, passes no check that needs more."""

from __future__ import annotations

from pathlib import Path

from lanescope.webapp.analysis.findings import run_questions
from lanescope.webapp.runs.run import open_run
from tests.support.synthetic import START_NS, Builder, write_run

TRAINING = {
    "Backward from a loss without a graph",
    "Concurrent backward into the same gradients",
    "In-place changes of tensors that backward needs",
    "Losses of no target",
    "States that are not loaded",
}
THREADS = {"Data races between threads or streams", "Lost context variables", "Lost modes of torch"}


def unanswered(folder: Path) -> set[str]:
    return {one.question for one in run_questions(open_run(folder)) if not one.answered}


def test_nothing_is_passed_where_nothing_was_checked(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "alone")
    builder.thread()
    builder.op(START_NS, 100, "aten::mm")
    assert {*TRAINING, *THREADS, "Failed validators"} <= unanswered(builder.write())


def test_they_are_checked_where_it_trains_with_threads(tmp_path: Path) -> None:
    trained = unanswered(write_run(tmp_path / "trained", ranks=1, threads=2, steps=3, ops=40))
    checked = {"In-place changes of tensors that backward needs", "States that are not loaded"}
    assert not trained & (checked | {"Lost context variables", "Lost modes of torch"})
