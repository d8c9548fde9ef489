"""Memory over time, the peaks of steps, and what a peak consists of."""

from __future__ import annotations

import bisect
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.webapp.analysis.arrow_columns import texts_of
from lanescope.webapp.analysis.findings import NotApplicable
from lanescope.webapp.plugins.memory.recorded import recorded_storages
from lanescope.webapp.plugins.memory.storages import (
    PHASES,
    STORAGE_CATEGORIES,
    Storages,
    allocation_sites,
    phase_at,
    phase_spans,
    storage_categories,
)
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import Int64Array, Window

_MAX_ACCESSES = 3_000_000
"""Accesses that are read at once; of a longer run its last steps."""

PEAK_COLUMNS = ["category", "name", "module", "where", "op", "bytes", "storages"]


_SERIES = "memory allocated ("


@dataclass(frozen=True, eq=False)
class Usage:
    """Memory of a device of a rank over time: after each allocation or release, by time."""

    storages: Storages  # of the device
    time_ns: Int64Array
    bytes: Int64Array  # in use

    @classmethod
    def of(cls, storages: Storages, device: str) -> Usage:
        """Returns the memory of one device."""
        mine = _taken(storages, storages.device == device)
        return cls(mine, *_course(mine.born_ns, mine.end_ns, mine.size))

    @property
    def peak(self) -> int:
        """Position of the highest value; of several the first."""
        return int(np.argmax(self.bytes))

    def by(self, groups: np.ndarray, instants: Int64Array) -> dict[str, Int64Array]:
        """Returns for each group of storages the bytes in use right after each instant."""
        found = {}
        for name in dict.fromkeys(groups.tolist()):
            own = groups == name
            when, total = _course(
                self.storages.born_ns[own], self.storages.end_ns[own], self.storages.size[own]
            )
            at = np.searchsorted(when, instants, side="right")
            found[str(name)] = np.concatenate([[0], total])[at]
        return found

    def peaks(self, edges: Int64Array) -> Int64Array:
        """Returns for each [edges[i], edges[i + 1]) the instant at which most is in use in it."""
        found = edges[:-1].copy()
        low = np.searchsorted(self.time_ns, edges)
        before = np.concatenate([[0], self.bytes])
        for i in range(len(found)):
            a, b = int(low[i]), int(low[i + 1])
            if b > a:
                best = a + int(np.argmax(self.bytes[a:b]))
                if self.bytes[best] >= before[a]:
                    found[i] = self.time_ns[best]
        return found

    def at_most(self, start_ns: int, end_ns: int) -> int:
        """Returns an upper bound of the bytes that were allocated at once in [start_ns, end_ns)."""
        when, total = _course(self.storages.born_ns, self.storages.freed_ns, self.storages.size)
        low, high = np.searchsorted(when, [start_ns, end_ns]).tolist()
        return int(np.concatenate([[0], total])[low : high + 1].max())

    def parts(self, instant: int) -> pd.DataFrame:
        """Returns the tensors in use right after an instant, the largest first: PEAK_COLUMNS.

        Storages of the same category, name, module, line and operator share a row: bytes is their
        sum, storages their number.
        """
        mine = self.storages
        alive = (mine.born_ns <= instant) & (mine.end_ns > instant)
        frame = pd.DataFrame(
            {name: getattr(mine, name)[alive] for name in PEAK_COLUMNS[:-2]}
            | {"bytes": mine.size[alive]}
        )
        grouped = frame.groupby(PEAK_COLUMNS[:-2], sort=True)["bytes"]
        table = grouped.agg(bytes="sum", storages="size").reset_index()
        return table.sort_values("bytes", ascending=False, kind="stable", ignore_index=True)


def _course(born: Int64Array, end: Int64Array, size: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Returns the instants of allocations and releases, and the bytes in use after each. Releases
    come before allocations of the same instant."""
    when = np.concatenate([born, np.maximum(end, born)])
    change = np.concatenate([size, -size])
    order = np.lexsort((change, when))
    # Released and allocated at the same instant, a storage without any use is not counted.
    return when[order], np.maximum(np.cumsum(change[order]), 0)


def _taken(storages: Storages, rows: np.ndarray) -> Storages:
    arrays = {
        name: value[rows] for name, value in vars(storages).items() if isinstance(value, np.ndarray)
    }
    return Storages(storages.rank, storages.window, **arrays)


@lru_cache(maxsize=8)
def storages_of(run: Run, rank: int) -> Storages:
    """Returns the storages of a rank: those of allocator events if the run has them, else those of
    recorded accesses. Raises NotApplicable where it has neither."""
    whole = (0, run.duration_ns)
    found = allocated_storages(run, rank, whole)
    if found is None:
        found = recorded_storages(run, rank, _window(run, rank))
    if found is None:
        raise NotApplicable(
            f"rank {rank} has no record of allocations: record with --level access, or profile "
            "with profile_memory=True"
        )
    return found


def _window(run: Run, rank: int) -> Window:
    """Returns the whole run, or the last of its steps that have at most MAX_ACCESSES accesses."""
    starts = [0, *run.steps(rank).start_ns.tolist()]

    def few(start: int) -> bool:
        return run.rows.within("access", [rank], (start, run.duration_ns)) <= _MAX_ACCESSES

    at = bisect.bisect_left(starts, True, hi=len(starts) - 1, key=few)
    return starts[at], run.duration_ns


def devices_of(storages: Storages) -> list[str]:
    """Returns the devices of some storages, the one with the most bytes first."""
    sums = pd.Series(storages.size).groupby(storages.device).sum()
    return [str(one) for one in sums.sort_values(ascending=False, kind="stable").index]


def memory(run: Run) -> pd.DataFrame:
    """Returns the peak of each step: one row per rank, device and step.

    Columns rank, device, step, time_ns (of the peak, from the start of the run), peak_bytes (in
    use), at_most_bytes (that may have been allocated at once in the step, see `Storages`),
    and `<category>_bytes` at the peak for each of CATEGORIES, which add up to peak_bytes. No rows
    where no rank has a record of allocations.
    """
    columns = ["rank", "device", "step", "time_ns", "peak_bytes", "at_most_bytes"]
    rows = [pd.DataFrame(columns=columns + [f"{name}_bytes" for name in STORAGE_CATEGORIES])]
    for rank, usage, device in _usages(run):
        steps = run.steps(rank)
        inside = steps.start_ns >= usage.storages.window[0]
        spans = np.stack([steps.start_ns, steps.end_ns], axis=1)[inside]
        instants = np.array([usage.peaks(one)[0] for one in spans], np.int64)
        parts = usage.by(usage.storages.category, instants)
        nothing = np.zeros(len(instants), np.int64)
        table = pd.DataFrame(
            {"rank": rank, "device": device, "step": steps.index[inside], "time_ns": instants}
        )
        table["peak_bytes"] = sum(parts.values(), nothing)
        table["at_most_bytes"] = [usage.at_most(*one) for one in spans.tolist()]
        for name in STORAGE_CATEGORIES:
            table[f"{name}_bytes"] = parts.get(name, nothing)
        rows.append(table)
    return _joined(rows)


def memory_peak(run: Run) -> pd.DataFrame:
    """Returns the tensors in use at the peak of each rank and device, the largest first.

    Columns rank, device, category, name (of a parameter or buffer), module, where (file.py:12),
    op (that allocated it), bytes, storages (number). No rows where no rank has a record of
    allocations.
    """
    tables = [pd.DataFrame(columns=["rank", "device", *PEAK_COLUMNS])]
    for rank, usage, device in _usages(run):
        table = usage.parts(int(usage.time_ns[usage.peak]))
        table.insert(0, "device", device)
        table.insert(0, "rank", rank)
        tables.append(table)
    return _joined(tables)


def _joined(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """Returns all rows; of tables without rows the columns alone."""
    return pd.concat(tables[1:], ignore_index=True) if len(tables) > 1 else tables[0]


def _usages(run: Run) -> Iterator[tuple[int, Usage, str]]:
    """Yields the memory of each device of each rank that has a record of it."""
    for rank in run.ranks:
        try:
            storages = storages_of(run, rank)
        except NotApplicable:
            continue
        for device in devices_of(storages):
            yield rank, Usage.of(storages, device), device


@dataclass
class _Device:
    """What is known of a device while its events are read."""

    before: float | None = None  # bytes that were allocated before the first event
    alive: dict[int, int] = field(default_factory=dict)  # address -> number of the storage


def allocated_storages(run: Run, rank: int, window: Window) -> Storages | None:
    """Returns the storages that the allocator of an imported trace had (`[memory]` of
    torch.profiler); None: it has no events.

    Each event has the address and the bytes that were allocated (positive) or freed (negative), and
    the total after it.
    """
    if not any(one.startswith(_SERIES) for one in texts_of(run, "value", "name", rank)):
        return None
    values = run.events("value", rank, columns=["time_ns", "name", "value", "args", "thread"])
    names = values["name"].cast(pa.string())
    values = values.filter(pc.starts_with(names, _SERIES)).sort_by("time_ns")
    rows: list[list[Any]] = []  # size, born, freed, device, thread
    devices: dict[str, _Device] = {}
    columns = ("time_ns", "name", "value", "args", "thread")
    for at, name, total, text, thread in zip(
        *(values[one].to_pylist() for one in columns), strict=True
    ):
        found = _bytes(text)
        if found is None:
            continue
        address, size = found
        label = str(name)[len(_SERIES) : -1]
        device = devices.setdefault(label, _Device())
        if device.before is None:
            device.before = max(total - size, 0.0)
        if size > 0:
            device.alive[address] = len(rows)
            rows.append([size, at, window[1], label, thread])
        elif address in device.alive:
            rows[device.alive.pop(address)][2] = at
        else:
            rows.append([-size, window[0], at, label, ""])
            device.before = max(device.before + size, 0.0)
    rows += [
        [int(one.before), window[0], window[1], label, ""]
        for label, one in devices.items()
        if one.before
    ]
    return _storages(run, rank, window, rows) if rows else None


def _bytes(text: str | None) -> tuple[int, int] | None:
    """Returns address and bytes of an event's arguments; None where they do not state both."""
    try:
        stated = json.loads(text or "")
        return int(stated["Addr"]), int(stated["Bytes"])
    except (ValueError, KeyError, TypeError):
        return None


def _storages(run: Run, rank: int, window: Window, rows: list[list[Any]]) -> Storages:
    size, born, freed = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    device, thread = (np.array([row[i] for row in rows], dtype=object) for i in (3, 4))
    spans = phase_spans(run, rank)
    phase = phase_at(spans, born)
    used = {}
    for name in PHASES:
        starts = spans[name].start if name in spans else born[:0]
        later = np.searchsorted(starts, born, side="right") < np.searchsorted(starts, freed)
        used[name] = later | (phase == name)
    starts = spans["optimizer"].start if "optimizer" in spans else born[:0]
    again = np.searchsorted(starts, born, side="right") < np.searchsorted(starts, freed)
    made_by_optimizer = phase == "optimizer"
    # It lives on through the next forward and backward, which says nothing about who uses it.
    for name in ("forward", "backward"):
        used[name] &= ~made_by_optimizer
    none = np.zeros(len(size), bool)
    kinds = storage_categories(none, phase, used, again & made_by_optimizer, none)
    kinds[thread == ""] = "before"
    sites = {key: np.full(len(size), "", dtype=object) for key in ("op", "module", "where")}
    for one in dict.fromkeys(thread[thread != ""].tolist()):
        own = np.flatnonzero(thread == one)
        found = allocation_sites(run, rank, one, born[own], window)
        for key, texts in sites.items():
            texts[own] = found[key]
    nameless = np.full(len(size), "", dtype=object)
    return Storages(
        rank,
        window,
        size,
        born,
        freed,
        freed,
        device=device,
        category=kinds,
        name=nameless,
        **sites,
    )
