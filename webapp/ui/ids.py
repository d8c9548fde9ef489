"""Ids of components, in one place: callbacks, assets/timeline/*.js and tests name the same ones."""

LOCATION = "location"
THEME = "theme"
"""Store: "light" or "dark", set by the page."""
FRAME = "frame"
PAGE = "page"
PAGE_FINDINGS = "page-findings"
TIMELINE = "timeline"
NOTICE = "notice"
HEALTH = "health"
ABOUT = "about-run"
PAGE_STATE = "page-state"
"""Store: etag of the state of a growing run that PAGE shows next."""
SEARCH = "search-host"
LIVE = "live-host"
LIVE_STATE = "live-state"
"""Store: changes when something was found in a run that is being recorded, and at its end."""


def rail(name: str) -> str:
    """Returns link of a page in the rail."""
    return f"rail-{name}"
