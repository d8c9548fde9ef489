"""Reads tile payloads with `struct` alone, and makes the ones that Python and JavaScript test.

    python -m tests.tile_payload

writes `tests/fixtures/tile*.bin` and, beside each, the JSON of what it holds. Do that when the
payload changes on purpose; a test compares them with what the code makes now.
"""

from __future__ import annotations

import itertools
import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np

from lanescope.webapp import lod, tiles
from lanescope.webapp.samples import sample_window

FIXTURES = Path(__file__).parent / "fixtures"

SAMPLES = (("bucket", "H", 2), ("low", "f", 4), ("high", "f", 4), ("last", "f", 4))
BITS, BEFORE, AFTER = 1, 2, 4
PAINT = {0: ("B", 1), 8: ("H", 2), 16: ("I", 4)}


def decode(payload: bytes) -> dict[str, Any]:
    """What a payload holds. NaN becomes None, as JSON has no NaN. Times are ns from the tile."""
    head = struct.unpack_from("<4sHHiIIIII", payload)
    magic, version, size, level, low, count, shift, high, reserved = head
    assert (magic, version, size, reserved) == (b"LSTL", 3, 32, 0)
    at = size
    blocks = []
    for _ in range(count):
        lane, row, kind, form, n, m, data = struct.unpack_from("<IHBBHHI", payload, at)
        assert at % 4 == 0
        at += 16
        block: dict[str, Any] = {"lane": lane, "row": row, "kind": kind}
        begin = at
        if kind == 0:
            block["slices"], at = _wide(payload, at, form, n, shift)
            block["dense"], at = _dense(payload, at, form, m)
        else:
            block["leading"] = bool(m)
            block["samples"], at = _columns(payload, at, SAMPLES, n)
        assert at - begin == data
        blocks.append(block)
    assert at == len(payload)
    return {"level": level, "index": high * 2**32 + low, "unit_shift": shift, "blocks": blocks}


def _wide(
    payload: bytes, at: int, form: int, n: int, shift: int
) -> tuple[dict[str, list[Any]], int]:
    pairs, at = _columns(payload, at, (("steps", "B", 1),), 2 * n)
    count = pairs["steps"].count(255)
    large, at = _columns(payload, at, (("far", "H", 2),), count)
    far = iter(large["far"])
    edges = list(itertools.accumulate(next(far) if s == 255 else s for s in pairs["steps"]))
    paints, at = _columns(payload, at, (("paint", *PAINT[form & 24]),), n)
    found = {
        "start": [time << shift for time in edges[::2]],
        "end": [time << shift for time in edges[1::2]],
        **paints,
    }
    for flag, name, which in ((BEFORE, "start", 0), (AFTER, "end", -1)):
        if form & flag:
            found[name][which] = int(struct.unpack_from("<d", payload, at)[0])
            at += 8
    return found, at


def _dense(payload: bytes, at: int, form: int, m: int) -> tuple[dict[str, list[Any]], int]:
    bucket: list[int] | None = None
    if form & BITS:
        bits = int.from_bytes(payload[at : at + 128], "little")
        bucket = [i for i in range(1024) if bits >> i & 1]
        assert len(bucket) == m
        at += 128
    columns = (("covered", "B", 1), ("paint", *PAINT[form & 24]))
    if bucket is None:
        return _columns(payload, at, (("bucket", "H", 2), *columns), m)
    found, at = _columns(payload, at, columns, m)
    return {"bucket": bucket, **found}, at


def _columns(
    payload: bytes, at: int, columns: tuple[tuple[str, str, int], ...], count: int
) -> tuple[dict[str, list[Any]], int]:
    found = {}
    for name, code, size in columns:
        values = struct.unpack_from(f"<{count}{code}", payload, at)
        found[name] = [None if isinstance(v, float) and math.isnan(v) else v for v in values]
        at += -(-count * size // 4) * 4
    return found, at


def _slices(extents: list[tuple[int, int]], names: list[int], styles: list[int]) -> tiles.Slices:
    both, paints = np.array(extents, np.int64), tiles.Paints()
    paint = paints.add(np.array(names, np.uint32), np.array(styles, np.uint8))
    return tiles.Slices(both[:, 0].copy(), both[:, 1].copy(), paint, paints)


def mixed() -> bytes:
    """Level 12 (buckets of 4096 ns, units of 128 ns), tile 3: every kind of entry there is."""
    level, index = 12, 3
    begin = index << 22  # 12 582 912
    slices = _slices(
        [
            # lane 2: row 0
            (begin - 5_000_000, begin + 8_191),  # wide, from before the tile
            (begin + 8_192, begin + 8_192),  # a mark at the beginning of bucket 2
            (begin + 8_200, begin + 8_300),  # short, bucket 2
            (begin + 12_000, begin + 12_388),  # short, 288 ns in bucket 2 and 100 in bucket 3
            (begin + 40_960, begin + 45_057),  # wide by one nanosecond
            (
                begin + 1_023 * 4096,
                begin + (1 << 40),
            ),  # wide, past the tile, unfinished
            # lane 2: row 1
            (begin + 20_480, begin + 20_481),  # 1 ns
            # lane 7: row 0 is elsewhere
            (begin - 100, begin - 1),
        ],
        [0, 9, 4, 5, 6, 1, 300, 2],
        [1, 8, 2, 2, 3, 0 | tiles.STYLE_UNFINISHED, 4, 5],
    )
    low, high = np.array([0, 6, 7]), np.array([6, 7, 8])
    made = lod.window(slices.start, slices.end, low, high, level, index)
    blocks = tiles.slice_blocks(made, slices, level, np.full(3, begin))
    time = np.array([10, begin + 4_096, begin + 4_097, begin + 9_000, begin + (1 << 23)], np.int64)
    value = np.array([0.5, 1.0, -2.5, math.nan, 1.0])
    counter = tiles.sample_block(sample_window(time, value, level, index))
    return tiles.pack(
        level,
        index,
        [(2, 0, 0, blocks[0]), (2, 1, 0, blocks[1]), (7, 0, 0, blocks[2]), (9, 0, 1, counter)],
    )


def crowded() -> bytes:
    """Level 8, tile 0: a row with more buckets than are listed one by one, and 300 paints."""
    extents = [(k * 512, k * 512 + 1 + k % 255) for k in range(300)]
    slices = _slices(extents, list(range(300)), [1] * 300)
    made = lod.window(slices.start, slices.end, np.array([0]), np.array([300]), 8, 0)
    blocks = tiles.slice_blocks(made, slices, 8, np.array([0]))
    return tiles.pack(8, 0, [(1, 3, 0, blocks[0])])


def far() -> bytes:
    """Level 0 (nanoseconds), 101 days into a run: the tile's index needs its high word."""
    index = 2**33 + 5
    begin = index << 10
    slices = _slices([(begin + 1, begin + 2), (begin + 1023, begin + 1030)], [7, 8], [1, 2])
    made = lod.window(slices.start, slices.end, np.array([0]), np.array([2]), 0, index)
    blocks = tiles.slice_blocks(made, slices, 0, np.array([begin]))
    return tiles.pack(0, index, [(0, 0, 0, blocks[0])])


PAYLOADS = {"tile": mixed, "tile_far": far, "tile_crowded": crowded}


def main() -> None:
    for name, make in PAYLOADS.items():
        payload = make()
        (FIXTURES / f"{name}.bin").write_bytes(payload)
        text = json.dumps(decode(payload), indent=1)
        (FIXTURES / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
