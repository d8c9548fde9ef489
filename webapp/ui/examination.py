"""The report of a run that pages wait for: made once, beside what else is asked."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock, Thread
from typing import Any

from lanescope.webapp.analysis.check_limits import Settings
from lanescope.webapp.analysis.checks import Report, check
from lanescope.webapp.analysis.cluster import in_own_process
from lanescope.webapp.runs.run import Run

MANY_RANKS = 128
"""Ranks from which on a check takes minutes, in which it gives way to everything else."""

_LONG_ROWS = 200_000
"""Rows of all tables from which on a check takes longer than to start a process for it."""


class Examination:
    """Makes a report in a thread, from when it is first wanted."""

    def __init__(self, make: Callable[[], Report]) -> None:
        self._make = make
        self._lock = Lock()
        self._asked: Future[Report] | None = None

    def begin(self) -> Future[Report]:
        """Returns what becomes of it; one that failed is made again."""
        with self._lock:
            if self._asked is None:
                self._asked = Future()
                run = Thread(
                    target=self._run, args=(self._asked,), name="lanescope-report", daemon=True
                )
                run.start()
            return self._asked

    def _run(self, asked: Future[Report]) -> None:
        try:
            asked.set_result(self._make())
        except BaseException as error:
            with self._lock:
                self._asked = None
            asked.set_exception(error)


def is_long(run: Run) -> bool:
    """Returns whether a check of the run is worth a process of its own."""
    return sum(run.counts.values()) >= _LONG_ROWS


def check_apart(run: Run, baseline: Run | None, noise: Run | None, settings: Settings) -> Report:
    """Returns the report of `check`, made by a process of its own. Raises what `check` does."""
    runs = tuple(one for one in (run, baseline, noise) if one is not None)
    return in_own_process(_checked, runs, settings, gives_way=len(run.ranks) >= MANY_RANKS)


def _checked(*given: Any) -> Report:
    """Given are the run, its baseline, the noise (each of these two where there is one), and the
    settings."""
    *runs, settings = given
    run, baseline, noise = (*runs, None, None)[:3]
    return check(run, baseline, settings, noise)
