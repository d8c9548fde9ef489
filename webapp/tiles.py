"""The tile payload: how slices and counters at one resolution travel to the page.

Little endian, version 3; every array is padded to 4 bytes so that the page can view the buffer
through typed arrays. Only what is drawn is in it; what a slice is, to the nanosecond, is asked for
when someone points at it (`look`).

    tile    32 B  u32 magic "LSTL" | u16 version | u16 32 | i32 level | u32 index, low word
                  | u32 blocks | u32 unit shift | u32 index, high word | u32 0
    block   16 B  u32 lane | u16 row | u8 kind (0 slices, 1 counter) | u8 form | u16 n | u16 m
                  | u32 bytes of data, then the data

A tile is 1024 buckets of 2^level ns, from index * 1024 * 2^level ns of the run's axis. Times of
slices count from there in units of 2^shift ns, shift = max(0, level - 5): exact up to level 5, and
a thirty-second of a bucket beyond; rounded down, so order and distances stay.

A paint is the number of a pair of name and style (`Paints`), in 1 byte; in 2 where form has TWO, in
4 where it has FOUR.

Slices: n wide ones as n pairs `u8`: the units from the end of the one before (at first, from the
tile's start) to its start, and from there to its end. 255 stands for a number of 255 or more, which
`u16 far` gives, for all such in order. Then the paints; where form has BEFORE, `f64` the start of
the first, which lies before the tile, in ns from it; where form has AFTER, `f64` the end of the
last one likewise. Then m buckets of short ones: which, as 1024 bits where form has BITS, else `u16
bucket`; `u8 covered`, which is 32 times the root of the covered share, at least 1; and the paint of
the longest. See `lod` for what wide and short are.

So few values are told apart so that they compress well: a tile travels at half of its size.

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

from lanescope.webapp.lod import I64, TILE_BITS, TILE_BUCKETS, Tiles, offsets
from lanescope.webapp.samples import SampleTile

U32 = npt.NDArray[np.uint32]

VERSION = 3
MAGIC = 0x4C54534C
TILE_HEADER = struct.Struct("<IHHiIIIII")
BLOCK_HEADER = struct.Struct("<IHBBHHI")

EXACT_LEVEL = 5
"""Finest level whose times are counted in more than one nanosecond is the one after this: a tile
has 2^15 units, so an instant within it fits 16 bits."""

KIND_SLICES, KIND_COUNTER = 0, 1
BITS, BEFORE, AFTER, TWO, FOUR = 1, 2, 4, 8, 16
FEW = 64
"""Buckets up to which their numbers take no more room than 1024 bits."""

FAR = 255
"""Stands for a distance that takes two bytes."""

SHARES = 32
"""Steps of a covered share: its root's, so that little is told as exactly as much."""

STYLE_UNFINISHED = 0x80
"""Bit of the index's style byte that marks a slice which had not ended; the rest is the style."""

CODES_PER_NAME = 32
_PAINT_KINDS = (("u1", 0, 8), ("<u2", TWO, 16), ("<u4", FOUR, 32))  # type, form, bits
_F32 = float(np.finfo(np.float32).max)


class Paints:
    """The pairs of name and style that a run has, numbered: what a slice is drawn with.

    A hundred ops in four phases make a few hundred pairs, so that one number of one or two bytes
    says what name and style would take five for.
    """

    def __init__(self) -> None:
        self._number = np.full(CODES_PER_NAME, -1, np.int32)  # by code; -1: does not occur
        self.codes: list[int] = []

    @classmethod
    def of(cls, codes: Iterable[int]) -> Paints:
        """The paints with these codes, in the order of their numbers."""
        paints = cls()
        found = np.array(list(codes), np.int64)
        paints._reach(int(found.max(initial=0)))
        paints._number[found] = np.arange(len(found))
        paints.codes = found.tolist()
        return paints

    @property
    def names(self) -> list[int]:
        """The name of each paint."""
        return [code // CODES_PER_NAME for code in self.codes]

    @property
    def styles(self) -> list[int]:
        """The style byte of each paint, with STYLE_UNFINISHED."""
        codes = (code % CODES_PER_NAME for code in self.codes)
        return [(code >> 1) | (STYLE_UNFINISHED * (code & 1)) for code in codes]

    def add(self, name: npt.NDArray[np.uint32], style: npt.NDArray[np.uint8]) -> U32:
        """The paint of each slice; pairs that are new get the next numbers."""
        code = _code(name, style)
        self._reach(int(code.max(initial=0)))
        present = np.zeros(len(self._number), np.bool_)
        present[code] = True
        new = np.flatnonzero(present & (self._number < 0))
        self._number[new] = np.arange(len(new)) + len(self.codes)
        self.codes += new.tolist()
        return self._number.take(code).view(np.uint32)

    def _reach(self, code: int) -> None:
        missing = code + 1 - len(self._number)
        if missing > 0:
            more = np.full(max(missing, len(self._number)), -1, np.int32)
            self._number = np.concatenate((self._number, more))


def _code(name: npt.NDArray[np.uint32], style: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    # STYLE_UNFINISHED becomes the lowest bit. More than 2^27 names do not fit into memory.
    return name * np.uint32(CODES_PER_NAME) | (style << np.uint8(1) | style >> np.uint8(7))


@dataclass(frozen=True, eq=False)
class Slices:
    """Columns of the run's slices: all rows of all lanes one after another."""

    start: I64
    end: I64
    paint: U32
    paints: Paints

    @property
    def name(self) -> Looked:
        """The name of each."""
        return Looked(self.paint, np.array(self.paints.names, np.uint32))

    @property
    def style(self) -> Looked:
        """The style byte of each, with STYLE_UNFINISHED."""
        return Looked(self.paint, np.array(self.paints.styles, np.uint8))


@dataclass(frozen=True, eq=False)
class Looked:
    """What a table says of each paint in a column: read like an array, made where it is read."""

    paint: U32
    table: npt.NDArray[Any]

    def __getitem__(self, where: int | slice | I64) -> Any:
        """Of one slice, or an array."""
        return self.table.take(self.paint[where], mode="clip")  # the paints may be a stranger's


@dataclass(frozen=True)
class Block:
    """One row of one tile, ready to send but for where it belongs."""

    n: int
    m: int
    form: int
    data: bytes


def slice_blocks(tiles: Tiles, slices: Slices, level: int, begin: I64) -> list[Block]:
    """One block per tile; `begin` is where it begins in ns."""
    shift = max(0, level - EXACT_LEVEL)
    span = 1 << (level + TILE_BITS)
    wide, sizes = tiles.wide, np.diff(tiles.wide_at)
    longest = tiles.longest
    colours, short_colours = slices.paint.take(wide), slices.paint.take(longest)
    most = max(int(colours.max(initial=0)), int(short_colours.max(initial=0)))
    paint, wide_paints = next(kind for kind in _PAINT_KINDS if most < 1 << kind[2])[:2]
    origin = np.repeat(begin, sizes)
    start, end = slices.start[wide] - origin, slices.end[wide] - origin
    # Only the first of a tile can begin before it, and only the last end after it.
    some = np.flatnonzero(sizes)
    before, after = np.zeros(len(sizes), np.bool_), np.zeros(len(sizes), np.bool_)
    before[some] = start[tiles.wide_at[some]] < 0
    after[some] = end[tiles.wide_at[some + 1] - 1] > span
    columns = _Columns()
    steps = _steps(np.maximum(start, 0) >> shift, np.minimum(end, span) >> shift, tiles.wide_at)
    far = np.flatnonzero(steps >= FAR)
    columns.add(2 * tiles.wide_at, "u1", np.minimum(steps, FAR))
    columns.add(far.searchsorted(2 * tiles.wide_at), "<u2", steps[far])
    columns.add(tiles.wide_at, paint, colours)
    columns.add(_at(before), "<f8", start[tiles.wide_at[:-1][before]])
    columns.add(_at(after), "<f8", end[tiles.wide_at[1:][after] - 1])

    counts = np.diff(tiles.dense_at)
    many = counts > FEW
    if many.any():
        bits = np.zeros((len(counts), TILE_BUCKETS), np.bool_)
        bits[np.repeat(np.arange(len(counts)), counts), tiles.bucket] = True
        sets = np.packbits(bits[many], axis=1, bitorder="little")
        columns.add(_at(many) * sets.shape[1], "u1", sets.ravel())
    few = np.repeat(~many, counts)
    columns.add(offsets(np.where(many, 0, counts)), "<u2", tiles.bucket[few])
    root = np.sqrt(tiles.covered * (SHARES**2 / (1 << level)))
    columns.add(tiles.dense_at, "u1", np.maximum(1, root + 0.5))
    columns.add(tiles.dense_at, paint, short_colours)
    form = wide_paints + BITS * many + BEFORE * before + AFTER * after
    heads = zip(sizes.tolist(), counts.tolist(), form.tolist(), strict=True)
    return [Block(n, m, f, columns.cut(k)) for k, (n, m, f) in enumerate(heads)]


def _steps(start: I64, end: I64, at: I64) -> I64:
    """How far the start of each slice is from the end of the one before in its tile, and its end
    from there, in turns.
    """
    steps = np.empty((len(start), 2), np.int64)
    steps[:, 0] = start
    steps[1:, 0] -= end[:-1]
    first = at[:-1][at[1:] > at[:-1]]
    steps[first, 0] = start[first]
    np.subtract(end, start, out=steps[:, 1])
    return steps.ravel()


def sample_block(tile: SampleTile) -> Block:
    """The block of a counter. Values past float32 are cut to its largest; infinities stay."""
    columns = _Columns()
    at = np.array((0, len(tile)))
    columns.add(at, "<u2", tile.bucket)
    for value in (tile.low, tile.high, tile.last):
        columns.add(at, "<f4", np.where(np.isinf(value), value, np.clip(value, -_F32, _F32)))
    return Block(len(tile), int(tile.leading), 0, columns.cut(0))


def pack(level: int, index: int, blocks: Iterable[tuple[int, int, int, Block]]) -> bytes:
    """The payload of a tile from (lane, row, kind, block); empty blocks are left out."""
    parts = [b""]
    count = 0
    for lane, row, kind, block in blocks:
        if block.n or block.m:
            count += 1
            size = len(block.data)
            parts.append(BLOCK_HEADER.pack(lane, row, kind, block.form, block.n, block.m, size))
            parts.append(block.data)
    shift = max(0, level - EXACT_LEVEL)
    low, high = index & 0xFFFFFFFF, index >> 32
    size = TILE_HEADER.size
    parts[0] = TILE_HEADER.pack(MAGIC, VERSION, size, level, low, count, shift, high, 0)
    return b"".join(parts)


def _at(chosen: npt.NDArray[np.bool_]) -> I64:
    """Where the one entry of each chosen part begins."""
    return offsets(chosen.astype(np.int64))


class _Columns:
    """Arrays of several tiles, cut into one run of bytes per tile."""

    def __init__(self) -> None:
        self._columns: list[tuple[memoryview, list[int]]] = []

    def add(self, at: npt.NDArray[Any], dtype: str, values: npt.NDArray[Any]) -> None:
        """Adds an array: part k is `values[at[k] : at[k + 1]]`."""
        if len(values):
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
