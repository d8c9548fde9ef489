"""Findings of a run that grows: quick questions are asked of each state, slow ones now and then."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanescope.webapp.analysis.check_limits import Settings
from lanescope.webapp.analysis.findings import AnalysisResult, Finding
from lanescope.webapp.analysis.plugin import Question
from lanescope.webapp.runs.run import open_run
from lanescope.webapp.server import live_run
from lanescope.webapp.server.live_run import TIMES_ANSWER, Examining
from tests.support.synthetic import START_NS, Builder

QUICK = Question("Quick?", "quick:quick", ("nan",), order=1)
SLOW = Question("Slow?", "slow:slow", ("nan",), order=2)
TAKES = {"quick:quick": 0.1, "slow:slow": 5.0}


class World:
    """A clock that answers move on, and what was asked."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[str] = []

    def run_question(self, question: Question, *_: object) -> AnalysisResult:
        self.now += TAKES[question.find]
        self.asked.append(question.text)
        title = f"{question.text} {len(self.asked)}"
        return AnalysisResult(question.text, (Finding(kind="nan", severity="error", title=title),))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(live_run, "run_question", world.run_question)
    return world


def test_a_slow_question_holds_up_no_quick_one(tmp_path: Path, world: World) -> None:
    builder = Builder(tmp_path)
    builder.op(START_NS, 10)
    run = open_run(builder.write())
    one = Examining(Settings(), (SLOW, QUICK), lambda: world.now)
    answer: list[int] = []
    assert one.findings() is None
    assert one.look(run, None, lambda: answer.append(len(one.findings() or ())))
    assert (world.asked, answer) == (["Slow?", "Quick?"], [0, 2])
    for _ in range(3):  # new states, half a second apart
        world.now += 0.5
        assert not one.look(run, None, lambda: None)
    assert world.asked[2:] == ["Quick?"] * 3
    assert [found.title for found in one.findings() or ()] == ["Slow? 1", "Quick? 5"]
    world.now += TIMES_ANSWER * TAKES["slow:slow"]
    assert one.look(run, None, lambda: None)
    assert world.asked[5:] == ["Quick?", "Slow?"]  # what was quick comes first
    world.asked.clear()
    assert one.look(run, None, lambda: None, last=True)
    assert sorted(world.asked) == ["Quick?", "Slow?"]
