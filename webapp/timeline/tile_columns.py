"""What is drawn of slices and counters within one tile, as columns of small numbers.

A tile is 1024 buckets of 2^level ns, from index * 1024 * 2^level ns of the run's axis. Times of
slices count from there in units of 2^shift ns, shift = max(0, level - 5): exact up to level 5, and
a thirty-second of a bucket beyond; rounded down, so order and distances stay.

A paint is the number of a pair of name and style (`Paints`), in 1 byte; in 2 or 4 where it needs
them.

Slices: n wide ones as n pairs `u8 steps`: the units from the end of the one before (at first, from
the tile's start) to its start, and from there to its end. 255 means a number of 255 or more,
which `u16 far` gives, for all such in order. Then their `paint`; where form has BEFORE, `f64
before`, the start of the first, which is before the tile, in ns from it; where form has AFTER,
`f64 after`, the end of the last one likewise. Then m buckets of short ones: which, as 1024 `bits`
where form has BITS, else as `u16 bucket`; `u8 covered`, which is 32 times the root of the covered
share, at least 1; and `short`, the paint of the longest. See `lod` for what wide and short are.

Counter: n entries `u16 bucket, f32 low, f32 high, f32 last`. m is 1 where entry 0 is not of this
tile but the value in force as it begins.

What of a tile is asked for may be a part of it, some buckets side by side: then only the slices
and buckets that touch these are listed, with the same numbers.

So few values are distinct that they compress well. How rows travel together is `tile_format.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lanescope.webapp.runs.types import BoolArray, Int64Array, UInt8Array, UInt32Array
from lanescope.webapp.timeline.counter_lod import SampleTile
from lanescope.webapp.timeline.lod import TILE_BITS, TILE_BUCKETS, WHOLE, Tiles
from lanescope.webapp.timeline.lod_buckets import offsets

EXACT_LEVEL = 5
"""Finest level whose times are counted in more than one nanosecond is the one after this: a tile
has 2^15 units, so an instant within it fits 16 bits."""

BITS, BEFORE, _AFTER, TWO, FOUR = 1, 2, 4, 8, 16
"""Bits of a form. TWO and FOUR, the bytes of a paint, are those of a row that is kept alone."""

SMALL_COUNT = 64
"""Buckets up to which their numbers take no more room than 1024 bits."""

ESCAPE_BYTE = 255
"""Stands for a distance that takes two bytes."""

SHARES = 32
"""Quantisation levels of sqrt(coverage): keeps relative precision for small coverage."""

STYLE_UNFINISHED = 0x80
"""Bit of the index's style byte that marks a slice which had not ended; the rest is the style."""

CODES_PER_NAME = 32
_TOGETHER = 1 << 16
"""Slices that are numbered in one go."""
_PAINT_KINDS = (("u1", 8), ("<u2", 16), ("<u4", 32))  # type, bits
_WIDTHS = {1: 0, 2: TWO, 4: FOUR}
PAINTED = ("paint", "short")
"""Columns of paints."""
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
        """Returns the paints with these codes, in the order of their numbers."""
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

    def add(self, name: UInt32Array, style: UInt8Array) -> UInt32Array:
        """Returns the paint of each slice; pairs that are new get the next numbers."""
        self._reach(CODES_PER_NAME * (int(name.max(initial=0)) + 1) - 1)
        found = np.empty(len(name), np.uint32)
        for at in range(0, len(name), _TOGETHER):
            part = slice(at, at + _TOGETHER)
            code = _code(name[part], style[part])
            number = self._number.take(code)
            if number.min() < 0:
                new = np.unique(code[number < 0])
                self._number[new] = np.arange(len(new)) + len(self.codes)
                self.codes += new.tolist()
                number = self._number.take(code)
            found[part] = number
        return found

    def _reach(self, code: int) -> None:
        missing = code + 1 - len(self._number)
        if missing > 0:
            more = np.full(max(missing, len(self._number)), -1, np.int32)
            self._number = np.concatenate((self._number, more))


def _code(name: UInt32Array, style: UInt8Array) -> UInt32Array:
    # STYLE_UNFINISHED becomes the lowest bit. More than 2^27 names do not fit into memory.
    return name * np.uint32(CODES_PER_NAME) | (style << np.uint8(1) | style >> np.uint8(7))


@dataclass(frozen=True, eq=False)
class Slices:
    """Columns of the run's slices: all rows of all lanes one after another."""

    start: Int64Array
    end: Int64Array
    paint: UInt32Array
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

    paint: UInt32Array
    table: npt.NDArray[Any]

    def __getitem__(self, where: int | slice | Int64Array) -> Any:
        """Of one slice, or an array."""
        return self.table.take(self.paint[where], mode="clip")  # the paints may be a stranger's


@dataclass(frozen=True)
class Block:
    """One row of one tile, as it is kept: the columns that it has one after another, each padded to
    4 bytes: steps, far, paint, before, after, bits, bucket, covered, short; of a counter bucket,
    low, high, last.
    """

    n: int
    m: int
    form: int
    data: bytes


_Column = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class TileRows:
    """Some rows of one tile, one after another in each column; rows without entries are among them.

    Columns that no row needs are left out.
    """

    n: Int64Array
    m: Int64Array
    form: Int64Array  # BITS, BEFORE and AFTER
    columns: Mapping[str, _Column]


def slice_rows(tiles: Tiles, slices: Slices, level: int, begin: Int64Array) -> TileRows:
    """Returns the rows of `tiles`; `begin` is where the tile of each begins in ns."""
    n, m, form, columns = _columns_of(tiles, slices, level, begin)
    return TileRows(n, m, form, {name: values for name, _, values in columns})


def slice_blocks(tiles: Tiles, slices: Slices, level: int, begin: Int64Array) -> list[Block]:
    """Returns one block per tile; `begin` is where it begins in ns."""
    n, m, form, columns = _columns_of(tiles, slices, level, begin)
    width = max((values.itemsize for name, _, values in columns if name in PAINTED), default=1)
    cutter = _Cutter(columns)
    heads = zip(n.tolist(), m.tolist(), (form | _WIDTHS[width]).tolist(), strict=True)
    return [Block(*head, cutter.cut(k)) for k, head in enumerate(heads)]


def _columns_of(
    tiles: Tiles, slices: Slices, level: int, begin: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array, list[tuple[str, Int64Array, _Column]]]:
    """Of each tile n, m and form; and the columns that have entries, each with where the entries
    of each tile begin, in the order of `Block`.
    """
    shift = max(0, level - EXACT_LEVEL)
    span = 1 << (level + TILE_BITS)
    wide, wide_at, dense_at = tiles.wide, tiles.wide_at, tiles.dense_at
    sizes, counts = wide_at[1:] - wide_at[:-1], dense_at[1:] - dense_at[:-1]
    colours, short_colours = slices.paint.take(wide), slices.paint.take(tiles.longest)
    most = max(int(colours.max(initial=0)), int(short_colours.max(initial=0)))
    paint = next(kind for kind, bits in _PAINT_KINDS if most < 1 << bits)
    form = np.zeros(len(sizes), np.int64)
    columns: list[tuple[str, Int64Array, _Column]] = []
    if len(wide):
        origin = begin.repeat(sizes)
        start, end = slices.start.take(wide) - origin, slices.end.take(wide) - origin
        # Only the first of a tile can begin before it, and only the last end after it.
        (some,) = sizes.nonzero()
        before, after = np.zeros(len(sizes), np.bool_), np.zeros(len(sizes), np.bool_)
        before[some] = start[wide_at[some]] < 0
        after[some] = end[wide_at[some + 1] - 1] > span
        steps = _steps(np.maximum(start, 0) >> shift, np.minimum(end, span) >> shift, wide_at)
        (far,) = (steps >= ESCAPE_BYTE).nonzero()
        columns = [
            ("steps", 2 * wide_at, np.minimum(steps, ESCAPE_BYTE).astype("u1")),
            ("far", far.searchsorted(2 * wide_at), steps[far].astype("<u2")),
            ("paint", wide_at, colours.astype(paint)),
            ("before", _at(before), start[wide_at[:-1][before]].astype("<f8")),
            ("after", _at(after), end[wide_at[1:][after] - 1].astype("<f8")),
        ]
        form += BEFORE * before + _AFTER * after
    if len(tiles.bucket):
        many = counts > SMALL_COUNT
        if many.any():
            bits = np.zeros(len(counts) * TILE_BUCKETS, np.bool_)
            bits[np.arange(0, len(bits), TILE_BUCKETS).repeat(counts) + tiles.bucket] = True
            sets = np.packbits(bits.reshape(-1, TILE_BUCKETS)[many], axis=1, bitorder="little")
            columns.append(("bits", _at(many) * sets.shape[1], sets.ravel()))
            form += BITS * many
        few = tiles.bucket[(~many).repeat(counts)]
        root = np.sqrt(tiles.covered * (SHARES**2 / (1 << level)))
        columns += [
            ("bucket", offsets(np.where(many, 0, counts)), few.astype("<u2")),
            ("covered", dense_at, np.maximum(1, root + 0.5).astype("u1")),
            ("short", dense_at, short_colours.astype(paint)),
        ]
    return sizes, counts, form, [column for column in columns if len(column[2])]


def _steps(start: Int64Array, end: Int64Array, at: Int64Array) -> Int64Array:
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
    """Returns the block of a counter. Values past float32 are cut to its largest; infinities
    stay."""
    at = np.array((0, len(tile)))
    values = (("low", tile.low), ("high", tile.high), ("last", tile.last))
    cut = [(name, np.where(np.isinf(v), v, np.clip(v, -_F32, _F32))) for name, v in values]
    columns = [("bucket", at, tile.bucket.astype("<u2"))]
    columns += [(name, at, value.astype("<f4")) for name, value in cut]
    return Block(len(tile), int(tile.leading), 0, _Cutter(columns).cut(0))


def sample_rows(block: Block) -> TileRows:
    """Returns a counter's block as it travels; always the whole tile, which is small."""
    reader = _Reader(block.data)
    columns = {"bucket": reader.take("<u2", block.n)}
    columns |= {name: reader.take("<f4", block.n) for name in ("low", "high", "last")}
    return TileRows(np.array([block.n]), np.array([block.m]), np.zeros(1, np.int64), columns)


def kept_rows(block: Block, level: int, part: tuple[int, int] = WHOLE) -> TileRows:
    """Returns a row of slices that is kept, or what of it touches the buckets part[0] up to
    part[1]."""
    n, m, form = block.n, block.m, block.form & (BITS | BEFORE | _AFTER)
    paint = "<u4" if block.form & FOUR else "<u2" if block.form & TWO else "u1"
    reader = _Reader(block.data)
    columns: dict[str, _Column] = {}
    if n:
        columns["steps"] = reader.take("u1", 2 * n)
        columns["far"] = reader.take("<u2", int(np.count_nonzero(columns["steps"] == ESCAPE_BYTE)))
        columns["paint"] = reader.take(paint, n)
        columns["before"] = reader.take("<f8", int(bool(form & BEFORE)))
        columns["after"] = reader.take("<f8", int(bool(form & _AFTER)))
    if m:
        if form & BITS:
            columns["bits"] = reader.take("u1", TILE_BUCKETS // 8)
        else:
            columns["bucket"] = reader.take("<u2", m)
        columns["covered"] = reader.take("u1", m)
        columns["short"] = reader.take(paint, m)
    if part != WHOLE:
        n, form = _cut_wide(columns, form, part, level) if n else (0, form)
        m = _cut_dense(columns, part) if m else 0
        if not m:
            columns.pop("bits", None)
            form &= ~BITS
    return TileRows(np.array([n]), np.array([m]), np.array([form]), columns)


def _cut_wide(
    columns: dict[str, _Column], form: int, part: tuple[int, int], level: int
) -> tuple[int, int]:
    """Leaves the wide slices that touch some buckets; returns how many there are, and the form."""
    steps = columns["steps"].astype(np.int64)
    steps[steps == ESCAPE_BYTE] = columns["far"]
    edges = np.cumsum(steps)
    bucket = min(level, EXACT_LEVEL)
    # To the precision of the units: an end on the edge may be a little beyond it.
    low = int(edges[1::2].searchsorted(part[0] << bucket))
    high = max(low, int(edges[::2].searchsorted(part[1] << bucket)))
    if low == high:
        for name in ("steps", "far", "paint", "before", "after"):
            columns[name] = columns[name][:0]
        return 0, form & BITS
    if low:
        columns["before"] = columns["before"][:0]
        form &= ~BEFORE
    if high < len(edges) // 2:
        columns["after"] = columns["after"][:0]
        form &= ~_AFTER
    kept = steps[2 * low : 2 * high]
    kept[0] = edges[2 * low]
    columns["steps"] = np.minimum(kept, ESCAPE_BYTE).astype("u1")
    columns["far"] = kept[kept >= ESCAPE_BYTE].astype("<u2")
    columns["paint"] = columns["paint"][low:high]
    return high - low, form


def _cut_dense(columns: dict[str, _Column], part: tuple[int, int]) -> int:
    """Leaves the buckets that are among some; returns how many have short slices."""
    if "bits" in columns:
        present = np.unpackbits(columns["bits"], bitorder="little")
        low, high = (int(np.count_nonzero(present[:edge])) for edge in part)
        present[: part[0]] = 0
        present[part[1] :] = 0
        columns["bits"] = np.packbits(present, bitorder="little")
    else:
        low, high = columns["bucket"].searchsorted(part).tolist()
        columns["bucket"] = columns["bucket"][low:high]
    for name in ("covered", "short"):
        columns[name] = columns[name][low:high]
    return high - low


def _at(chosen: BoolArray) -> Int64Array:
    """Where the one entry of each chosen part begins."""
    return offsets(chosen.astype(np.int64))


class _Cutter:
    """Columns of several tiles, cut into one run of bytes per tile."""

    def __init__(self, columns: Iterable[tuple[str, Int64Array, _Column]]) -> None:
        self._columns = [
            (memoryview(values.tobytes()), (at * values.itemsize).tolist())
            for _, at, values in columns
        ]

    def cut(self, k: int) -> bytes:
        """Part k of all columns, each padded to 4 bytes."""
        parts: list[bytes | memoryview] = []
        for data, at in self._columns:
            low, high = at[k], at[k + 1]
            if low != high:
                parts += (data[low:high], b"\0\0\0"[: low - high & 3])
        return b"".join(parts)


class _Reader:
    """Takes the columns of one tile again."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, dtype: str, count: int) -> _Column:
        """The next column, of so many numbers."""
        found = np.frombuffer(self._data, dtype, count, self._at)
        self._at += found.nbytes + (-found.nbytes & 3)
        return found
