"""Analyses threads: overlap, deadlocks, contexts, concurrent backward."""

from lanescope.webapp.analysis.plugin import Figure, Kind, Metric, Page, Plugin, Question
from lanescope.webapp.plugins.threads.ids import OVERLAP_RANK

PLUGIN = Plugin(
    name="threads",
    depends=("races",),
    kinds=(
        Kind("concurrent_backward", "races.md#backward-at-the-same-time"),
        Kind("overlap", "overlap.md", "overlap_findings:OverlapEvidence"),
        Kind("deadlock", "races.md#deadlocks"),
        Kind("lost_context", "threads.md#lost-context"),
        Kind("cuda_context", "threads.md#cuda-devices"),
    ),
    questions=(
        Question(
            "Concurrent backward into the same gradients",
            "concurrent_backward:concurrent_backwards",
            ("concurrent_backward",),
            order=60,
            area="Threads",
            recorded=True,
            native=True,
            misses="passes that did not overlap in this run",
        ),
        Question(
            "Overlapping backward passes of threads",
            "overlap_findings:overlapping_backwards",
            ("overlap",),
            order=70,
            area="Threads",
            needs="a backward on two threads",
            misses="passes that did not overlap in this run",
        ),
        Question(
            "Deadlocks between threads",
            "deadlocks:deadlocks",
            ("deadlock",),
            order=100,
            area="Threads",
            recorded=True,
            misses="loops other than asyncio's; locks written in C",
        ),
        Question(
            "Lost context variables",
            "contexts:lost_contexts",
            ("lost_context",),
            order=110,
            area="Threads",
            recorded=True,
        ),
        Question(
            "Lost modes of torch",
            "lost_modes:lost_modes",
            ("lost_context",),
            order=112,
            area="Threads",
            recorded=True,
            misses="modes that are entered after the thread was started; default devices of "
            "threads that make no tensor by a factory of torch",
        ),
        Question(
            "Threads on the wrong CUDA device",
            "cuda_contexts:cuda_contexts",
            ("cuda_context",),
            order=120,
            area="Threads",
            recorded=True,
            needs="a GPU",
        ),
    ),
    tables={"overlap": "overlap:overlap"},
    functions={
        "overlap_rate": "overlap:overlap_rate",
        "overlap_regions": "overlap:overlap_regions",
        "forward_to_backward": "forward_backward_gap:forward_to_backward",
    },
    metrics=(
        Metric(
            "thread_overlap_rate",
            "overlap:overlap_rate",
            "threads of a rank in backward at the same time",
            order=10,
            area="Threads",
            unmeasured="record a training step: no thread was in backward",
            link="/threads",
            bound="below",
            limit=0.05,
            kind="overlap",
            evidence="rate",
        ),
    ),
    figures=(Figure("Backward overlap", "headlines:backward_overlap", 50, "/threads"),),
    pages=(
        Page(
            "threads",
            "Threads",
            order=40,
            former=("/overlap",),
            tab="Overlap",
            selects={OVERLAP_RANK: "rank"},
            kinds=("overlap", "lost_context", "cuda_context"),
            height=1240,
            body="page:body",
        ),
    ),
    routes={"overlap": "timeline_overlap:overlap_answer"},
)
