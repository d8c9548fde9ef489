"""Finds files that several ranks write, and files that a rank reads before another has written
them.

torch.save writes in place: who reads meanwhile, or writes as well, meets half a file. Files are the
same where host and path are. That one call began before another had ended is proof, up to the
uncertainty of the clocks. A rank that read the file before it was written did so by mistake where
the rank that wrote it read it afterwards, and neither began a collective between these calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from lanescope.collector.format.loop_names import LOADED_FILE, SAVED_FILE
from lanescope.webapp.analysis.collective_calls import rank_calls
from lanescope.webapp.analysis.fault_series import ranks_of
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.nothing_to_check import need_ranks
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.analysis.process_exits import own_processes
from lanescope.webapp.runs import units
from lanescope.webapp.runs.rank_groups import ranks_in
from lanescope.webapp.runs.run import Run

_BARRIER = "Let the others wait for it (torch.distributed.barrier()) before they read it."


def shared_files(run: Run) -> list[Finding]:
    """Returns findings of kind `shared_file`, one per file and pair of lines. Raises
    NotApplicable."""
    need_ranks(run)
    saved, loaded = _uses(run, SAVED_FILE), _uses(run, LOADED_FILE)
    found: dict[tuple[str, ...], Finding] = {}
    for key, writes in saved.groupby(["host", "path"], sort=False):
        reads = loaded[(loaded["host"] == key[0]) & (loaded["path"] == key[1])]
        for one in (*_written_together(run, writes), *_read_early(run, writes, reads)):
            found.setdefault((one.where or "", str(one.evidence["file"])), one)
    return list(found.values())


def _uses(run: Run, prefix: str) -> pd.DataFrame:
    """Calls by time: columns of values, host, where, path, begin and end (ns), and how many
    collectives their rank had begun by then."""
    rows = logged(run, None, prefix=prefix).sort_values("time_ns", ignore_index=True)
    hosts = {rank: one["host"] for rank, one in own_processes(run).items()}
    names = [str(name).partition("/") for name in rows["name"]]
    rows["where"], rows["path"] = [one[0] for one in names], [one[2] for one in names]
    rows["host"] = [hosts.get(int(rank), "") for rank in rows["rank"]]
    rows["end"] = rows["time_ns"].astype(np.int64)
    rows["begin"] = rows["end"] - (rows["value"] * 1e9).astype(np.int64)
    starts = {int(rank): rank_calls(run, int(rank))["start_ns"] for rank in rows["rank"].unique()}
    rows["calls"] = [
        int((starts[int(row.rank)] < row.begin).sum()) for row in rows.itertuples(index=False)
    ]
    return rows


def _written_together(run: Run, writes: pd.DataFrame) -> Iterator[Finding]:
    """Writes of one file by several ranks that overlap."""
    for one, other in _pairs(writes, writes):
        if one.rank < other.rank and _overlap(run, one, other):
            ranks = ranks_of(writes)
            title = (
                f"{units.sentence(ranks_in(run, ranks))} write the same file at the same time: "
                f"torch.save at {one.where} writes {_name(one)}, and what the file holds in the "
                "end may be a mixture. Let one rank write it, and the others wait "
                "(torch.distributed.barrier()), or put the rank into its name."
            )
            yield _finding(run, one, title, ranks)
            return


def _read_early(run: Run, writes: pd.DataFrame, reads: pd.DataFrame) -> Iterator[Finding]:
    """Reads of a file that another rank has not written yet."""
    for write, read in _pairs(writes, reads):
        if write.rank == read.rank or write.calls != read.calls:
            continue
        ranks = tuple(sorted((int(write.rank), int(read.rank))))
        said = (
            f"Rank {read.rank} reads {_name(read)} at {read.where} "
            + ("while" if _overlap(run, write, read) else "before")
            + f" rank {write.rank} writes it (torch.save at {write.where})"
        )
        if _overlap(run, write, read):
            yield _finding(run, read, f"{said}, and may meet half a file. {_BARRIER}", ranks)
        elif read.end < write.begin and _reads_it(reads, write):
            yield _finding(run, read, f"{said}, and so gets an old one or none. {_BARRIER}", ranks)


def _reads_it(reads: pd.DataFrame, write: Any) -> bool:
    """Whether the rank that wrote a file reads it before its next collective."""
    own = reads[(reads["rank"] == write.rank) & (reads["calls"] == write.calls)]
    return bool((own["begin"] >= write.end).any())


_MAX_CALLS = 100
"""Calls with one file that are compared."""


def _pairs(one: pd.DataFrame, other: pd.DataFrame) -> Iterator[tuple[Any, Any]]:
    for left in one.head(_MAX_CALLS).itertuples(index=False):
        for right in other.head(_MAX_CALLS).itertuples(index=False):
            yield left, right


def _overlap(run: Run, one: Any, other: Any) -> bool:
    margin = 3 * run.clock_uncertainty_ns
    return run.clock_calibrated and max(one.begin, other.begin) + margin < min(one.end, other.end)


def _name(row: Any) -> str:
    return str(row.path).rpartition("/")[2]


def _finding(run: Run, row: Any, title: str, ranks: tuple[int, ...]) -> Finding:
    return finding_at(
        run,
        int(row.rank),
        pd.Series(row._asdict()),
        kind="shared_file",
        title=title,
        ranks=ranks,
        where=row.where or None,
        evidence={"file": row.path},
    )
