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
    from lanescope.webapp.analysis.checks import Report as Report
    from lanescope.webapp.analysis.checks import check as check
    from lanescope.webapp.analysis.cluster import each_rank as each_rank
    from lanescope.webapp.analysis.findings import Finding as Finding
    from lanescope.webapp.analysis.findings import findings as findings
    from lanescope.webapp.analysis.parameter_history import gradient_norms as gradient_norms
    from lanescope.webapp.analysis.parameter_history import gradients as gradients
    from lanescope.webapp.bundles.merge_ranks import merge as merge
    from lanescope.webapp.bundles.writer import pack as pack
    from lanescope.webapp.plugins.collectives.collectives import collectives as collectives
    from lanescope.webapp.plugins.collectives.communication import communication as communication
    from lanescope.webapp.plugins.collectives.devices import (
        temporal_breakdown as temporal_breakdown,
    )
    from lanescope.webapp.plugins.diff.diff import Comparison as Comparison
    from lanescope.webapp.plugins.diff.diff import compare as compare
    from lanescope.webapp.plugins.diff.diff import diff as diff
    from lanescope.webapp.plugins.gradients.backward_threads import added_by_layer as added_by_layer
    from lanescope.webapp.plugins.gradients.backward_threads import (
        backward_threads as backward_threads,
    )
    from lanescope.webapp.plugins.gradients.not_finite import low_precision as low_precision
    from lanescope.webapp.plugins.gradients.rank_map import rank_map as rank_map
    from lanescope.webapp.plugins.races.race_findings import races as races
    from lanescope.webapp.plugins.threads.forward_backward_gap import (
        forward_to_backward as forward_to_backward,
    )
    from lanescope.webapp.plugins.threads.overlap import overlap as overlap
    from lanescope.webapp.plugins.threads.overlap import overlap_rate as overlap_rate
    from lanescope.webapp.plugins.threads.overlap import overlap_regions as overlap_regions
    from lanescope.webapp.runs.errors import RunError as RunError
    from lanescope.webapp.runs.run import Run as Run
    from lanescope.webapp.runs.run import Steps as Steps
    from lanescope.webapp.runs.run import Thread as Thread
    from lanescope.webapp.runs.run import open_run as open_run
    from lanescope.webapp.server.embedded import view as view

_OWN = {
    "Finding": "analysis.findings",
    "Report": "analysis.checks",
    "Run": "runs.run",
    "RunError": "runs.errors",
    "Steps": "runs.run",
    "Thread": "runs.run",
    "check": "analysis.checks",
    "each_rank": "analysis.cluster",
    "findings": "analysis.findings",
    "merge": "bundles.merge_ranks",
    "open_run": "runs.run",
    "pack": "bundles.writer",
    "view": "server.embedded",
}
"""Name -> module, of what belongs to no plugin."""


def _offered() -> dict[str, str]:
    """Every name -> module:name. The records of the plugins are read when it is first asked for."""
    from lanescope.webapp.analysis.plugin import functions

    own = {name: f"{__name__}.{module}:{name}" for name, module in _OWN.items()}
    return own | functions()


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(_offered())
    entry = None if name.startswith("_") else _offered().get(name)
    if entry is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, inner = entry.partition(":")
    try:
        return getattr(importlib.import_module(module), inner)
    except ModuleNotFoundError as error:
        from lanescope.webapp.runs.extras import missing_extra

        missing = missing_extra(error, f"lanescope.webapp.{name}")
        if missing is None:
            raise
        raise ModuleNotFoundError(str(missing), name=error.name) from None


def __dir__() -> list[str]:
    return sorted([*globals(), *_offered()])
