"""Checks a run: overview, limits, environment."""

from lanescope.webapp.analysis.plugin import Kind, Metric, Plugin, Question

PLUGIN = Plugin(
    name="checks",
    kinds=(Kind("environment", "checks.md#settings", "environment:EnvironmentEvidence"),),
    questions=(
        Question("Settings that cost time", "environment:environment", ("environment",), order=240),
    ),
    metrics=(
        Metric(
            "memory_overhead",
            "overhead:memory_overhead",
            "memory that the recorder added",
            order=40,
            unmeasured="record a training step",
            bound="below",
            limit=0.15,
        ),
    ),
)
