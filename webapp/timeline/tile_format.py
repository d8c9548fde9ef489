"""The tile payload: how the rows of some lanes within one tile travel to the page.

Little endian, version 4. It holds only the picture; the facts of a slice, to the nanosecond, are
asked
for when someone points at it (`pick`). `tile_columns` describes the columns.

    tile    80 B  u32 magic "LSTL" | u16 version | u16 80 | i32 level | u32 index, low word
                  | u32 blocks | u32 unit shift | u32 index, high word | u32 bytes of a paint
                  | u32 bytes of each of the 12 columns
    block   12 B  u32 lane | u16 row | u8 kind (0 slices, 1 counter) | u8 form | u16 n | u16 m
    then the columns, each from a multiple of 8 bytes, in the order of COLUMNS

A column has the entries of all blocks, in their order: equal kinds are together, which makes a
tile a sixth smaller as it travels than row by row, and is done in one go for all rows. Rows without
entries are left out.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lanescope.webapp.timeline.tile_columns import EXACT_LEVEL, PAINTED, TileRows

TILE_VERSION = 4
_MAGIC = 0x4C54534C
_COLUMNS = (
    "before",
    "after",
    "low",
    "high",
    "last",
    "far",
    "bucket",
    "paint",
    "short",
    "steps",
    "covered",
    "bits",
)
_HEADER = struct.Struct(f"<IHHiIIIII{len(_COLUMNS)}I")
_HEAD = np.dtype(
    [("lane", "<u4"), ("row", "<u2"), ("kind", "u1"), ("form", "u1"), ("n", "<u2"), ("m", "<u2")]
)
_FIELDS = _HEAD.names or ()

KIND_SLICES, KIND_COUNTER = 0, 1

_OWN_BLOCK = 1000
"""Bytes of a column from which on a code of its own saves more than it takes."""


@dataclass(frozen=True, eq=False)
class Placed:
    """Rows of one kind, with the lane and the row of the lane of each."""

    lane: Sequence[int]
    row: Sequence[int]
    kind: int
    rows: TileRows


def pack_tile(level: int, index: int, parts: Sequence[Placed]) -> bytes:
    """Returns the payload of a tile; its blocks are in the order of the parts."""
    heads = b"".join([_heads(part) for part in parts])
    blocks = len(heads) // _HEAD.itemsize
    columns: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in _COLUMNS}
    for part in parts:
        for name, values in part.rows.columns.items():
            columns[name].append(values)
    width = max([values.itemsize for name in PAINTED for values in columns[name]], default=1)
    body = [heads, _padding(_HEADER.size + len(heads))]
    sizes = []
    for name, found in columns.items():
        if name in PAINTED:
            found = [paint.astype(f"<u{width}", copy=False) for paint in found]
        data = b"".join([values.tobytes() for values in found])
        sizes.append(len(data))
        if data:
            body += (data, _padding(len(data)))
    low, high = index & 0xFFFFFFFF, index >> 32
    about = (level, low, blocks, max(0, level - EXACT_LEVEL), high, width)
    return b"".join((_HEADER.pack(_MAGIC, TILE_VERSION, _HEADER.size, *about, *sizes), *body))


def compressed(payload: bytes) -> bytes:
    """Returns the payload as one zstd frame, at some 200 MB/s and to half of its size.

    Columns get blocks of their own, and with them codes that fit them: a tenth less than all in one
    go. What gzip would save takes ten times as long.
    """
    _, _, _, _, _, blocks, _, _, _, *sizes = _HEADER.unpack_from(payload)
    sink = pa.BufferOutputStream()
    view, at, written = memoryview(payload), _padded(_HEADER.size + blocks * _HEAD.itemsize), 0
    with pa.CompressedOutputStream(sink, "zstd") as packer:
        for size in sizes:
            if size > _OWN_BLOCK:
                packer.write(view[written:at])
                packer.flush()
                written = at
            at += _padded(size)
        packer.write(view[written:])
    found: bytes = sink.getvalue().to_pybytes()
    return found


def _heads(part: Placed) -> bytes:
    rows = part.rows
    heads = np.empty(len(rows.n), _HEAD)
    columns = (part.lane, part.row, part.kind, rows.form, rows.n, rows.m)
    for name, values in zip(_FIELDS, columns, strict=True):
        heads[name] = values
    return heads[(rows.n + rows.m) > 0].tobytes()


def _padded(size: int) -> int:
    return size + (-size & 7)


def _padding(size: int) -> bytes:
    return b"\0" * (-size & 7)
