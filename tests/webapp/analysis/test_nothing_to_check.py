"""A program that did not train, or has one thread, passes no check that needs more."""

from __future__ import annotations

from pathlib import Path

import pytest

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


_CTC = "Texts that are longer than what CTC gets"


def unanswered(folder: Path) -> set[str]:
    return {one.question for one in run_questions(open_run(folder)) if not one.answered}


def test_nothing_is_passed_where_nothing_was_checked(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "alone")
    builder.thread()
    builder.op(START_NS, 100, "aten::mm")
    assert {*TRAINING, *THREADS, "Failed validators"} <= unanswered(builder.write())


def test_what_another_recording_would_check_says_what_to_record(tmp_path: Path) -> None:
    answers = run_questions(open_run(write_run(tmp_path / "run", ranks=2, steps=1, ops=2)))
    assert {one.recordable for one in answers if one.unanswered} == {True, False}
    for one in answers:
        assert one.recordable == one.unanswered.startswith("record "), one


def test_they_are_checked_where_it_trains_with_threads(tmp_path: Path) -> None:
    trained = unanswered(write_run(tmp_path / "trained", ranks=1, threads=2, steps=3, ops=40))
    checked = {"In-place changes of tensors that backward needs", "States that are not loaded"}
    assert not trained & (checked | {"Lost context variables", "Lost modes of torch"})


@pytest.mark.parametrize(
    ("node", "passes"),
    [("MseLossBackward0", False), ("CtcLossBackward0", True), ("CompiledFunctionBackward", True)],
)
def test_a_graph_is_checked_for_what_it_has(tmp_path: Path, node: str, passes: bool) -> None:
    builder = Builder(tmp_path / "run")
    thread = builder.thread()
    builder.op(START_NS, 100, "aten::mm")
    builder.row("node", 0, thread, time_ns=START_NS + 200, node=0, name=node, next="")
    (answer,) = (one for one in run_questions(open_run(builder.write())) if one.question == _CTC)
    assert answer.unanswered == ("" if passes else "the graph of backward has no CTC loss")
    assert answer.answered == passes
