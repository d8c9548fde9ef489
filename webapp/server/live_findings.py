"""Findings of a run that grows: each question is asked as often as its answer's cost allows.

A question that is answered in milliseconds is asked of each new state of the run; one that takes
seconds has an older answer meanwhile, so that one slow analysis does not hold up an alert.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial

from lanescope.webapp.analysis.findings import (
    ANALYSES,
    Analysis,
    Examined,
    Finding,
    acknowledged,
    ask,
    ranked,
)
from lanescope.webapp.plugins.checks.checks import against_baseline
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.settings import Settings

SHARE = 4
"""Times as long as an answer took, until the question is asked again."""


_BASELINE = "baseline"


class Examining:
    """Answers to all questions, each of the newest state that it was asked of."""

    def __init__(
        self,
        settings: Settings,
        analyses: Iterable[Analysis] = ANALYSES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._analyses = tuple(analyses)
        self._answers: dict[str, Examined] = {}
        self._due: dict[str, float] = {}  # question -> when it may be asked again
        self._cost: dict[str, float] = {}  # seconds that the last answer took

    def findings(self) -> list[Finding] | None:
        """All of the newest answers, most severe first; None: not everything was asked yet."""
        if len(self._answers) < len(self._analyses):
            return None
        return ranked([found for one in self._answers.values() for found in one.findings])

    def look(
        self,
        run: Run,
        baseline: Run | None,
        told: Callable[[], None],
        *,
        noise: Run | None = None,
        last: bool = False,
    ) -> bool:
        """Ask what is due of this state, what was quick first, `told` after each answer; whether
        all was asked.

        `last`: no state follows, so all is due.
        """
        whole = True
        questions: list[tuple[str, Callable[[], Examined]]] = [
            (one.entry, partial(ask, one, run)) for one in self._analyses
        ]
        if baseline is not None:
            questions.append((_BASELINE, partial(against_baseline, baseline, run, noise)))
        for name, answer in sorted(questions, key=lambda one: self._cost.get(one[0], 0.0)):
            began = self._clock()
            if not last and began < self._due.get(name, began):
                whole = False
                continue
            try:
                self._answers[name] = acknowledged(answer(), self._settings)
            except (RunError, OSError):  # a file was replaced just now
                whole = False
                continue
            ended = self._clock()
            self._cost[name] = ended - began
            self._due[name] = ended + SHARE * self._cost[name]
            told()
        return whole
