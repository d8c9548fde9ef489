"""What every page is about."""

from __future__ import annotations

from concurrent.futures import wait
from dataclasses import dataclass, field

from lanescope.webapp.analysis.check_limits import Settings
from lanescope.webapp.analysis.checks import DEFAULTS, Report, check
from lanescope.webapp.runs.run import Run
from lanescope.webapp.timeline.search.lookup import selecting
from lanescope.webapp.timeline.timeline import Timeline
from lanescope.webapp.ui.examination import MANY_RANKS, Examination, check_apart
from lanescope.webapp.ui.parts import Parts

FIRST_S = 10.0
"""How long the report waits for the parts of a page that need it not: both at once take as long as
the report."""


@dataclass(frozen=True, eq=False)
class Context:
    """The runs that a page shows. One per app; nothing of it is module-level."""

    run: Run
    baseline: Run | None = None
    timeline: Timeline | None = None
    settings: Settings = DEFAULTS
    parts: Parts = field(default_factory=Parts)
    examination: Examination | None = None  # None: the report is made here

    def report(self) -> Report:
        """Returns the run against the limits, with all findings."""
        with self.parts.waiting():
            return self._examining.begin().result()

    def report_within(self, seconds: float) -> Report | None:
        """Returns the report; None where it is not there after so many seconds: it is made all the
        same."""
        asked = self._examining.begin()
        with self.parts.waiting():
            return asked.result() if wait([asked], seconds).done else None

    def __post_init__(self) -> None:
        if self.examination is None:
            object.__setattr__(self, "examination", Examination(self._check))

    @property
    def _examining(self) -> Examination:
        assert self.examination is not None
        return self.examination

    def _check(self) -> Report:
        self.parts.wait(FIRST_S)
        if len(self.run.ranks) < MANY_RANKS:
            return check(self.run, self.baseline, self.settings, self.noise)
        return check_apart(self.run, self.baseline, self.noise, self.settings)

    @property
    def noise(self) -> Run | None:
        """Another recording of the baseline, if there is one."""
        return None if self.timeline is None else self.timeline.noise

    def address(self, link: str) -> str:
        """Returns a finding's link as the timeline in the browser understands it, without asking
        again."""
        return link if self.timeline is None else selecting(self.timeline, link)
