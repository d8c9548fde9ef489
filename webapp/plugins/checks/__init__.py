"""Checks a run: overview, limits, environment."""

from lanescope.webapp.analysis.plugin import Kind, Metric, Plugin, Question

PLUGIN = Plugin(
    name="checks",
    kinds=(Kind("environment", "checks.md#settings", "environment:EnvironmentEvidence"),),
    questions=(
        Question(
            "Settings that cost time",
            "environment:environment",
            ("environment",),
            order=240,
            needs="5 training steps",
            misses="settings outside of torch",
            recorded=False,
        ),
        Question(
            "Reductions between accumulated gradients",
            "accumulation:accumulation",
            ("environment",),
            order=245,
            area="Communication",
            needs="all_reduce in backward, as DistributedDataParallel does it; 4 training steps",
            misses="sharded gradients; backward passes that share less than half of the parameters",
        ),
        Question(
            "Running statistics that ranks do not share",
            "buffers:buffers",
            ("environment",),
            order=247,
            area="Communication",
            needs="gradients reduced in backward; BatchNorm in training mode at a sampled step",
            misses="buffers of other modules",
        ),
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
