"""A run that is still being recorded, as the page sees it: always its newest state.

The run is opened again and again, and served as soon as there is more of it. Each state is a run of
its own with its own etag; requests that name an older one are still answered from it, so that what
a page has asked for comes.

Each question is asked as often as its answer's cost allows: one that is answered in milliseconds of
each new state of the run; one that takes seconds has an older answer meanwhile, so that one slow
analysis does not hold up an alert.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from lanescope.collector.compaction.journal_folders import is_abandoned
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
from lanescope.webapp.runs.growing import growing
from lanescope.webapp.runs.run import Run, open_run
from lanescope.webapp.server.http_server import Wsgi
from lanescope.webapp.timeline.timeline import Timeline

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


POLL_S = 0.25
"""Between two looks at the run; more where opening it takes long, so that half the time is free."""

QUIET_S = 10.0
"""Nothing new for so long: the programs are in a long step, or dead."""

ABANDONED_S = 10.0
"""Dead programs whose journals no process converts for so long: the run stays unfinished."""

_KEPT = 3
"""States that are still answered for."""

_NUMBER = re.compile("[0-9]+")

Make = Callable[[Timeline, Callable[[], dict[str, Any]]], Wsgi]
"""(timeline, what /api/live answers) -> application."""

Open = Callable[[str], Run]

_log = logging.getLogger(__name__)


class Following:
    """A WSGI application of the newest state of a run. Its threads end with the recording."""

    def __init__(
        self, first: Timeline, make: Make, settings: Settings, opened: Open = open_run
    ) -> None:
        self._make = make
        self._settings = settings
        self._open = opened
        self._changed = time.monotonic()
        self._ended = False
        self._unfinished = False  # ended, and its log was never closed
        self._abandoned_since: float | None = None
        self._examined = ""  # etag of the last state that was examined completely
        self._findings: list[dict[str, str]] | None = None
        self._cache = tempfile.TemporaryDirectory(prefix="lanescope-live-")
        self._timeline = first
        self._apps: dict[str, Wsgi] = {}
        self._serve(first)

    def start(self) -> tuple[threading.Thread, ...]:
        """Begins to look; returns the threads that do, which end with the recording."""
        works = (self._follow, self._examine)
        threads = tuple(
            threading.Thread(target=w, name="lanescope-live", daemon=True) for w in works
        )
        for thread in threads:
            thread.start()
        return threads

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """Answers from the state that the address names, else from the newest."""
        apps = self._apps
        path = environ.get("PATH_INFO", "")
        named = next((app for etag, app in apps.items() if f"/{etag}/" in path + "/"), None)
        return (named or apps[self._timeline.etag])(environ, start)

    def state(self) -> dict[str, Any]:
        """Returns what /api/live answers.

        {"etag", "state", "findings": [{"key", "title", "link"}] or null, "final"}. The state is
        recording, quiet, ended or unfinished: the programs died, and nothing finishes the run.
        Findings are null until they were looked for once; keys stay the same while counts grow.
        final: neither the state nor its findings will change any more.
        """
        ended = self._ended  # before the etag, which does not change from then on
        over = "unfinished" if self._unfinished else "ended"
        quiet = time.monotonic() - self._changed > QUIET_S
        etag = self._timeline.etag
        return {
            "etag": etag,
            "state": over if ended else "quiet" if quiet else "recording",
            "final": ended and self._examined == etag,  # before the findings, for the same reason
            "findings": self._findings,
        }

    def _serve(self, timeline: Timeline) -> None:
        apps = dict(list(self._apps.items())[-(_KEPT - 1) :])
        apps[timeline.etag] = self._make(timeline, self.state)
        self._apps = apps
        self._timeline = timeline
        self._changed = time.monotonic()

    def _follow(self) -> None:
        pause = POLL_S
        while not self._ended:
            time.sleep(pause)
            began = time.monotonic()
            try:
                last = not growing(self._timeline.run.title)
                unfinished = not last and self._is_abandoned()  # before its last state is opened
                self._take(self._open(self._timeline.run.title))
                self._unfinished = unfinished
                self._ended = last or unfinished
            except (RunError, OSError):  # a file was replaced just now, or the run was taken away
                self._ended = not self._timeline.run.path.exists()
            except Exception:  # one state that cannot be shown must not keep back those after it
                _log.exception("a state of %s cannot be shown", self._timeline.run.title)
            pause = max(POLL_S, time.monotonic() - began)

    def _is_abandoned(self) -> bool:
        """Whether nothing will finish the run: a compactor would have begun to."""
        now = time.monotonic()
        if not is_abandoned(self._timeline.run.path):
            self._abandoned_since = None
            return False
        if self._abandoned_since is None:
            self._abandoned_since = now
        return now - self._abandoned_since >= ABANDONED_S

    def _take(self, run: Run) -> None:
        """Serves a state if it is another one."""
        if run.etag == self._timeline.run.etag:
            return
        baseline, noise = self._timeline.baseline, self._timeline.noise
        cache = Path(self._cache.name)
        for old in sorted(cache.iterdir(), key=os.path.getmtime)[: 1 - _KEPT]:
            shutil.rmtree(old, ignore_errors=True)  # mapped files stay readable
        self._serve(Timeline.open(run, baseline, cache=cache, noise=noise))

    def _examine(self) -> None:
        examining = Examining(self._settings)

        def report() -> None:
            found = examining.findings()
            if found is not None:
                self._findings = [
                    {
                        "key": f"{one.kind} {one.rank} {_NUMBER.sub('#', one.title)}",
                        "title": one.title,
                        "link": one.link,
                    }
                    for one in found
                    if one.severity != "info"
                ]

        while not (self._ended and self._examined == self._timeline.etag):
            last, timeline = self._ended, self._timeline
            began = time.monotonic()
            try:
                whole = self._examined == timeline.etag or examining.look(
                    timeline.run, timeline.baseline, report, noise=timeline.noise, last=last
                )
            except Exception:
                _log.exception("a state of %s cannot be examined", timeline.run.title)
                whole = False
            if whole or last:
                self._examined = timeline.etag
            time.sleep(max(POLL_S, time.monotonic() - began))
