"""How large are the gradients, per parameter and step?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.runs.run import Run

_COLUMNS = (
    "rank",
    "thread",
    "step",
    "time_ns",
    "parameter",
    "norm",
    "numel",
    "dtype",
    "device",
    "optimizer",
)


def gradients(run: Run) -> pd.DataFrame:
    """Returns one row per rank, step and parameter, in the order of recording.

    rank, thread, step, time_ns (from the start of the run), parameter, norm (L2 norm of the
    gradient as the optimizer saw it, float64; NaN where the gradient was None, see `missing`),
    numel, dtype, device, optimizer, missing (True: there was no gradient, False: `norm` is what
    was recorded, be it NaN).
    """
    events = run.events("gradient", columns=_COLUMNS)
    frame = to_frame(events)
    frame["missing"] = events["norm"].is_null().to_numpy()
    return frame


def gradient_norms(run: Run) -> pd.DataFrame:
    """Returns the norm of the whole gradient per rank and step: sqrt(sum over parameters of
    norm^2).

    Columns rank, step, norm, parameters (with a gradient), missing (without one), time_ns (last of
    the step). A parameter without gradient adds nothing; a NaN or infinite one makes the norm so.
    On a rank that holds shards of parameters it is the norm of that rank's shard.
    """
    frame = gradients(run)
    frame["square"] = np.where(frame["missing"], 0.0, frame["norm"] ** 2)
    # min_count and skipna would both hide a NaN gradient, which is what one looks for.
    frame["nan"] = ~frame["missing"] & frame["norm"].isna()
    groups = frame.groupby(["rank", "step"], sort=True)
    table = pd.DataFrame(
        {
            "norm": np.sqrt(groups["square"].sum()),
            "parameters": groups["missing"].count() - groups["missing"].sum(),
            "missing": groups["missing"].sum(),
            "time_ns": groups["time_ns"].max(),
        }
    )
    table.loc[groups["nan"].any(), "norm"] = np.nan
    return table.reset_index().astype({"parameters": "int64", "missing": "int64"})
