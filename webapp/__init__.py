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
    from lanescope.webapp.analysis.checks import Report, check
    from lanescope.webapp.analysis.collectives import collectives
    from lanescope.webapp.analysis.communication import communication
    from lanescope.webapp.analysis.devices import temporal_breakdown
    from lanescope.webapp.analysis.diff import Comparison, compare, diff
    from lanescope.webapp.analysis.findings import Finding, findings
    from lanescope.webapp.analysis.gradients import gradient_norms, gradients
    from lanescope.webapp.analysis.overlap import overlap, overlap_rate, overlap_regions
    from lanescope.webapp.analysis.race_findings import races
    from lanescope.webapp.analysis.turns import forward_to_backward
    from lanescope.webapp.cluster import each_rank
    from lanescope.webapp.errors import RunError
    from lanescope.webapp.merging import merge
    from lanescope.webapp.packer import pack
    from lanescope.webapp.run import Run, Steps, Thread, open_run

_HOMES = {
    "analysis.checks": ("Report", "check"),
    "analysis.collectives": ("collectives",),
    "analysis.communication": ("communication",),
    "analysis.devices": ("temporal_breakdown",),
    "analysis.diff": ("Comparison", "compare", "diff"),
    "analysis.findings": ("Finding", "findings"),
    "analysis.gradients": ("gradient_norms", "gradients"),
    "analysis.race_findings": ("races",),
    "analysis.overlap": ("overlap", "overlap_rate", "overlap_regions"),
    "analysis.turns": ("forward_to_backward",),
    "cluster": ("each_rank",),
    "errors": ("RunError",),
    "merging": ("merge",),
    "packer": ("pack",),
    "run": ("Run", "Steps", "Thread", "open_run"),
}

__all__ = [
    "Comparison", "Finding", "Report", "Run", "RunError", "Steps", "Thread", "check", "collectives",
    "communication", "compare", "diff", "each_rank", "findings", "forward_to_backward",
    "gradient_norms", "gradients", "merge", "open_run", "overlap", "overlap_rate",
    "overlap_regions", "pack", "races", "temporal_breakdown",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
