"""What every page is about."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from lanescope.webapp.analysis.check_limits import Settings
from lanescope.webapp.analysis.checks import DEFAULTS, Report, check
from lanescope.webapp.runs.run import Run
from lanescope.webapp.timeline.search.lookup import selecting
from lanescope.webapp.timeline.timeline import Timeline


@dataclass(frozen=True, eq=False)
class Context:
    """The runs that a page shows. One per app; nothing of it is module-level."""

    run: Run
    baseline: Run | None = None
    timeline: Timeline | None = None
    settings: Settings = DEFAULTS

    def report(self) -> Report:
        """Returns the run against the limits, with all findings."""
        return self._report

    @cached_property
    def _report(self) -> Report:
        return check(self.run, self.baseline, self.settings, self.noise)

    @property
    def noise(self) -> Run | None:
        """Another recording of the baseline, if there is one."""
        return None if self.timeline is None else self.timeline.noise

    def address(self, link: str) -> str:
        """Returns a finding's link as the timeline in the browser understands it, without asking
        again."""
        return link if self.timeline is None else selecting(self.timeline, link)
