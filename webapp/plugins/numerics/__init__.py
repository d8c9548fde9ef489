"""Finds NaN and unrecorded writes in recorded values."""

from lanescope.webapp.analysis.plugin import Kind, Plugin, Question

PLUGIN = Plugin(
    name="numerics",
    area="Numerics",
    kinds=(Kind("nan", "values.md"), Kind("unrecorded_write", "values.md")),
    questions=(
        Question(
            "NaN made from finite numbers",
            "values:not_finite",
            ("nan",),
            order=200,
            needs="level numerics",
            misses="values that never leave a fused kernel",
        ),
        Question(
            "Unrecorded writes",
            "values:unrecorded_writes",
            ("unrecorded_write",),
            order=210,
            needs="level numerics",
            misses="writes that leave the values as they were",
        ),
    ),
)
