"""The tile payload: how slices and counters at one resolution travel to the page.

Little endian, version 1; every array is padded to 4 bytes so that the page can view the buffer
through typed arrays without copying. Only what the page draws is in it: no 64-bit integers.

    tile    32 B  u32 magic "LSTL" | u16 version | u16 32 | i32 level | u32 index, low word
                  | u32 blocks | u32 unit shift | u32 index, high word | u32 0
    block   24 B  u32 lane | u16 row | u8 kind (0 slices, 1 counter) | u8 0 | u32 n | u32 m
                  | u32 bytes of data | u32 0, then the data

A tile is 1024 buckets of 2^level ns, from index * 1024 * 2^level ns of the run's axis. Times of
slices count from there in units of 2^shift ns, shift = max(0, level - 10): exact up to level 10,
and a thousandth of a bucket beyond. They are cut to +-2^30 units.

Slices: n wide ones `i32 start, i32 end, u32 name, u32 ref, u8 style, u8 flags`, then m buckets of
short ones `u16 bucket, u16 covered, u32 count, u32 name, u32 ref, u8 style`, where covered is the
covered share of the bucket in 65535ths, at least 1, and name, ref and style are those of the
longest. See `lod` for what wide, short and count are. `ref` is the slice's position in its lane.

Counter: n entries `u16 bucket, f32 least, f32 greatest, f32 last`. m is 1 where entry 0 is not of
this tile but the value in force as it begins.

Rows without entries are left out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lanescope.webapp.lod import I64, TILE_BITS, Tiles
from lanescope.webapp.samples import SampleTile

VERSION = 1
MAGIC = 0x4C54534C
TILE_HEADER = struct.Struct("<IHHiIIIII")
BLOCK_HEADER = struct.Struct("<IHBBIIII")

EXACT_LEVEL = 10
"""Finest level whose times are counted in more than one nanosecond is the one after this."""
TIME_LIMIT = 1 << 30

KIND_SLICES, KIND_COUNTER = 0, 1
FLAG_UNFINISHED, FLAG_BEFORE, FLAG_AFTER = 1, 2, 4
STYLE_UNFINISHED = 0x80
"""Bit of the index's style byte that marks a slice which had not ended; the rest is the style."""

_F32 = float(np.finfo(np.float32).max)


@dataclass(frozen=True, eq=False)
class Slices:
    """Columns of the run's slices: all rows of all lanes one after another."""

    start: I64
    end: I64
    name: npt.NDArray[np.uint32]
    style: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Block:
    """One row of one tile, ready to send but for where it belongs."""

    n: int
    m: int
    data: bytes


def slice_blocks(tiles: Tiles, slices: Slices, level: int, begin: I64, base: I64) -> list[Block]:
    """One block per tile; `begin` is where it begins in ns, `base` its lane's first position."""
    shift = max(0, level - EXACT_LEVEL)
    wide, sizes = tiles.wide, np.diff(tiles.wide_at)
    origin = np.repeat(begin, sizes)
    start, end, style = slices.start[wide], slices.end[wide], slices.style[wide]
    flags = np.where(style & STYLE_UNFINISHED, FLAG_UNFINISHED, 0)
    flags |= np.where(start < origin, FLAG_BEFORE, 0)
    flags |= np.where(end > origin + (1 << (level + TILE_BITS)), FLAG_AFTER, 0)
    columns = _Columns()
    columns.add(tiles.wide_at, "<i4", _units(start - origin, shift))
    columns.add(tiles.wide_at, "<i4", _units(end - origin, shift))
    columns.add(tiles.wide_at, "<u4", slices.name[wide])
    columns.add(tiles.wide_at, "<u4", wide - np.repeat(base, sizes))
    columns.add(tiles.wide_at, "u1", style & ~np.uint8(STYLE_UNFINISHED))
    columns.add(tiles.wide_at, "u1", flags)

    longest = tiles.longest
    covered = np.maximum(1, tiles.covered * 65535 >> level)  # below 2^40 * 2^16: no overflow
    columns.add(tiles.dense_at, "<u2", tiles.bucket)
    columns.add(tiles.dense_at, "<u2", covered)
    columns.add(tiles.dense_at, "<u4", tiles.count)
    columns.add(tiles.dense_at, "<u4", slices.name[longest])
    columns.add(tiles.dense_at, "<u4", longest - np.repeat(base, np.diff(tiles.dense_at)))
    columns.add(tiles.dense_at, "u1", slices.style[longest] & ~np.uint8(STYLE_UNFINISHED))
    counts = zip(sizes.tolist(), np.diff(tiles.dense_at).tolist(), strict=True)
    return [Block(n, m, columns.cut(k)) for k, (n, m) in enumerate(counts)]


def sample_block(tile: SampleTile) -> Block:
    """The block of a counter. Values past float32 are cut to its largest; infinities stay."""
    columns = _Columns()
    at = np.array((0, len(tile)))
    columns.add(at, "<u2", tile.bucket)
    for value in (tile.low, tile.high, tile.last):
        columns.add(at, "<f4", np.where(np.isinf(value), value, np.clip(value, -_F32, _F32)))
    return Block(len(tile), int(tile.leading), columns.cut(0))


def pack(level: int, index: int, blocks: Iterable[tuple[int, int, int, Block]]) -> bytes:
    """The payload of a tile from (lane, row, kind, block); empty blocks are left out."""
    parts = [b""]
    count = 0
    for lane, row, kind, block in blocks:
        if block.n or block.m:
            count += 1
            size = len(block.data)
            parts.append(BLOCK_HEADER.pack(lane, row, kind, 0, block.n, block.m, size, 0))
            parts.append(block.data)
    shift = max(0, level - EXACT_LEVEL)
    low, high = index & 0xFFFFFFFF, index >> 32
    size = TILE_HEADER.size
    parts[0] = TILE_HEADER.pack(MAGIC, VERSION, size, level, low, count, shift, high, 0)
    return b"".join(parts)


def _units(time: I64, shift: int) -> I64:
    units: I64 = np.clip(time >> shift, -TIME_LIMIT, TIME_LIMIT)
    return units


class _Columns:
    """Arrays of several tiles, cut into one run of bytes per tile."""

    def __init__(self) -> None:
        self._columns: list[tuple[memoryview, list[int]]] = []

    def add(self, at: npt.NDArray[Any], dtype: str, values: npt.NDArray[Any]) -> None:
        """Adds an array: part k is `values[at[k] : at[k + 1]]`."""
        data = values.astype(dtype)
        self._columns.append((memoryview(data.tobytes()), (at * data.itemsize).tolist()))

    def cut(self, k: int) -> bytes:
        """Part k of all arrays, each padded to 4 bytes."""
        parts: list[bytes | memoryview] = []
        for data, at in self._columns:
            low, high = at[k], at[k + 1]
            if low != high:
                parts += (data[low:high], b"\0\0\0"[: low - high & 3])
        return b"".join(parts)
