"""Shows what tensors keep in memory over time, and what the peak consists of."""

from lanescope.webapp.analysis.plugin import Page, Plugin

PLUGIN = Plugin(
    name="memory",
    depends=("races", "time"),
    tables={"memory": "usage:memory", "memory_peak": "usage:memory_peak"},
    changes={"memory_changes": "changes:memory_changes"},
    pages=(
        Page(
            "memory",
            "Memory",
            order=9,
            within="time",
            body="page:body",
            height=1000,
            selects={"memory-rank": "rank"},
        ),
    ),
)
