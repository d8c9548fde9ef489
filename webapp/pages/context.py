"""What every page is about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dash import Dash
from dash.development.base_component import Component

from lanescope.webapp.run import Run


@dataclass(frozen=True, eq=False)
class Context:
    """The runs that a page shows. One per app; nothing of it is module-level."""

    run: Run
    baseline: Run | None = None


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
