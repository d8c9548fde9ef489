"""The slices that an exported page holds beside its tiles: who points, selects or searches gets
exact answers without a server. `assets/timeline/page/offline_answers.js` reads them.

Tiles hold the picture; this holds the meaning. Rows stand one after another, in the order of lanes
and rows; columns one after another, each in planes of bytes (`byte_planes.py`): `start` (ns from
the start of the one before it in its row), `length` in ns, `paint` (see `tile_columns`) and
`module` (1 + position among the texts; 0: none). All of it is deflated.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lanescope.webapp.runs.types import Int64Array
from lanescope.webapp.timeline.lanes import COUNTER
from lanescope.webapp.timeline.packed_index import planes_of
from lanescope.webapp.timeline.search.marks import modules
from lanescope.webapp.timeline.spans import SPAN_TABLES
from lanescope.webapp.timeline.timeline import Timeline

MAX_OFFLINE_SLICES = 200_000
MAX_ANSWER_BYTES = 1_200_000
"""Of the deflated block."""


@dataclass(frozen=True, eq=False)
class Kept:
    """Slices of a window. `rows` = [lane, row, slices, of ops] of each row that has any."""

    shortest_ns: int  # shorter ones are left out; 0: none is
    rows: list[list[int]]
    planes: list[int]  # bytes that each column takes of a slice
    modules: list[str]
    block: bytes

    def to_json(self) -> dict[str, Any]:
        """Returns what describes the block."""
        return {
            "shortest": self.shortest_ns,
            "rows": self.rows,
            "planes": self.planes,
            "modules": self.modules,
        }


def kept_slices(timeline: Timeline, window: tuple[int, int], lanes: Sequence[int]) -> Kept:
    """Returns the slices of some lanes that touch [t0, t1), without the shortest where there are
    many."""
    cuts = [cut for cut in _cuts(timeline, window, lanes) if cut[2] < cut[3]]
    slices = timeline.index.slices
    # By the number of bits of their lengths, so that no run is held in memory to be sorted.
    by_bits = np.zeros(65, np.int64)
    for _, _, low, high in cuts:
        lengths = slices.end[low:high] - slices.start[low:high]
        by_bits += np.bincount(np.frexp(lengths.astype(np.float64))[1], minlength=65)
    bits = 0
    while by_bits[bits:].sum() > MAX_OFFLINE_SLICES:
        bits += 1
    while (
        len((made := _packed(timeline, cuts, 1 << (bits - 1) if bits else 0)).block)
        > MAX_ANSWER_BYTES
    ):
        bits += 1
    return made


_Cut = tuple[int, int, int, int]  # lane, row of the lane, slices of the index from, and before


def _cuts(timeline: Timeline, window: tuple[int, int], lanes: Sequence[int]) -> list[_Cut]:
    index = timeline.index
    found = []
    for lane in lanes:
        if index.lanes[lane].kind == COUNTER:
            continue
        for number, row in enumerate(index.lane_rows[lane]):
            begin, end = index.row_begin[row], index.row_end[row]
            low = int(index.slices.end[begin:end].searchsorted(window[0], side="right"))
            high = int(index.slices.start[begin:end].searchsorted(window[1]))
            found.append((lane, number, begin + low, begin + high))
    return found


def _packed(timeline: Timeline, cuts: Sequence[_Cut], shortest: int) -> Kept:
    index = timeline.index
    known = modules(timeline)
    rows: list[list[int]] = []
    columns: list[list[Int64Array]] = [[], [], [], []]
    for lane, number, low, high in cuts:
        start, length = index.slices.start[low:high], index.slices.end[low:high]
        length = length - start
        chosen = np.flatnonzero(length >= shortest)
        if not len(chosen):
            continue
        row = index.lane_rows[lane][number]
        ops = SPAN_TABLES[index.arrays["row_table"][row]] == "op"
        rows.append([lane, number, len(chosen), int(ops)])
        codes = known.codes.get(lane)
        inside = np.zeros(len(chosen), np.int64)
        if ops and codes is not None:
            inside = codes[index.arrays["source"][low:high][chosen]].astype(np.int64) + 1
        paints = index.slices.paint[low:high].astype(np.int64)
        begins = start[chosen]
        parts = (np.diff(begins, prepend=0), length[chosen], paints[chosen], inside)
        for column, part in zip(columns, parts, strict=True):
            column.append(part)
    texts, columns[3] = _used(known.texts, columns[3])
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    data, planes = [], []
    for parts_of in columns:
        split = planes_of(np.concatenate([np.empty(0, np.int64), *parts_of]))
        needed = int(np.flatnonzero(split.any(axis=1)).max(initial=-1)) + 1
        planes.append(needed)
        data += [packer.compress(split[k].tobytes()) for k in range(needed)]
    return Kept(shortest, rows, planes, texts, b"".join([*data, packer.flush()]))


def _used(texts: Sequence[str], codes: list[Int64Array]) -> tuple[list[str], list[Int64Array]]:
    """Only the modules that occur, and the codes as positions among them."""
    present = np.unique(np.concatenate([np.zeros(1, np.int64), *codes]))
    known = [texts[code - 1] for code in present[1:].tolist()]
    return known, [np.searchsorted(present, part) for part in codes]
