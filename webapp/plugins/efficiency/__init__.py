"""Shows how much arithmetic operators do, and at which rate."""

from lanescope.webapp.analysis.plugin import Page, Plugin

PLUGIN = Plugin(
    name="efficiency",
    depends=("time",),
    tables={"efficiency": "rates:efficiency", "step_flops": "rates:step_flops"},
    changes={"efficiency_changes": "changes:efficiency_changes"},
    pages=(
        Page(
            "efficiency",
            "Efficiency",
            order=10,
            within="time",
            height=1000,
            body="page:body",
            selects={"efficiency-rank": "rank"},
        ),
    ),
)
