"""How much memory did the recorder add?"""

from __future__ import annotations

from lanescope.collector.format import schema
from lanescope.webapp.analysis.cluster import per_rank
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.runs.run import Run

RESIDENT = "lanescope/rss"


def memory_overhead(run: Run) -> float | None:
    """Returns memory of the recorder over that of the program without it, at its largest in any
    process.

    Both are measured in the recorded process, at steps 0, 1, 2, 4, 8, ...: the recorder's part r
    (what its start added, and its mapped journals) and the resident set s; r / (s - r). None where
    no step was recorded.
    """
    shares = [_of_rank(run, rank) for rank in run.ranks]
    return max((one for one in shares if one is not None), default=None)


@per_rank
def _of_rank(run: Run, rank: int) -> float | None:
    shares, total = [], {}
    for row in logged(run, rank, schema.RECORDER_MEMORY, RESIDENT).itertuples():
        key = (row.thread, row.step)
        if row.name == RESIDENT:
            total[key] = row.value
        elif total.get(key, 0) > row.value:
            shares.append(float(row.value / (total[key] - row.value)))
    return max(shares, default=None)
