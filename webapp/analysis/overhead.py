"""How much memory did the recorder add?"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector import schema
from lanescope.webapp.run import Run

RESIDENT = "lanescope/rss"


def memory_overhead(run: Run) -> float | None:
    """Memory of the recorder over that of the program without it, at its largest in any process.

    Both are measured in the recorded process, at steps 0, 1, 2, 4, 8, ...: the recorder's part r
    (what its start added, and its mapped journals) and the resident set s; r / (s - r). None where
    no step was recorded.
    """
    names = [schema.RECORDER_MEMORY, RESIDENT]
    shares = []
    for rank in run.ranks:
        rows = run.events("value", rank, columns=["name", "value", "step", "thread"])
        texts = rows["name"].cast(pa.string())
        rows = rows.filter(pc.is_in(texts, pa.array(names)))
        total = {}
        for row in rows.to_pylist():
            key = (row["thread"], row["step"])
            if row["name"] == RESIDENT:
                total[key] = row["value"]
            elif total.get(key, 0) > row["value"]:
                shares.append(row["value"] / (total[key] - row["value"]))
    return max(shares, default=None)
