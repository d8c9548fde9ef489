"""How long does a thread take from the end of its forward pass to the start of backward?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.runs.run import Run

_COLUMNS = ("rank", "thread", "step", "forward_end_ns", "backward_start_ns", "window_ns")


def forward_to_backward(run: Run) -> pd.DataFrame:
    """Returns one row per backward of a thread that had a forward phase before it.

    rank, thread, step, forward_end_ns and backward_start_ns (from the start of the run), and
    window_ns between them: the loss, and all that another thread may still do to the graph. The
    forward phase is the last that the thread ended before, since its backward before that one.
    Backwards within others (checkpointing) are left out.
    """
    columns = ["start_ns", "duration_ns", "kind", "step", "rank", "thread"]
    phases = to_frame(run.events("phase", columns=columns))
    phases = phases[phases["duration_ns"].notna() | (phases["kind"] == "backward")]
    found = []
    for (rank, thread), own in phases.groupby(["rank", "thread"], sort=True):
        forward = own[own["kind"] == "forward"]
        ends = np.sort((forward["start_ns"] + forward["duration_ns"]).to_numpy(np.int64))
        since = -1
        backward = own[own["kind"] == "backward"].sort_values("start_ns")
        for row in backward.itertuples():
            if row.start_ns < since:
                continue
            at = int(np.searchsorted(ends, row.start_ns, side="right")) - 1
            if at >= 0 and ends[at] > since:
                end = int(ends[at])
                found.append((rank, thread, row.step, end, row.start_ns, row.start_ns - end))
            length = run.duration_ns if np.isnan(row.duration_ns) else row.duration_ns
            since = row.start_ns + int(length)
    return pd.DataFrame(found, columns=list(_COLUMNS))
