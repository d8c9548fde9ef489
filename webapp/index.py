"""The index of a run: all slices and samples as flat arrays, and the crowded tiles made ahead.

Rows of all lanes stand one after another, in the order of lanes and rows. A row of slices is a
range of `start`, `end`, `paint` and `source`; a row of samples a range of `time`, `value`
and `step`. There is no object per event, and nothing but the ranges that a tile needs is touched,
so the arrays may be far larger than memory. Building it goes lane by lane.
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

from lanescope.webapp.buckets import offsets
from lanescope.webapp.bundle import MAX_JSON, Bundle
from lanescope.webapp.lanes import Lane, LaneSamples, lanes_of
from lanescope.webapp.lod import TILE_BITS, pyramid
from lanescope.webapp.packed_index import arrays_in, pieces_of
from lanescope.webapp.run import Run
from lanescope.webapp.samples import sample_pyramid
from lanescope.webapp.slices import SOURCES, LaneSlices, Names
from lanescope.webapp.store import CATALOGUE, Arrays, FolderStore, MemoryStore, Store, load
from lanescope.webapp.tiles import (
    CODES_PER_NAME,
    U32,
    Block,
    Paints,
    Slices,
    sample_block,
    slice_blocks,
)

VERSION = 4
"""Of everything the index holds: layout, rows, styles, tiles made ahead. Part of its address."""

DTYPES: Mapping[str, str] = {
    # per slice
    "start": "<i8", "end": "<i8", "paint": "<u4", "source": "<u4",
    # per sample
    "time": "<i8", "value": "<f8", "step": "<i8",
    # per row: its range of slices (or samples), what it holds, its range of tiles made ahead
    "row_begin": "<i8", "row_end": "<i8", "row_table": "u1", "row_made": "<i8",
    # per tile made ahead, sorted within a row: level << 48 | index, its entries, its bytes
    "made_key": "<i8", "made_n": "<u2", "made_m": "<u2", "made_form": "u1", "made_end": "<i8",
    "made_data": "u1",
}  # fmt: skip

PACKED = "index"
"""Folder within a bundle: a member for each array, and the catalogue."""

SAMPLES = 0xFF
"""`row_table` of a row of samples; others are positions in slices.SOURCES."""

SMALL = 200_000
"""A run of fewer events is indexed faster than it is worth storing."""

MAPPED = 20_000_000
"""Of a run of so many events a bundle holds the arrays as they are, five times as large: they are
mapped and need not fit into memory."""

_MOST_BYTES = 64
"""Of an index, per event: what a bundle claims to hold beyond that is not believed."""

BATCH = 500_000
"""Slices after which tiles are made ahead: enough for numpy's cost per call not to matter."""

_KEPT = 31 << 20
"""A block of so many bytes that is given back has glibc keep memory: a tenth less time."""

Progress = Callable[[int, int], None]
"""Told (events done, events in all) after each lane."""


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

    @classmethod
    def of(
        cls, lanes: tuple[Lane, ...], names: tuple[str, ...], paints: Paints, arrays: Arrays
    ) -> Index:
        """The index of these parts."""
        edges = pairwise(accumulate((lane.rows for lane in lanes), initial=0))
        return cls(
            lanes,
            names,
            paints,
            arrays,
            Slices(arrays["start"], arrays["end"], arrays["paint"], paints),
            tuple(range(low, high) for low, high in edges),
            # What each tile reads of every row: single items of an array cost 20 times as much.
            *(tuple(arrays[name].tolist()) for name in ("row_begin", "row_end", "row_made")),
        )

    def made(self, row: int, level: int, index: int) -> Block | None:
        """The block of a tile that was made ahead, if it was."""
        begin, end = self.row_made[row - 1] if row else 0, self.row_made[row]
        if begin == end:
            return None
        key = _key(level, index)
        at = begin + int(self.arrays["made_key"][begin:end].searchsorted(key))
        if at == end or self.arrays["made_key"][at] != key:
            return None
        low = int(self.arrays["made_end"][at - 1]) if at else 0
        data = self.arrays["made_data"][low : int(self.arrays["made_end"][at])].tobytes()
        n, m, form = (int(self.arrays[name][at]) for name in ("made_n", "made_m", "made_form"))
        return Block(n, m, form, data)


def open_index(run: Run, cache: Path | None, progress: Progress | None = None) -> Index:
    """The index of a run: the one in its bundle, the stored one, or one built now and stored.

    `cache` is the folder that holds indexes; None, or a run that is too small to be worth it,
    builds in memory. So does a folder that cannot be written: the page works all the same.
    """
    packed = _packed(run)
    if packed is not None:
        return packed
    events = events_of(run)
    folder = None
    if cache is not None and events >= SMALL and re.fullmatch(r"[0-9A-Za-z._-]+", run.etag):
        folder = cache / f"{run.etag}-{VERSION}"
        stored = load(folder, DTYPES)
        index = None if stored is None else restored(*stored)
        if index is not None:
            return index
    return kept(folder, DTYPES, lambda store: built(run, store, events, progress))


def kept(folder: Path | None, dtypes: Mapping[str, str], build: Callable[[Store], Index]) -> Index:
    """An index that is built into a folder, or in memory where there is none, or no room for it."""
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
    """The stored index, unless its parts do not fit each other."""
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


def _lane(told: Mapping[str, Any]) -> Lane:
    """A lane of a catalogue. TypeError or ValueError where it is none."""
    lane = Lane(**told)
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
    begin, end, table, made = (arrays[name] for name in of_rows)
    size = np.where(table == SAMPLES, len(arrays["time"]), len(arrays["start"]))
    ends = arrays["made_end"]
    return bool(
        np.all((begin >= 0) & (begin <= end) & (end <= size))
        and np.all((table == SAMPLES) | (table < len(SOURCES)))
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
    """The index in the run's bundle, mapped; None where there is none that fits the run."""
    bundle = run.files
    if not isinstance(bundle, Bundle) or f"{PACKED}/{CATALOGUE}" not in bundle:
        return None
    try:
        catalogue = json.loads(bundle.read(f"{PACKED}/{CATALOGUE}", MAX_JSON))
        if (catalogue["run"], catalogue["version"]) != (run.etag, VERSION):
            return None
        most = _MOST_BYTES * (events_of(run) + SMALL)
        arrays = arrays_in(bundle, PACKED, DTYPES, catalogue["counts"], most)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, pa.ArrowException):
        return None
    return restored(arrays, catalogue)


def travels(run: Run) -> bool:
    """Whether a bundle of the run brings its index."""
    return events_of(run) >= SMALL


def members(index: Index, run: Run) -> Iterator[tuple[str, bytes | memoryview]]:
    """What a bundle of a run keeps of its index: paths and bytes. `_packed` reads them.

    Nothing of a small run: it is indexed as fast as its index would be read.
    """
    if not travels(run):
        return
    plain = events_of(run) >= MAPPED
    about = {
        "run": run.etag,
        "version": VERSION,
        "counts": None if plain else {name: len(index.arrays[name]) for name in DTYPES},
        **catalogue_of(index.lanes, index.names, index.paints),
    }
    yield f"{PACKED}/{CATALOGUE}", memoryview(json.dumps(about, separators=(",", ":")).encode())
    for name, data in pieces_of(index.arrays, DTYPES, plain=plain):
        yield f"{PACKED}/{name}", data


def catalogue_of(lanes: Sequence[Lane], names: Sequence[str], paints: Paints) -> dict[str, Any]:
    """What is stored of an index beside its arrays."""
    listed = [vars(lane) for lane in lanes]
    return {"lanes": listed, "names": list(names), "paints": paints.codes}


def events_of(run: Run) -> int:
    """How much an index of the run holds, about."""
    return sum(run.counts[table] for table in ("op", "phase", "collective", "value"))


def built(
    run: Run, store: Store, events: int, progress: Progress | None,
    laid_out: Callable[[Names], Iterable[tuple[Lane, LaneSlices | LaneSamples]]] | None = None,
    last: Callable[[], None] | None = None,
) -> Index:  # fmt: skip
    """An index of lanes, by default those of the run alone, in a store.

    `last` is called when all lanes are there: the store may then take other arrays.
    """
    np.empty(_KEPT, np.uint8)  # given back at once
    names = Names()
    lanes: list[Lane] = []
    builder = _Builder(store)
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
    arrays = store.finish(catalogue_of(lanes, names.texts, builder.paints))
    return Index.of(tuple(lanes), tuple(names.texts), builder.paints, arrays)


class _Builder:
    """Appends lanes to a store. Tiles are made ahead for many lanes in one go."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.paints = Paints()
        self.slices = self.samples = 0
        self._made = self._bytes = 0
        # What waits for its tiles: rows and slices so far, lanes with their first row, and the
        # tiles of rows that have them already.
        self._rows = self._waiting = 0
        self._lanes: list[tuple[int, LaneSlices, U32]] = []
        self._tiles: dict[int, list[tuple[int, Block]]] = {}

    def add_slices(self, lane: LaneSlices) -> None:
        """Appends the rows of a lane."""
        for name in ("start", "end", "source", "row_table"):
            self._store.append(name, getattr(lane, name))
        paint = self.paints.add(lane.name, lane.style)
        self._store.append("paint", paint)
        self._store.append("row_begin", lane.row_at[:-1] + self.slices)
        self._store.append("row_end", lane.row_at[1:] + self.slices)
        self.slices += len(lane.start)
        self._lanes.append((self._rows, lane, paint))
        self._rows += len(lane.row_table)
        self._waiting += len(lane.start)
        if self._waiting >= BATCH:
            self.flush()

    def add_samples(self, lane: LaneSamples) -> None:
        """Appends a counter."""
        for name in ("time", "value", "step"):
            self._store.append(name, getattr(lane, name))
        self._store.append("row_begin", [self.samples])
        self.samples += len(lane.time)
        self._store.append("row_end", [self.samples])
        self._store.append("row_table", [SAMPLES])
        self._tiles[self._rows] = [
            (_key(level, index), sample_block(tile))
            for level, index, tile in sample_pyramid(lane.time, lane.value)
        ]
        self._rows += 1

    def flush(self) -> None:
        """Makes and appends the tiles of all rows that wait for them."""
        if self._lanes:
            self._make_tiles()
        of_rows = [self._tiles.get(row, []) for row in range(self._rows)]
        counts = [len(tiles) for tiles in of_rows]
        made = [one for tiles in of_rows for one in tiles]
        ends = np.cumsum([len(block.data) for _, block in made], dtype=np.int64) + self._bytes
        self._store.append("row_made", np.cumsum(counts, dtype=np.int64) + self._made)
        self._store.append("made_key", [key for key, _ in made])
        self._store.append("made_n", [block.n for _, block in made])
        self._store.append("made_m", [block.m for _, block in made])
        self._store.append("made_form", [block.form for _, block in made])
        self._store.append("made_end", ends)
        data = b"".join(block.data for _, block in made)
        self._store.append("made_data", np.frombuffer(data, np.uint8))
        self._made += len(made)
        self._bytes += len(data)
        self._rows = self._waiting = 0
        self._lanes, self._tiles = [], {}

    def _make_tiles(self) -> None:
        lanes = [lane for _, lane, _ in self._lanes]
        slices = Slices(
            _whole([lane.start for lane in lanes]),
            _whole([lane.end for lane in lanes]),
            _whole([paint for _, _, paint in self._lanes]),
            self.paints,
        )
        lane_at = offsets(np.array([len(lane.start) for lane in lanes]))[:-1]
        rows = np.array([len(lane.row_table) for lane in lanes])
        low = np.concatenate([lane.row_at[:-1] for lane in lanes]) + np.repeat(lane_at, rows)
        high = np.concatenate([lane.row_at[1:] for lane in lanes]) + np.repeat(lane_at, rows)
        number = np.concatenate(
            [first + np.arange(len(lane.row_table)) for first, lane, _ in self._lanes]
        )
        for found in pyramid(slices.start, slices.end, low, high):
            begin = found.index << (TILE_BITS + found.level)
            blocks = slice_blocks(found.tiles, slices, found.level, begin)
            places = zip(number[found.row].tolist(), found.index.tolist(), strict=True)
            for (row, index), block in zip(places, blocks, strict=True):
                self._tiles.setdefault(row, []).append((_key(found.level, index), block))


def _whole(parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Arrays one after another; a single one is not copied."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _key(level: int, index: int) -> int:
    """Order of tiles within a row. An index has at most 43 bits, as an instant has 53."""
    return level << 48 | index
