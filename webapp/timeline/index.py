"""The index of a run: all slices and samples as flat arrays, and the crowded tiles made ahead.

Rows of all lanes stand one after another, in the order of lanes and rows. A row of slices is a
range of `start`, `end`, `paint` and `source`; a row of samples a range of `time`, `value`
and `step`. There is no object per event, and nothing but the ranges that a tile needs is touched,
so the arrays may be far larger than memory. Building it goes lane by lane (`index_builder`).
"""

from __future__ import annotations

import contextlib
import json
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lanescope.webapp.runs.bundle import MAX_JSON, Bundle
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import Int64Array, Progress
from lanescope.webapp.timeline.array_store import (
    CATALOGUE_FILE,
    Ahead,
    Arrays,
    ArrayStore,
    FolderStore,
    MemoryStore,
    load_arrays,
)
from lanescope.webapp.timeline.index_builder import Builder, tile_key
from lanescope.webapp.timeline.lanes import Lane, LaneSamples, lanes_of
from lanescope.webapp.timeline.lod import FENCE
from lanescope.webapp.timeline.packed_index import arrays_in, packed_pieces
from lanescope.webapp.timeline.spans import SAMPLES, SPAN_TABLES, LaneSlices, SpanNames
from lanescope.webapp.timeline.tile_columns import CODES_PER_NAME, Block, Paints, Slices

INDEX_VERSION = 6
"""Of everything the index holds: layout, rows, styles, tiles made ahead. Part of its address."""

DTYPES: Mapping[str, str] = {
    # per slice
    "start": "<i8",
    "end": "<i8",
    "paint": "<u4",
    "source": "<u4",
    # per FENCE slices
    "fence": "<i8",
    # per sample
    "time": "<i8",
    "value": "<f8",
    "step": "<i8",
    # per row: its range of slices (or samples), what it holds, its range of tiles made ahead
    "row_begin": "<i8",
    "row_end": "<i8",
    "row_table": "u1",
    "row_made": "<i8",
    # per tile made ahead, sorted within a row: level << 48 | index, its entries, its bytes
    "made_key": "<i8",
    "made_n": "<u2",
    "made_m": "<u2",
    "made_form": "u1",
    "made_end": "<i8",
    "made_data": "u1",
}

_READ = ("start", "end", "paint", "made_data")
_MADE_AT = ("made_key", "made_n", "made_m", "made_form", "made_end")

PACKED = "index"
"""Folder within a bundle: a member for each array, and the catalogue."""

SMALL = 200_000
"""A run of fewer events is indexed faster than it is worth storing."""

MAPPED = 20_000_000
"""Of a run of so many events a bundle holds the arrays as they are, five times as large: they are
mapped and need not fit into memory."""

_MAX_BYTES = 64
"""Of an index, per event: what a bundle claims to hold beyond that is not believed."""

_KEPT = 31 << 20
"""A block of so many bytes that is given back has glibc keep memory: a tenth less time."""


@dataclass(frozen=True, eq=False)
class Index:
    """A run's index. Immutable; threads may share it."""

    lanes: tuple[Lane, ...]
    names: tuple[str, ...]
    paints: Paints
    arrays: Arrays
    slices: Slices
    lane_rows: tuple[range, ...]  # per lane its rows
    row_begin: tuple[int, ...]
    row_end: tuple[int, ...]
    row_made: tuple[int, ...]  # per row the end of its tiles made ahead
    fence: Int64Array  # of the starts, in memory; see `lod.fences`
    ahead: Mapping[str, Ahead]  # of the arrays that tiles are read from
    made_at: Arrays  # of `arrays` what says where tiles made ahead are, in memory

    @classmethod
    def of(
        cls, lanes: tuple[Lane, ...], names: tuple[str, ...], paints: Paints, arrays: Arrays
    ) -> Index:
        """Returns the index of these parts."""
        edges = pairwise(accumulate((lane.rows for lane in lanes), initial=0))
        # What each tile reads of every row: single items of an array cost 20 times as much.
        begin, end, made = (
            tuple(arrays[name].tolist()) for name in ("row_begin", "row_end", "row_made")
        )
        return cls(
            lanes,
            names,
            paints,
            arrays,
            Slices(arrays["start"], arrays["end"], arrays["paint"], paints),
            tuple(range(low, high) for low, high in edges),
            begin,
            end,
            made,
            np.array(arrays["fence"]),
            {name: Ahead(arrays[name]) for name in _READ},
            {name: np.array(arrays[name]) for name in _MADE_AT},
        )

    def expect(self, parts: Iterable[tuple[int, int]]) -> None:
        """Reads these stretches of slices ahead."""
        start, end, paint = (self.ahead[name] for name in ("start", "end", "paint"))
        for low, high in parts:
            start.expect(low, high)
            end.expect(low, high)
            paint.expect(low, high)

    def made(self, row: int, level: int, index: int) -> Block | None:
        """Returns the block of a tile that was made ahead, if it was."""
        begin, end = self.row_made[row - 1] if row else 0, self.row_made[row]
        if begin == end:
            return None
        key, made = tile_key(level, index), self.made_at
        at = begin + int(made["made_key"][begin:end].searchsorted(key))
        if at == end or made["made_key"][at] != key:
            return None
        low = int(made["made_end"][at - 1]) if at else 0
        high = int(made["made_end"][at])
        self.ahead["made_data"].expect(low, high)
        data = self.arrays["made_data"][low:high].tobytes()
        n, m, form = (int(made[name][at]) for name in ("made_n", "made_m", "made_form"))
        return Block(n, m, form, data)


def open_index(run: Run, cache: Path | None, progress: Progress | None = None) -> Index:
    """Returns the index of a run: the one in its bundle, the stored one, or one built now and
    stored.

    `cache` is the folder that holds indexes; None, or a run that is too small to be worth it,
    builds in memory. So does a folder that cannot be written: the page works all the same.
    """
    packed = _packed(run)
    if packed is not None:
        return packed
    events = events_of(run)
    folder = None
    if cache is not None and events >= SMALL and re.fullmatch(r"[0-9A-Za-z._-]+", run.etag):
        folder = cache / f"{run.etag}-{INDEX_VERSION}"
        stored = load_arrays(folder, DTYPES)
        index = None if stored is None else restored(*stored)
        if index is not None:
            return index
    return kept(folder, DTYPES, lambda store: built(run, store, events, progress))


def kept(
    folder: Path | None, dtypes: Mapping[str, str], build: Callable[[ArrayStore], Index]
) -> Index:
    """Returns an index that is built into a folder, or in memory without one, or without room for
    it."""
    if folder is not None:
        with contextlib.suppress(OSError):
            store = FolderStore(folder, dtypes)
            try:
                return build(store)
            except BaseException:
                store.abandon()
                raise
    return build(MemoryStore(dtypes))


def restored(arrays: Arrays, catalogue: Mapping[str, Any]) -> Index | None:
    """Returns the stored index, unless its parts do not fit each other."""
    try:
        lanes = tuple(_lane(lane) for lane in catalogue["lanes"])
        names = tuple(str(name) for name in catalogue["names"])
        codes = [int(code) for code in catalogue["paints"]]
        if not all(0 <= code < CODES_PER_NAME * len(names) for code in codes):
            return None
        rows = sum(lane.rows for lane in lanes)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    if not _fits(arrays, rows) or any(i != lane.id for i, lane in enumerate(lanes)):
        return None
    return Index.of(lanes, names, Paints.of(codes), arrays)


_LANE: Mapping[str, Any] = typing.get_type_hints(Lane)


def _lane(entry: Mapping[str, Any]) -> Lane:
    """A lane of a catalogue. Raises TypeError or ValueError for anything else."""
    lane = Lane(**entry)
    for name, kind in _LANE.items():
        value = getattr(lane, name)
        if isinstance(value, bool) or not isinstance(value, kind):
            raise TypeError(f"{name} of a lane is a {type(value).__name__}")
    if not 0 <= lane.phase_rows <= lane.rows:
        raise ValueError("a lane has less than no rows")
    return lane


def _fits(arrays: Arrays, rows: int) -> bool:
    """Whether the arrays are those of so many rows, and point into each other only."""
    of_rows = ("row_begin", "row_end", "row_table", "row_made")
    same = [
        {len(arrays[name]) for name in of_rows} | {rows},
        {len(arrays[name]) for name in ("start", "end", "paint", "source")},
        {len(arrays[name]) for name in ("time", "value", "step")},
        {len(arrays[f"made_{name}"]) for name in ("key", "n", "m", "form", "end")},
    ]
    if any(len(sizes) != 1 for sizes in same):
        return False
    if len(arrays["fence"]) != -(-len(arrays["start"]) // FENCE):
        return False
    begin, end, table, made = (arrays[name] for name in of_rows)
    size = np.where(table == SAMPLES, len(arrays["time"]), len(arrays["start"]))
    ends = arrays["made_end"]
    return bool(
        np.all((begin >= 0) & (begin <= end) & (end <= size))
        and np.all((table == SAMPLES) | (table < len(SPAN_TABLES)))
        and _ascends(made, len(ends))
        and _ascends(ends, len(arrays["made_data"]))
        and (not len(ends) or ends[-1] == len(arrays["made_data"]))
    )


def _ascends(values: npt.NDArray[Any], most: int) -> bool:
    """From 0 or more up to `most` at the most, never down."""
    if not len(values):
        return True
    return bool(values[0] >= 0 and values[-1] <= most and np.all(values[1:] >= values[:-1]))


def _packed(run: Run) -> Index | None:
    """The index in the run's bundle, mapped; None without one that fits the run."""
    bundle = run.files
    if not isinstance(bundle, Bundle) or f"{PACKED}/{CATALOGUE_FILE}" not in bundle:
        return None
    try:
        catalogue = json.loads(bundle.read(f"{PACKED}/{CATALOGUE_FILE}", MAX_JSON))
        if (catalogue["run"], catalogue["version"]) != (run.etag, INDEX_VERSION):
            return None
        most = _MAX_BYTES * (events_of(run) + SMALL)
        arrays = arrays_in(bundle, PACKED, DTYPES, catalogue["counts"], most)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, pa.ArrowException):
        return None
    return restored(arrays, catalogue)


def bundle_has_index(run: Run) -> bool:
    """Returns whether a bundle of the run brings its index."""
    return events_of(run) >= SMALL


def index_members(index: Index, run: Run) -> Iterator[tuple[str, bytes | memoryview]]:
    """Yields what a bundle of a run keeps of its index: paths and bytes. `_packed` reads them.

    Nothing of a small run: it is indexed as fast as its index would be read.
    """
    if not bundle_has_index(run):
        return
    plain = events_of(run) >= MAPPED
    about = {
        "run": run.etag,
        "version": INDEX_VERSION,
        "counts": None if plain else {name: len(index.arrays[name]) for name in DTYPES},
        **_catalogue_of(index.lanes, index.names, index.paints),
    }
    yield (
        f"{PACKED}/{CATALOGUE_FILE}",
        memoryview(json.dumps(about, separators=(",", ":")).encode()),
    )
    for name, data in packed_pieces(index.arrays, DTYPES, plain=plain):
        yield f"{PACKED}/{name}", data


def _catalogue_of(lanes: Sequence[Lane], names: Sequence[str], paints: Paints) -> dict[str, Any]:
    """Returns what a folder stores of an index beside its arrays."""
    listed = [vars(lane) for lane in lanes]
    return {"lanes": listed, "names": list(names), "paints": paints.codes}


def events_of(run: Run) -> int:
    """Returns how much an index of the run holds, about."""
    return sum(run.counts[table] for table in ("op", "phase", "collective", "value"))


def built(
    run: Run,
    store: ArrayStore,
    events: int,
    progress: Progress | None,
    laid_out: Callable[[SpanNames], Iterable[tuple[Lane, LaneSlices | LaneSamples]]] | None = None,
    last: Callable[[], None] | None = None,
) -> Index:
    """Returns an index of lanes, by default those of the run alone, in a store.

    `last` is called when all lanes are there: the store may then take other arrays.
    """
    np.empty(_KEPT, np.uint8)  # given back at once
    names = SpanNames()
    lanes: list[Lane] = []
    builder = Builder(store)
    for lane, content in lanes_of(run, names) if laid_out is None else laid_out(names):
        lanes.append(lane)
        if isinstance(content, LaneSlices):
            builder.add_slices(content)
        else:
            builder.add_samples(content)
        if progress is not None:
            progress(builder.slices + builder.samples, events)
    builder.flush()
    if last is not None:
        last()
    arrays = store.finish(_catalogue_of(lanes, names.texts, builder.paints))
    return Index.of(tuple(lanes), tuple(names.texts), builder.paints, arrays)
