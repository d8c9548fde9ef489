"""The figure of the first page about gradients: the norm of the whole gradient."""

from __future__ import annotations

import numpy as np

from lanescope.webapp.analysis.headlines import Headline
from lanescope.webapp.analysis.parameter_history import gradient_norms
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run


def gradient_norm(run: Run) -> Headline | None:
    """Returns the last norm of the whole gradient, on the first rank that has one."""
    if not run.counts["gradient"]:
        return None
    norms = gradient_norms(run)
    mine = norms.loc[norms["rank"] == norms["rank"].iloc[0], "norm"].to_numpy(float)
    first, last = float(mine[0]), float(mine[-1])
    note = f"from {units.number(first)}"
    return Headline(units.number(last), note, [*mine], "" if np.isfinite(last) else "bad")
