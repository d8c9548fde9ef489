"""Answers SQL queries in a locked process."""

from lanescope.webapp.analysis.plugin import Page, Plugin

REFUSED = 3
"""Exit status of a query's process where the question has no answer."""

PLUGIN = Plugin(
    name="sql",
    pages=(Page("sql", "SQL", order=80, height=820),),
)
