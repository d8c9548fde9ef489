"""A run as the timeline asks for it: tiles of lanes at any place and resolution."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from lanescope.webapp.analysis.plugin import lanes, load
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import Progress
from lanescope.webapp.timeline import index as indexes
from lanescope.webapp.timeline import tile_format
from lanescope.webapp.timeline.array_store import cache_folder
from lanescope.webapp.timeline.counter_lod import sample_window
from lanescope.webapp.timeline.index import Index, open_index
from lanescope.webapp.timeline.lanes import BASELINE, COUNTER, Lane
from lanescope.webapp.timeline.lod import (
    MAX_LEVEL,
    RAW_LIMIT,
    TILE_BITS,
    WHOLE,
    narrowed,
    window_tiles,
)
from lanescope.webapp.timeline.lod_buckets import EARLY_BITS
from lanescope.webapp.timeline.spans import AXIS_END
from lanescope.webapp.timeline.tile_columns import (
    Block,
    TileRows,
    kept_rows,
    sample_block,
    sample_rows,
    slice_rows,
)
from lanescope.webapp.timeline.tile_format import KIND_COUNTER, KIND_SLICES, Placed, pack_tile

MAX_INDEX = AXIS_END >> TILE_BITS
"""Last tile of the finest level."""

_TOGETHER = (1 << EARLY_BITS) // (RAW_LIMIT + 1)
"""Rows whose slices are looked at in one go."""


class NoSuch(LookupError):
    """A level, tile, lane, row or slice that the run does not have; the message is a sentence."""

    def __str__(self) -> str:
        return str(self.args[0])


class _Differences(Protocol):
    """Places where a run differs from its baseline, by (start, lane, row)."""

    def __len__(self) -> int:
        """How many there are."""

    def next(self, place: tuple[int, int, int], *, forward: bool) -> dict[str, Any] | None:
        """Returns the first one after a place, or the last before it; None: not found."""


class Timeline:
    """A run and its index. Made once and passed around; safe to use from several threads."""

    def __init__(
        self,
        run: Run,
        index: Index,
        baseline: Run | None = None,
        differences: _Differences | None = None,
        noise: Run | None = None,
    ) -> None:
        self.run = run
        self.index = index
        self.baseline = baseline
        self.differences = differences
        self.noise = noise  # the baseline recorded again

    @classmethod
    def open(
        cls,
        run: Run,
        baseline: Run | None = None,
        *,
        cache: Path | None = None,
        progress: Progress | None = None,
        noise: Run | None = None,
    ) -> Timeline:
        """Takes the index of the run, or of it beside its baseline, from the cache, or builds it.

        `cache` is the folder for indexes, by default one within the user's cache. The run itself
        is never written to. `noise` is another recording of the baseline, see `Beside`.
        """
        folder = cache_folder() / "index" if cache is None else cache
        if baseline is not None:
            index, differences = load(lanes())(run, baseline, noise, folder, progress)
            return cls(run, index, baseline, differences, noise)
        return cls(run, open_index(run, folder, progress))

    @property
    def etag(self) -> str:
        """Changes with the run and with the version of the served format."""
        beside = (one for one in (self.baseline, self.noise) if one is not None)
        other = "".join(f"-{one.etag}" for one in beside)
        return f"{self.run.etag}{other}-{indexes.INDEX_VERSION}.{tile_format.TILE_VERSION}"

    def run_of(self, lane: Lane) -> Run:
        """Returns whose events the lane shows: the run's, or the baseline's."""
        return self.run if lane.kind != BASELINE or self.baseline is None else self.baseline

    def tile(
        self,
        level: int,
        index: int,
        lanes: Sequence[int],
        most: int | None = None,
        part: tuple[int, int] = WHOLE,
    ) -> bytes:
        """Returns the payload (see `tile_format`) of some lanes within one tile; of each the first
        `most` rows.

        `part` is which buckets are asked for: from the first up to the second number. Raises NoSuch
        for a level, index or lane that does not exist.
        """
        self.check(level, index, lanes)
        found: list[Placed] = []
        rows: list[tuple[int, int, int]] = []  # lane, row of the lane, row of the index
        for lane in lanes:
            counts = self.index.lanes[lane].kind == COUNTER
            for number, row in enumerate(self.index.lane_rows[lane][:most]):
                made = self.index.made(row, level, index)
                if counts:
                    block = self._samples(row, level, index) if made is None else made
                    found.append(Placed([lane], [number], KIND_COUNTER, sample_rows(block)))
                elif made is not None:
                    kept = kept_rows(made, level, part)
                    found.append(Placed([lane], [number], KIND_SLICES, kept))
                else:
                    rows.append((lane, number, row))
        for at in range(0, len(rows), _TOGETHER):
            lane_of, number_of, row_of = zip(*rows[at : at + _TOGETHER], strict=True)
            drawn = self._slices(row_of, level, index, part)
            found.append(Placed(lane_of, number_of, KIND_SLICES, drawn))
        return pack_tile(level, index, found)

    def check(self, level: int, index: int, lanes: Sequence[int]) -> None:
        """Raises NoSuch where there is no such tile or lane."""
        if not 0 <= level <= MAX_LEVEL:
            raise NoSuch(f"no level {level}, levels go from 0 to {MAX_LEVEL}")
        if not 0 <= index <= MAX_INDEX >> level:
            raise NoSuch(f"no tile {index}, level {level} has 0 to {MAX_INDEX >> level}")
        for lane in lanes:
            self.lane(lane)

    def lane(self, lane: int) -> Lane:
        """Returns the lane of this number. Raises NoSuch for an unknown one."""
        if not 0 <= lane < len(self.index.lanes):
            raise NoSuch(f"no lane {lane}, this run has {len(self.index.lanes)}, counted from 0")
        return self.index.lanes[lane]

    def _samples(self, row: int, level: int, index: int) -> Block:
        part = slice(self.index.row_begin[row], self.index.row_end[row])
        arrays = self.index.arrays
        return sample_block(
            sample_window(arrays["time"][part], arrays["value"][part], level, index)
        )

    def _slices(
        self, rows: Sequence[int], level: int, index: int, part: tuple[int, int]
    ) -> TileRows:
        slices = self.index.slices
        whole = ((self.index.row_begin[row], self.index.row_end[row]) for row in rows)
        near = narrowed(self.index.fence, whole, level, index, part)
        self.index.expect(near)
        made = window_tiles(slices.start, slices.end, near, level, index, part)
        begin = np.full(len(rows), index << (level + TILE_BITS))
        return slice_rows(made, slices, level, begin)
