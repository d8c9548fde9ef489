"""Finds writes of a forked process that its parent never sees, though it reads that memory later.

A forked process has a copy of its parent's memory, unless the memory is shared (share_memory_()).
What it writes there stays there: parameters that it trains, a tensor that it fills. That the parent
counts on it is seen by what it does: after the last of these writes it reads this memory, which it
has not written itself since the fork.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format.names import SHARED_ADDRESS
from lanescope.webapp.analysis.access_site import CallSite, CallSites, storage_names
from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.findings import Finding, NotApplicable, finding_at
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.nothing_to_check import need_accesses
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.analysis.process_exits import own_processes
from lanescope.webapp.analysis.stack_frames import frames_of, own_place
from lanescope.webapp.plugins.races.access_table import outermost_accesses
from lanescope.webapp.runs.run import Run

_COLUMNS = ["start_ns", "duration_ns", "depth", "storage", "write", "birth"]

_MAX_PROCESSES = 16
"""Processes of a rank that are looked at."""

_MAX_SHARED = 4096
"""So many shared storages are known of a process: where it has more, any other may be shared."""

_IN_PLACE = "_"
"""How operators end that write to what they are given."""

_COUNTED = "num_batches_tracked"
"""A buffer that batch normalisation counts up in each forward in training, and does not use."""

_LOADER = "torch/utils/data/_utils/worker.py"


def forked_copies(run: Run) -> list[Finding]:
    """Returns findings of kind `lost_work`, one per rank and line. Raises NotApplicable."""
    need_accesses(run)
    if not any(one["role"] == "child" for one in run.manifest["processes"]):
        raise NotApplicable("no process was started by another one")
    return [finding for rank in run.ranks for finding in _of_rank(run, rank)]


def _of_rank(run: Run, rank: int) -> list[Finding]:
    own = own_processes(run).get(rank)
    if own is None:  # it recorded nothing, so it read nothing
        return []
    parent = own["pid"]
    children = [
        one["pid"]
        for one in run.manifest["processes"]
        if one["parent_pid"] == parent and one["role"] == "child"
    ][:_MAX_PROCESSES]
    shared = {int(one) for one in logged(run, rank, SHARED_ADDRESS)["value"]}
    if len(shared) >= _MAX_SHARED:
        return []
    writes = [_inherited(run, rank, pid, shared) for pid in children]
    writes = [one for one in writes if not one.empty]
    if not writes:
        return []
    every = pd.concat(writes, ignore_index=True)
    names = storage_names(run, rank)
    every = every[[_COUNTED not in names.get(int(one), "") for one in every["storage"]]]
    reads = _reads(run, rank, parent, every)
    found: dict[str, list[Any]] = {}
    for row in every[every["storage"].isin(reads["storage"])].itertuples(index=False):
        found.setdefault(str(row.where), []).append(row)
    return [_finding(run, rank, rows, reads) for rows in found.values()]


def _inherited(run: Run, rank: int, pid: int, shared: set[int]) -> pd.DataFrame:
    """In-place writes of a process to memory that it did not make, the last one of each storage:
    start_ns, end_ns, storage, thread, step, where, pid, since (its first access, ns)."""
    parts = []
    for thread in (one.thread for one in run.threads_of(rank) if one.pid == pid):
        rows = run.events("access", rank, thread, columns=_COLUMNS)
        columns = outermost_accesses({name: rows[name].to_numpy() for name in _COLUMNS})
        parts.append(pd.DataFrame(columns).assign(thread=thread))
    every = pd.concat(parts) if parts else pd.DataFrame(columns=[*_COLUMNS, "thread"])
    if every.empty:
        return every
    born = set(every.loc[every["birth"].astype(bool), "storage"])
    known = every["storage"].isin(born | shared) | (every["storage"] % 2 == 1)
    rows = every[every["write"].astype(bool) & ~known].sort_values("start_ns")
    rows = rows.drop_duplicates("storage", keep="last")
    rows = rows.assign(end_ns=rows["start_ns"] + rows["duration_ns"], pid=pid)
    rows["since"] = int(every["start_ns"].min())
    placed = [_placed(run, rank, row) for row in rows.itertuples(index=False)]
    rows["where"], rows["step"] = [one[0] for one in placed], [one[1] for one in placed]
    return rows[rows["where"] != ""]


def _placed(run: Run, rank: int, row: Any) -> tuple[str, int]:
    """The line of the program that wrote, and its step; empty for other than an in-place operator,
    and in a worker of a DataLoader."""
    site, step = _site(run, rank, row)
    frames = frames_of(run, rank, site.stack)
    if not site.op.endswith(_IN_PLACE) or any(_LOADER in frame["file"] for frame in frames):
        return "", 0
    return own_place(run, rank, site.stack) or "", step


def _site(run: Run, rank: int, row: Any) -> tuple[CallSite, int]:
    """Where the operator of an access was called, and its step."""
    sites, start = CallSites(), int(row.start_ns)
    at, depth = np.array([start]), np.array([int(row.depth)])
    numbers, steps = sites.of(run, rank, str(row.thread), at, depth, (start, start + 1))
    return sites.known[int(numbers[0])], int(steps[0])


def _reads(run: Run, rank: int, parent: int, writes: pd.DataFrame) -> pd.DataFrame:
    """The parent's first read of each storage after the last write of a process to it, where the
    parent made the storage before the fork and has not written it since: storage, thread,
    start_ns, depth."""
    wanted = pa.array(sorted(set(writes["storage"])), pa.int64())
    parts = []
    for thread in (one.thread for one in run.threads_of(rank) if one.pid == parent):
        rows = run.events("access", rank, thread, columns=_COLUMNS)
        parts.append(to_frame(rows.filter(pc.is_in(rows["storage"], wanted))).assign(thread=thread))
    every = pd.concat(parts).sort_values("start_ns") if parts else pd.DataFrame(columns=_COLUMNS)
    found = []
    for storage, own in every.groupby("storage"):
        theirs = writes[writes["storage"] == storage]
        changed = own["write"].astype(bool) | own["birth"].astype(bool)
        before = own["start_ns"] < theirs["since"].min()
        later = own[~changed & (own["start_ns"] > theirs["end_ns"].max())]
        if own.loc[before, "birth"].any() and not changed[~before].any() and len(later):
            found.append(later.iloc[0])
    return pd.DataFrame(found, columns=[*_COLUMNS, "thread"])


def _finding(run: Run, rank: int, rows: list[Any], reads: pd.DataFrame) -> Finding:
    names = storage_names(run, rank)
    tensors = list(dict.fromkeys(names.get(int(one.storage), "a tensor") for one in rows))
    pids = sorted({int(one.pid) for one in rows})
    first = rows[0]
    read = reads[reads["storage"] == first.storage].iloc[0]
    at = own_place(run, rank, _site(run, rank, read)[0].stack)
    more = len(tensors) - 1
    who = f"Process {pids[0]}" + (f" and {len(pids) - 1} more" if len(pids) > 1 else "")
    return finding_at(
        run,
        rank,
        pd.Series(first._asdict()),
        kind="lost_work",
        confidence="likely",
        title=f"{who}, forked by main, {'write' if len(pids) > 1 else 'writes'} to {tensors[0]}"
        f"{f' and {more} more' if more else ''} at {first.where}, and main reads the old values"
        f"{at_place(at)} afterwards: a forked process has its own copy of memory that "
        "is not shared. Call share_memory() of the model, or share_memory_() of the tensor, before "
        "the process starts, or send the result back through a queue.",
        where=first.where,
        evidence={"cause": "forked_copy", "tensors": tensors, "processes": pids, "read_at": at},
    )
