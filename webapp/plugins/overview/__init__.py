"""Shows a run at a glance: figures, where a step goes, findings, checks, the recording."""

from lanescope.webapp.analysis.plugin import Page, Plugin

PLUGIN = Plugin(
    name="overview",
    depends=("time",),
    pages=(Page("overview", "Overview", order=0, former=("/checks",), height=900),),
)
