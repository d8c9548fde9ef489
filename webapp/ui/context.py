"""What every page is about."""

from __future__ import annotations

from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock, Thread
from typing import Any

from lanescope.webapp.analysis.check_limits import Settings
from lanescope.webapp.analysis.checks import DEFAULTS, Report, check
from lanescope.webapp.analysis.cluster import apart
from lanescope.webapp.runs.run import Run
from lanescope.webapp.timeline.search.lookup import selecting
from lanescope.webapp.timeline.timeline import Timeline
from lanescope.webapp.ui.parts import Parts

APART_RANKS = 128
"""Ranks from which on a process of its own checks a run: it takes minutes, in which the page would
answer slowly."""

FIRST_S = 10.0
"""How long the report waits for the parts of a page that need it not: both at once take as long as
the report."""

_CHECKING, _ASKING = Lock(), Lock()  # who asks meanwhile waits for the same report


@dataclass(frozen=True, eq=False)
class Context:
    """The runs that a page shows. One per app; nothing of it is module-level."""

    run: Run
    baseline: Run | None = None
    timeline: Timeline | None = None
    settings: Settings = DEFAULTS
    parts: Parts = field(default_factory=Parts)

    def report(self) -> Report:
        """Returns the run against the limits, with all findings."""
        with _CHECKING:
            return self._report

    def report_within(self, seconds: float) -> Report | None:
        """Returns the report; None where it is not there after so many seconds: it is made all the
        same."""
        with _ASKING:
            asked = self._asked
        with self.parts.waiting():
            return asked.result() if wait([asked], seconds).done else None

    @cached_property
    def _asked(self) -> Future[Report]:
        asked: Future[Report] = Future()

        def ask() -> None:
            try:
                self.parts.wait(FIRST_S)
                asked.set_result(self.report())
            except BaseException as error:
                with _ASKING:  # until `_asked` is there
                    del self.__dict__["_asked"]  # who asks again may have it
                asked.set_exception(error)

        Thread(target=ask, name="lanescope-report", daemon=True).start()
        return asked

    @cached_property
    def _report(self) -> Report:
        runs = (self.run, *(one for one in (self.baseline, self.noise) if one is not None))
        if len(self.run.ranks) < APART_RANKS:
            return _checked(*runs, self.settings)
        return apart(_checked, runs, self.settings)

    @property
    def noise(self) -> Run | None:
        """Another recording of the baseline, if there is one."""
        return None if self.timeline is None else self.timeline.noise

    def address(self, link: str) -> str:
        """Returns a finding's link as the timeline in the browser understands it, without asking
        again."""
        return link if self.timeline is None else selecting(self.timeline, link)


def _checked(*given: Any) -> Report:
    """Returns the report of a run: given are it, its baseline, the noise (each of these two where
    there is one), and the settings."""
    *runs, settings = given
    run, baseline, noise = (*runs, None, None)[:3]
    return check(run, baseline, settings, noise)
