"""Shows the autograd graph, and finds where gradients end."""

from lanescope.webapp.analysis.plugin import Kind, Metric, Page, Plugin, Question
from lanescope.webapp.plugins.autograd_graph.ids import GRAPH_RANK

PLUGIN = Plugin(
    name="autograd_graph",
    area="Gradients",
    kinds=(Kind("untraceable_graph", "checks.md#graph-traceability"),),
    questions=(
        Question(
            "Autograd nodes without their operator",
            "traceability:untraceable_graphs",
            ("untraceable_graph",),
            order=90,
            native=True,
            misses="graphs of steps between 1, 2, 4, 8, ...",
        ),
        Question(
            "Backward passes that go through all before them",
            "nested_passes:nested_passes",
            ("growth",),
            order=193,
            native=True,
            needs="5 backward passes in a row that add to gradients",
            misses="passes after the first 100 of a thread; backward on a device",
        ),
    ),
    metrics=(
        Metric(
            "graph_traceability",
            "traceability:graph_traceability",
            "autograd nodes tied to their operators",
            order=30,
            unmeasured="record a backward pass with the native engine",
            bound="at least",
            limit=1.0,
            kind="untraceable_graph",
        ),
    ),
    pages=(
        Page(
            "graph",
            "Graph",
            order=60,
            within="gradients",
            kinds=("untraceable_graph",),
            selects={GRAPH_RANK: "rank"},
            height=960,
        ),
    ),
)
