"""The index of a run beside its baseline, and the places where the two differ, stored as one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lanescope.webapp.plugins.diff.timeline_lanes import PLACE, Beside, Differences
from lanescope.webapp.runs.run import Run
from lanescope.webapp.timeline import index as indexes
from lanescope.webapp.timeline.arguments import forward, integer
from lanescope.webapp.timeline.array_store import Store, load
from lanescope.webapp.timeline.index import (
    DTYPES,
    VERSION,
    Index,
    Progress,
    built,
    events_of,
    kept,
    restored,
)
from lanescope.webapp.timeline.styles import BESIDE
from lanescope.webapp.timeline.timeline import NoSuch, Timeline

COMPARED = 5
"""Version of what is paired with what, and of when two ops are the same, slower or faster."""

_DTYPES = {**DTYPES, **{f"place_{name}": "<i8" for name in PLACE}}


def open_beside(
    run: Run, base: Run, noise: Run | None, cache: Path | None, progress: Progress | None = None
) -> tuple[Index, Differences]:
    """The index with the baseline's lanes, and where the runs differ: stored, or built now.

    As `index.open_index` does. It is known by the states of all runs that it is about, and by what
    the baseline is called, which stands in its lanes.
    """
    events = events_of(run)
    folder = None
    if cache is not None and events + events_of(base) >= indexes.SMALL:
        about = [run.etag, base.etag, base.title, None if noise is None else noise.etag]
        digest = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:32]
        folder = cache / f"beside-{digest}-{VERSION}.{COMPARED}"
        stored = load(folder, _DTYPES)
        index = None if stored is None else restored(*stored)
        if index is not None and _fits(index):
            return index, _differences(index)

    def build(store: Store) -> Index:
        beside = Beside(base, run, noise)

        def last() -> None:
            found = beside.differences()
            for name in PLACE:
                store.append(f"place_{name}", getattr(found, name))

        return built(run, store, events, progress, beside.lanes, last)

    index = kept(folder, _DTYPES, build)
    return index, _differences(index)


def _differences(index: Index) -> Differences:
    return Differences(*(index.arrays[f"place_{name}"] for name in PLACE))


def _fits(index: Index) -> bool:
    """Whether what is stored as differences are places of the index."""
    found = _differences(index)
    if any(len(getattr(found, name)) != len(found) for name in PLACE):
        return False
    rows = np.array([*(lane.rows for lane in index.lanes), 0], np.int64)
    lane = found.lane.clip(-1, len(rows) - 1)
    return bool(
        np.all((found.row >= 0) & (found.row < rows[lane]))
        and np.all((found.ref >= 0) & (found.ref < len(index.slices.start)))
        and np.all((found.state >= 0) & (found.state < len(BESIDE)))
    )


def next_difference(timeline: Timeline, arguments: Mapping[str, str]) -> dict[str, Any]:
    """The next or previous place where the run differs from its baseline, from a place on."""
    place = integer("t", arguments.get("t", "")), integer("lane", arguments.get("lane", "-1"))
    key = *place, integer("row", arguments.get("row", "-1"))
    known = timeline.differences
    if known is None:
        raise NoSuch("this run is shown without a baseline; lanescope view RUN --baseline RUN0")
    found = known.next(key, forward=forward(arguments.get("dir", "next")))
    return found or {"ref": None, "total": len(known)}
