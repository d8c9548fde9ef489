"""Analyses threads: overlap, deadlocks, contexts, concurrent backward."""

from lanescope.webapp.analysis.plugin import Figure, Kind, Metric, Page, Plugin, Question
from lanescope.webapp.plugins.threads.ids import OVERLAP_RANK

PLUGIN = Plugin(
    name="threads",
    area="Threads",
    depends=("races",),
    kinds=(
        Kind("concurrent_backward", "races.md#backward-at-the-same-time"),
        Kind("overlap", "overlap.md", "overlap_findings:OverlapEvidence"),
        Kind("deadlock", "races.md#deadlocks"),
        Kind("blocked_loop", "threads.md#blocked-event-loops"),
        Kind("lost_context", "threads.md#lost-context"),
        Kind("lost_error", "threads.md#lost-errors"),
        Kind("lost_work", "threads.md#lost-work"),
        Kind("cuda_context", "threads.md#cuda-devices"),
    ),
    questions=(
        Question(
            "Concurrent backward into the same gradients",
            "concurrent_backward:concurrent_backwards",
            ("concurrent_backward",),
            order=60,
            native=True,
            misses="passes that did not overlap in this run",
        ),
        Question(
            "Overlapping backward passes of threads",
            "overlap_findings:overlapping_backwards",
            ("overlap",),
            order=70,
            needs="a backward on two threads",
            misses="passes that did not overlap in this run",
            recorded=False,
        ),
        Question(
            "Deadlocks between threads",
            "deadlocks:deadlocks",
            ("deadlock",),
            order=100,
            misses="loops other than asyncio's; locks written in C",
        ),
        Question(
            "Remote calls that wait for each other",
            "remote_calls:remote_calls",
            ("deadlock",),
            order=101,
            needs="two workers of torch.distributed.rpc, at rest for --hang-timeout",
            misses="workers with threads that wait for something else",
        ),
        Question(
            "Locks in opposite orders",
            "lock_order:opposite_orders",
            ("deadlock",),
            order=102,
            misses="locks that are never free as they are taken; orders of three locks and more",
        ),
        Question(
            "Threads that share a process group",
            "shared_groups:unordered_calls",
            ("collective_mismatch",),
            order=103,
            needs="collective calls of two threads of a rank",
            misses="threads whose calls a queue or an event happened to order",
        ),
        Question(
            "Blocked event loops",
            "blocked_loops:blocked_loops",
            ("blocked_loop",),
            order=105,
            needs="an event loop of asyncio whose tasks await timers, on Linux",
            misses="tasks that wait for anything but a timer; delays below 0.1 s; loops other than "
            "asyncio's",
        ),
        Question(
            "Lost context variables",
            "contexts:lost_contexts",
            ("lost_context",),
            order=110,
        ),
        Question(
            "Lost modes of torch",
            "lost_modes:lost_modes",
            ("lost_context",),
            order=112,
            misses="modes that are entered after the thread was started; default devices of "
            "threads that make no tensor by a factory of torch",
        ),
        Question(
            "Training within another function's no_grad()",
            "suspended_modes:suspended_modes",
            ("lost_context",),
            order=113,
            misses="set_grad_enabled(False) of the main thread; models in evaluation mode; modes "
            "that a generator holds as a library resumes it",
        ),
        Question(
            "Lost errors of threads and pools",
            "lost_errors:lost_errors",
            ("lost_error",),
            order=114,
            needs="a rank that ended by itself, or by an error of its main thread",
            misses="imap() of pools of multiprocessing; tasks whose future has a callback",
        ),
        Question(
            "Work that daemon threads and tasks leave undone",
            "unfinished_work:unfinished_work",
            ("lost_work",),
            order=115,
            needs="a queue whose items a daemon thread takes, or tasks of asyncio",
            misses="work of threads without a queue, or with a SimpleQueue; items that hold no "
            "tensor, array or dictionary; tasks with a while loop",
        ),
        Question(
            "Writes that stay in a forked process",
            "forked_copies:forked_copies",
            ("lost_work",),
            order=116,
            native=True,
            needs="level access; a forked process",
            misses="memory that is reached without torch; memory that the parent writes again, or "
            "does not read",
        ),
        Question(
            "Threads on the wrong CUDA device",
            "cuda_contexts:cuda_contexts",
            ("cuda_context",),
            order=120,
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
            unmeasured="record a training step: no thread was in backward",
            link="/threads",
            bound="below",
            limit=0.05,
            kind="overlap",
            evidence="rate",
        ),
    ),
    figures=(
        Figure(
            "Backward overlap",
            "headlines:backward_overlap",
            50,
            "/threads",
            metric="thread_overlap_rate",
        ),
    ),
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
