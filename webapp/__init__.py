"""Reads runs and answers questions about them.

    import lanescope.webapp as lw

    run = lw.open_run("runs/demo")
    run.events("op")                    # pyarrow table
    lw.overlap(run)                     # pandas data frame

Everything below is imported when it is first used: the command line does not wait for pandas.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lanescope.webapp.analysis.cluster import each_rank
    from lanescope.webapp.analysis.findings import Finding, findings
    from lanescope.webapp.analysis.gradients import gradient_norms, gradients
    from lanescope.webapp.bundles.merge_ranks import merge
    from lanescope.webapp.bundles.writer import pack
    from lanescope.webapp.plugins.checks.checks import Report, check
    from lanescope.webapp.plugins.collectives.collectives import collectives
    from lanescope.webapp.plugins.collectives.communication import communication
    from lanescope.webapp.plugins.collectives.devices import temporal_breakdown
    from lanescope.webapp.plugins.diff.diff import Comparison, compare, diff
    from lanescope.webapp.plugins.gradients.backward_threads import added_by_layer, backward_threads
    from lanescope.webapp.plugins.gradients.low_precision import low_precision
    from lanescope.webapp.plugins.gradients.rank_map import rank_map
    from lanescope.webapp.plugins.races.race_findings import races
    from lanescope.webapp.plugins.threads.forward_backward_gap import forward_to_backward
    from lanescope.webapp.plugins.threads.overlap import overlap, overlap_rate, overlap_regions
    from lanescope.webapp.runs.errors import RunError
    from lanescope.webapp.runs.run import Run, Steps, Thread, open_run

_HOMES = {
    "plugins.gradients.backward_threads": ("added_by_layer", "backward_threads"),
    "plugins.gradients.low_precision": ("low_precision",),
    "plugins.gradients.rank_map": ("rank_map",),
    "plugins.checks.checks": ("Report", "check"),
    "plugins.collectives.collectives": ("collectives",),
    "plugins.collectives.communication": ("communication",),
    "plugins.collectives.devices": ("temporal_breakdown",),
    "plugins.diff.diff": ("Comparison", "compare", "diff"),
    "analysis.findings": ("Finding", "findings"),
    "analysis.gradients": ("gradient_norms", "gradients"),
    "plugins.races.race_findings": ("races",),
    "plugins.threads.overlap": ("overlap", "overlap_rate", "overlap_regions"),
    "plugins.threads.forward_backward_gap": ("forward_to_backward",),
    "analysis.cluster": ("each_rank",),
    "runs.errors": ("RunError",),
    "bundles.merge_ranks": ("merge",),
    "bundles.writer": ("pack",),
    "runs.run": ("Run", "Steps", "Thread", "open_run"),
}

__all__ = [
    "Comparison",
    "Finding",
    "Report",
    "Run",
    "RunError",
    "Steps",
    "Thread",
    "added_by_layer",
    "backward_threads",
    "check",
    "collectives",
    "communication",
    "compare",
    "diff",
    "each_rank",
    "findings",
    "forward_to_backward",
    "gradient_norms",
    "gradients",
    "low_precision",
    "merge",
    "open_run",
    "overlap",
    "overlap_rate",
    "overlap_regions",
    "pack",
    "races",
    "rank_map",
    "temporal_breakdown",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
