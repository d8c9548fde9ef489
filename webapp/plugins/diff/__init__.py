"""Compares runs: first difference, values, timing, repetitions."""

from lanescope.webapp.analysis.plugin import Kind, Metric, Page, Plugin, Question
from lanescope.webapp.plugins.diff.ids import DIFF_RANK

PLUGIN = Plugin(
    name="diff",
    area="Repeatability",
    kinds=(Kind("divergence", "diff.md"), Kind("nondeterminism", "diff.md#repeats")),
    questions=(
        Question(
            "Differences from the baseline",
            "divergence:divergence",
            ("divergence",),
            order=0,
            baseline=True,
            needs="--baseline; level numerics to compare values",
            misses="values that no level recorded",
            recorded=False,
        ),
        Question(
            "Nondeterminism between repeated runs",
            "repeats:nondeterminism",
            ("nondeterminism",),
            order=220,
            needs="lanescope repeat",
            misses="differences that did not occur in the repetitions",
            recorded=False,
        ),
    ),
    functions={
        "Comparison": "diff:Comparison",
        "compare": "diff:compare",
        "diff": "diff:diff",
    },
    metrics=(
        Metric(
            "gradient_fluctuation",
            "repeats:gradient_fluctuation",
            "spread of gradient norms over repeated runs",
            order=20,
            unmeasured="record with lanescope repeat -n 10 -- COMMAND",
            link="/compare",
            bound="at most",
            limit=1e-5,
            kind="nondeterminism",
            share=False,
        ),
    ),
    pages=(
        Page(
            "compare",
            "Compare",
            order=70,
            former=("/diff",),
            tab="Baseline",
            selects={DIFF_RANK: "rank"},
            kinds=("divergence",),
            height=1640,
        ),
        Page(
            "repeat",
            "Repeats",
            order=90,
            within="compare",
            kinds=("nondeterminism",),
            layout="page_repeat:layout",
            register="page_repeat:register",
            shown="repeats:repetition_of",
            height=1180,
        ),
    ),
    lanes="timeline_lanes:open_beside",
    routes={"difference": "differences:next_difference"},
    span_facts="differences:difference_facts",
)
