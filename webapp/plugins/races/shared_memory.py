"""Finds races between processes: both write common bytes of memory that they share.

Nothing recorded says which process waits for which, so every means of it counts: of two writes the
earlier one may come before the later one for a reason only if its process did anything after it
that another can wait for (a lock, a queue, an event, a pipe: any sync event), before the other did
anything of the kind for the last time. What one process did before the other began, or after it
ended, is in order. Memory is the same where its file is; forked processes share what their parent
did. Two copies of memory onto itself (a model loads a shared state whose memory it has) change
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format.names import SHARED_ADDRESS, SHARED_FILE
from lanescope.webapp.analysis.access_site import CallSites, MemoryAccess, storage_names
from lanescope.webapp.analysis.arrow_columns import having, to_frame
from lanescope.webapp.analysis.stack_frames import frame_texts
from lanescope.webapp.plugins.races.access_table import outermost_accesses
from lanescope.webapp.plugins.races.races import Race, processes_of
from lanescope.webapp.plugins.races.racing_pairs import Span, share_bytes
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import BoolArray, Int64Array

MAX_RANGES = 64
"""Ranges of bytes of a process that are compared, per storage."""

_RANGE = ["offset", "bytes", "run", "stride"]
_COLUMNS = ["start_ns", "duration_ns", "depth", "storage", *_RANGE, "write", "birth"]
_LAST = 2**62
_COPIES = frozenset({"aten::copy_", "aten::_foreach_copy_"})


@dataclass(frozen=True)
class _Process:
    """A process of a rank that writes to shared memory."""

    pid: int
    writes: pd.DataFrame  # _COLUMNS, thread, onto_itself, end_ns, file: by start
    since: Int64Array  # ends of its sync events, sorted, and
    starts: Int64Array  # the first start of those that end then or later
    until: Int64Array  # starts of them, sorted, and
    ends: Int64Array  # the last end of those that start then or before
    begin: int
    end: int

    def published(self, instants: Int64Array) -> Int64Array:
        """When it first did what another process may wait for, from each instant on."""
        return np.append(self.starts, _LAST)[np.searchsorted(self.since, instants)]

    def received(self, instants: Int64Array) -> Int64Array:
        """When it last did what may have waited for another process, up to each instant."""
        places = np.searchsorted(self.until, instants, side="right")
        return np.concatenate([[-_LAST], self.ends])[places]


def races_of_processes(run: Run) -> list[Race]:
    """One race per pair of lines and rank, with all tensors."""
    found: list[Race] = []
    for rank in run.ranks:
        shared = _shared(run, rank)
        if shared.empty:
            continue
        lives = _processes(run, rank, shared)
        pairs = [pair for a, b in combinations(lives, 2) for pair in _pairs(a, b)]
        found += _merged(run, rank, pairs)
    return found


def _shared(run: Run, rank: int) -> pd.DataFrame:
    """pid, address and file of each storage in shared memory, by instant."""
    rows = run.events("value", rank, columns=["time_ns", "name", "value", "thread"])
    rows = to_frame(rows.filter(having(rows["name"], (SHARED_ADDRESS, SHARED_FILE).__contains__)))
    if rows.empty:
        return rows
    rows = rows.sort_values(["thread", "time_ns"], kind="stable", ignore_index=True)
    address = rows[rows["name"] == SHARED_ADDRESS]
    file = rows["value"].shift(-1)[address.index]
    pids = {one.thread: one.pid for one in run.threads_of(rank)}
    return pd.DataFrame(
        {
            "pid": [pids[str(one)] for one in address["thread"]],
            "storage": address["value"].to_numpy(np.int64),
            "file": file.fillna(0).to_numpy(np.int64),
            "since": address["time_ns"].to_numpy(np.int64),
        }
    ).sort_values("since", ignore_index=True)


def _processes(run: Run, rank: int, shared: pd.DataFrame) -> list[_Process]:
    """Processes with writes to shared memory, in the order of their begin; none if it is one."""
    parents = {p["pid"]: p["parent_pid"] for p in run.manifest["processes"] if p["rank"] == rank}
    writers = []
    for threads in processes_of(run, rank):
        pid = next(one.pid for one in run.threads_of(rank) if one.thread in set(threads))
        own = shared[shared["pid"] == pid]
        given = shared[shared["pid"] == parents.get(pid, -1)]
        given = given[~given["storage"].isin(own["storage"])]
        wanted = pa.array({*own["storage"], *given["storage"]}, pa.int64())
        if any(_writes(run, rank, thread, wanted) for thread in threads):
            writers.append((pid, threads, own, given, wanted))
    found = []
    for pid, threads, own, given, wanted in writers if len(writers) > 1 else ():
        parts: list[pd.DataFrame] = []
        first, last = _LAST, -_LAST
        for thread in threads:
            rows = run.events("access", rank, thread, columns=_COLUMNS)
            if rows.num_rows:
                ends = pc.add(rows["start_ns"], rows["duration_ns"])
                first = min(first, pc.min(rows["start_ns"]).as_py())
                last = max(last, pc.max(ends).as_py())
            rows = rows.filter(pc.is_in(rows["storage"], wanted))
            columns = outermost_accesses({name: rows[name].to_numpy() for name in _COLUMNS})
            one = pd.DataFrame(columns).assign(thread=thread)
            parts.append(one.assign(onto_itself=_onto_itself(run, rank, thread, one)))
        every = pd.concat(parts).sort_values("start_ns", ignore_index=True)
        born = set(every.loc[every["birth"].astype(bool), "storage"])
        given = given[~given["storage"].isin(born) & (given["since"] < first)]
        writes = _placed(every, pd.concat([own, given]))
        if len(writes):
            found.append(_process(run, rank, threads, pid, writes, (first, last)))
    return sorted(found, key=lambda one: one.begin)


def _writes(run: Run, rank: int, thread: str, storages: pa.Array) -> bool:
    """Whether a thread writes to one of the storages, and not to make it: most only read them."""
    rows = run.events("access", rank, thread, columns=["storage", "write", "birth"])
    written = pc.and_not(rows["write"], rows["birth"])
    return bool(pc.any(pc.and_(written, pc.is_in(rows["storage"], storages))).as_py())


def _onto_itself(run: Run, rank: int, thread: str, rows: pd.DataFrame) -> BoolArray:
    """Which writes of a thread are copies of memory onto itself: they change nothing there."""
    key, write = ["start_ns", "depth", "storage", *_RANGE], rows["write"].astype(bool).to_numpy()
    keys = pd.MultiIndex.from_frame(rows[key])
    same: BoolArray = write & keys.isin(keys[~write])
    if same.any():
        sites, own = CallSites(), rows[same]
        numbers, _ = sites.of(
            run, rank, thread, own["start_ns"].to_numpy(), own["depth"].to_numpy()
        )
        same[same] = [sites.known[number].op in _COPIES for number in numbers]
    return same


def _placed(rows: pd.DataFrame, shared: pd.DataFrame) -> pd.DataFrame:
    """Writes to storages that were shared by then, with the file of each."""
    rows = rows[rows["write"].astype(bool) & rows["storage"].isin(shared["storage"])]
    rows = rows.assign(end_ns=rows["start_ns"] + rows["duration_ns"])
    births = rows.loc[rows["birth"].astype(bool), ["start_ns", "storage"]].assign(file=-1)
    known = shared.rename(columns={"since": "start_ns"})[["start_ns", "storage", "file"]]
    states = pd.concat([births, known]).sort_values("start_ns", kind="stable")
    placed = pd.merge_asof(rows, states, on="start_ns", by="storage")
    return placed[(placed["file"] >= 0) & ~placed["birth"].astype(bool)]


def _process(
    run: Run,
    rank: int,
    threads: list[str],
    pid: int,
    writes: pd.DataFrame,
    life: tuple[int, int],
) -> _Process:
    parts = [run.events("sync", rank, one, columns=["start_ns", "duration_ns"]) for one in threads]
    # What a thread does before its first operator is not recorded, so that counts as well.
    start = np.concatenate([life[:1], *(part["start_ns"].to_numpy() for part in parts)])
    waits = [part["duration_ns"].fill_null(0).to_numpy() for part in parts]
    lasted = np.concatenate([[0], *waits]).astype(np.int64)
    by_end, by_start = np.argsort(start + lasted), np.argsort(start)
    return _Process(
        pid,
        writes,
        (start + lasted)[by_end],
        np.minimum.accumulate(start[by_end][::-1])[::-1],
        start[by_start],
        np.maximum.accumulate((start + lasted)[by_start]),
        *life,
    )


def _pairs(a: _Process, b: _Process) -> Iterator[tuple[_Process, pd.Series, _Process, pd.Series]]:
    """For each two overlapping ranges of a file, the first two writes that nothing orders."""
    low, high = max(a.begin, b.begin), min(a.end, b.end)
    own = [
        one.writes[(one.writes["start_ns"] >= low) & (one.writes["end_ns"] <= high)]
        for one in (a, b)
    ]
    for file in sorted(set(own[0]["file"]) & set(own[1]["file"])):
        ranges = [
            list(rows[rows["file"] == file].groupby(_RANGE, sort=False))[:MAX_RANGES]
            for rows in own
        ]
        for mine, rows in ranges[0]:
            for theirs, others in ranges[1]:
                if share_bytes(_span(mine), _span(theirs)):
                    pair = _changing(a, rows, b, others)
                    if pair is not None:
                        yield pair


def _span(key: Any) -> Span:
    offset, size, run, stride = (int(number) for number in key)
    return Span(offset, offset + size, run, stride)


def _changing(
    a: _Process, rows: pd.DataFrame, b: _Process, others: pd.DataFrame
) -> tuple[_Process, pd.Series, _Process, pd.Series] | None:
    """The first two writes that nothing orders and that are not both copies onto themselves."""
    chosen = [(rows[~rows["onto_itself"]], others)]
    if rows["onto_itself"].any():
        chosen.append((rows, others[~others["onto_itself"]]))
    for mine, theirs in chosen:
        pair = _first(a, mine, b, theirs) or _first(b, theirs, a, mine)
        if pair is not None:
            return pair
    return None


def _first(
    a: _Process, rows: pd.DataFrame, b: _Process, others: pd.DataFrame
) -> tuple[_Process, pd.Series, _Process, pd.Series] | None:
    """The first write of `a` and the next one of `b` after its begin, if nothing orders them."""
    starts = others["start_ns"].to_numpy()
    place = np.searchsorted(starts, rows["start_ns"].to_numpy())
    there = place < len(starts)
    published = a.published(rows["end_ns"].to_numpy()[there])
    received = b.received(starts[place[there]])
    racing = np.flatnonzero(there)[published > received]
    if not len(racing):
        return None
    first = int(racing[0])
    return a, rows.iloc[first], b, others.iloc[int(place[first])]


def _merged(
    run: Run, rank: int, pairs: list[tuple[_Process, pd.Series, _Process, pd.Series]]
) -> list[Race]:
    names, sites = storage_names(run, rank), CallSites()
    found: dict[tuple[str, str], list[tuple[MemoryAccess, MemoryAccess, pd.Series]]] = {}
    for _, one, _, other in pairs:
        touches = [_access(run, rank, sites, row) for row in (one, other)]
        key = tuple(sorted(touch.place for touch in touches))
        found.setdefault((key[0], key[1]), []).append((touches[0], touches[1], one))
    races = []
    for group in found.values():
        first, second, row = min(group, key=lambda each: each[0].start_ns)
        tensors = [names.get(int(each[2]["storage"]), "a tensor") for each in group]
        threads = {touch.thread for each in group for touch in each[:2]}
        races.append(
            Race(
                rank=rank,
                first=first,
                second=second,
                threads=tuple(sorted(threads)),
                low=int(row["offset"]),
                high=int(row["offset"] + row["bytes"]),
                overlapped=second.start_ns < first.end_ns,
                pairs=len(group),
                tensors=tuple(dict.fromkeys(tensors)),
            )
        )
    return races


def _access(run: Run, rank: int, sites: CallSites, row: pd.Series) -> MemoryAccess:
    thread, start = str(row["thread"]), int(row["start_ns"])
    window = start, start + 1
    at, depth = np.array([start]), np.array([int(row["depth"])])
    numbers, steps = sites.of(run, rank, thread, at, depth, window)
    site = sites.known[int(numbers[0])]
    stack = () if site.stack is None else tuple(frame_texts(run, rank).get(site.stack, ()))
    return MemoryAccess(
        thread=thread,
        op=site.op,
        module=site.module,
        phase=site.phase,
        start_ns=start,
        end_ns=int(row["end_ns"]),
        write=True,
        step=int(steps[0]),
        stack=stack,
    )
