"""What every page is about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dash import Dash
from dash.development.base_component import Component

from lanescope.webapp.plugins.checks.checks import DEFAULTS, Report, check
from lanescope.webapp.plugins.sql.queries import Queries
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.settings import Settings
from lanescope.webapp.timeline.deep_links import selecting
from lanescope.webapp.timeline.timeline import Timeline


@dataclass(frozen=True, eq=False)
class Context:
    """The runs that a page shows. One per app; nothing of it is module-level."""

    run: Run
    baseline: Run | None = None
    timeline: Timeline | None = None
    settings: Settings = DEFAULTS
    queries: Queries | None = None

    def report(self) -> Report:
        """The run against the limits, with all findings."""
        return check(self.run, self.baseline, self.settings, self.noise)

    @property
    def noise(self) -> Run | None:
        """Another recording of the baseline, if there is one."""
        return None if self.timeline is None else self.timeline.noise

    def address(self, link: str) -> str:
        """A finding's link as the timeline in the browser understands it, without asking again."""
        return link if self.timeline is None else selecting(self.timeline, link)


@dataclass(frozen=True)
class Page:
    """A page as rail and router know it."""

    name: str  # of its path, icon and rail link
    title: str
    layout: Callable[[Context], Component]
    register: Callable[[Dash, Context], None]

    @property
    def path(self) -> str:
        """Its address."""
        return f"/{self.name}"
