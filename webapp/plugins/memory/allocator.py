"""Storages from the allocator events of an imported trace (`[memory]` of torch.profiler).

Each event has the address and the bytes that were allocated (positive) or freed (negative), and the
total after it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.webapp.analysis.arrow_columns import texts_of
from lanescope.webapp.plugins.memory.storages import (
    PHASES,
    Storages,
    allocation_sites,
    phase_at,
    phase_spans,
    storage_categories,
)
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import Window

_SERIES = "memory allocated ("


@dataclass
class _Device:
    """What is known of a device while its events are read."""

    before: float | None = None  # bytes that were allocated before the first event
    alive: dict[int, int] = field(default_factory=dict)  # address -> number of the storage


def allocated_storages(run: Run, rank: int, window: Window) -> Storages | None:
    """Returns the storages that the allocator of an imported trace had; None: it has no events."""
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
