"""Findings of a run that grows: each question is asked as often as its answer's cost allows.

A question that is answered in milliseconds is asked of each new state of the run; one that takes
seconds has an older answer meanwhile, so that one slow analysis does not hold up an alert.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from lanescope.webapp.analysis.check_limits import Settings
from lanescope.webapp.analysis.findings import (
    AnalysisResult,
    Finding,
    acknowledged,
    ranked,
    run_question,
)
from lanescope.webapp.analysis.plugin import Question, questions
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.run import Run

TIMES_ANSWER = 4
"""Times as long as an answer took, until the question is asked again."""


class Examining:
    """Answers to all questions, each of the newest state that it was asked of."""

    def __init__(
        self,
        settings: Settings,
        asked: Iterable[Question] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._questions = questions() if asked is None else tuple(asked)
        self._answers: dict[str, AnalysisResult] = {}
        self._due: dict[str, float] = {}  # question -> when it may be asked again
        self._cost: dict[str, float] = {}  # seconds that the last answer took

    def findings(self) -> list[Finding] | None:
        """Returns all of the newest answers, most severe first; None: not everything was asked
        yet."""
        if len(self._answers) < len(self._questions):
            return None
        return ranked([found for one in self._answers.values() for found in one.findings])

    def look(
        self,
        run: Run,
        baseline: Run | None,
        answered: Callable[[], None],
        *,
        noise: Run | None = None,
        last: bool = False,
    ) -> bool:
        """Asks the questions that are due, the quick ones first; calls `answered` after each
        answer; whether all was asked.

        `last`: no state follows, so all is due.
        """
        whole = True
        asked = (
            self._questions if baseline is None else (*self._questions, *questions(baseline=True))
        )
        for question in sorted(asked, key=lambda one: self._cost.get(one.find, 0.0)):
            name, began = question.find, self._clock()
            if not last and began < self._due.get(name, began):
                whole = False
                continue
            try:
                self._answers[name] = acknowledged(
                    run_question(question, run, baseline, noise), self._settings
                )
            except (RunError, OSError):  # a file was replaced just now
                whole = False
                continue
            ended = self._clock()
            self._cost[name] = ended - began
            self._due[name] = ended + TIMES_ANSWER * self._cost[name]
            answered()
        return whole
