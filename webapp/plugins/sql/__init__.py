"""Answers SQL queries in a locked process."""

from lanescope.webapp.analysis.plugin import Page, Plugin

PLUGIN = Plugin(
    name="sql",
    pages=(Page("sql", "SQL", order=80, height=820),),
)
