"""Lays out the page around the timeline."""

from lanescope.webapp.analysis.plugin import Page, Plugin

PLUGIN = Plugin(
    name="timeline_page",
    depends=("collectives", "flame", "threads"),
    pages=(Page("timeline", "Timeline", order=5, stays=True),),
    routes={"group_times": "group_times:group_times"},
)
