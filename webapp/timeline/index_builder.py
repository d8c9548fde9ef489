"""Builds an index: appends lanes to a store, and makes their crowded tiles ahead."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lanescope.webapp.runs.types import UInt32Array
from lanescope.webapp.timeline.array_store import ArrayStore
from lanescope.webapp.timeline.counter_lod import sample_pyramid
from lanescope.webapp.timeline.lanes import LaneSamples
from lanescope.webapp.timeline.lod import TILE_BITS, fences, pyramid
from lanescope.webapp.timeline.lod_buckets import offsets
from lanescope.webapp.timeline.spans import SAMPLES, LaneSlices
from lanescope.webapp.timeline.tile_columns import Block, Paints, Slices, sample_block, slice_blocks

BATCH = 500_000
"""Slices after which tiles are made ahead: enough for numpy's cost per call not to matter."""


class Builder:
    """Appends lanes to a store. Tiles are made ahead for many lanes in one go."""

    def __init__(self, store: ArrayStore) -> None:
        self._store = store
        self.paints = Paints()
        self.slices = self.samples = 0
        self._made = self._bytes = 0
        # What waits for its tiles: rows and slices so far, lanes with their first row, and the
        # tiles of rows that have them already.
        self._rows = self._waiting = 0
        self._lanes: list[tuple[int, LaneSlices, UInt32Array]] = []
        self._tiles: dict[int, list[tuple[int, Block]]] = {}

    def add_slices(self, lane: LaneSlices) -> None:
        """Appends the rows of a lane."""
        for name in ("start", "end", "source", "row_table"):
            self._store.append(name, getattr(lane, name))
        self._store.append("fence", fences(lane.start, self.slices))
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
            (tile_key(level, index), sample_block(tile))
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
                self._tiles.setdefault(row, []).append((tile_key(found.level, index), block))


def _whole(parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Arrays one after another; a single one is not copied."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def tile_key(level: int, index: int) -> int:
    """Returns the order of tiles in a row. An index has at most 43 bits, as an instant has 53."""
    return level << 48 | index
