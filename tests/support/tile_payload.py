"""Reads tile payloads with `struct` alone, and makes the ones that Python and JavaScript test.

    python -m tests.support.tile_payload

writes `tests/fixtures/tile*.bin` and, beside each, the JSON of what it holds. Do that when the
payload changes on purpose; a test compares them with what the code makes now.
"""

from __future__ import annotations

import itertools
import json
import math
import struct
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from lanescope.webapp.timeline import lod, tile_columns
from lanescope.webapp.timeline.counter_lod import sample_window
from lanescope.webapp.timeline.tile_format import KIND_COUNTER, KIND_SLICES, Placed, pack_tile
from tests.support import ROOT

FIXTURES = ROOT / "tests" / "fixtures"

COLUMNS = {
    "before": "d",
    "after": "d",
    "low": "f",
    "high": "f",
    "last": "f",
    "far": "H",
    "bucket": "H",
    "paint": "",
    "short": "",
    "steps": "B",
    "covered": "B",
    "bits": "B",
}
BITS, BEFORE, AFTER = 1, 2, 4
PAINT = {1: "B", 2: "H", 4: "I"}


def decode(payload: bytes) -> dict[str, Any]:
    """What a payload holds, by lane and row. Times are ns from the tile; None means NaN."""
    head = struct.unpack_from("<4sHHiIIIII12I", payload)
    magic, version, size, level, low, count, shift, high, paint, *sizes = head
    assert (magic, version, size) == (b"LSTL", 4, 80)
    at = size + 12 * count
    columns: dict[str, deque[Any]] = {}
    for (name, kind), length in zip(COLUMNS.items(), sizes, strict=True):
        at += -at % 8
        code = kind or PAINT[paint]
        columns[name] = deque(
            struct.unpack_from(f"<{length // struct.calcsize(code)}{code}", payload, at)
        )
        at += length
    assert at + -at % 8 == len(payload)

    def take(name: str, n: int) -> list[Any]:
        values = [columns[name].popleft() for _ in range(n)]
        return [None if isinstance(v, float) and math.isnan(v) else v for v in values]

    blocks = []
    for number in range(count):
        lane, row, kind, form, n, m = struct.unpack_from("<IHBBHH", payload, size + 12 * number)
        block: dict[str, Any] = {"lane": lane, "row": row, "kind": kind}
        if kind == 0:
            block["slices"] = _wide(take, form, n, shift)
            block["dense"] = _dense(take, form, m)
        else:
            block["leading"] = bool(m)
            block["samples"] = {name: take(name, n) for name in ("bucket", "low", "high", "last")}
        blocks.append(block)
    assert not any(columns.values())
    blocks.sort(key=lambda block: (block["lane"], block["row"]))
    return {"level": level, "index": high * 2**32 + low, "unit_shift": shift, "blocks": blocks}


Take = Callable[[str, int], list[Any]]


def _wide(take: Take, form: int, n: int, shift: int) -> dict[str, list[Any]]:
    steps = take("steps", 2 * n)
    far = iter(take("far", steps.count(255)))
    edges = list(itertools.accumulate(next(far) if s == 255 else s for s in steps))
    found = {
        "start": [time << shift for time in edges[::2]],
        "end": [time << shift for time in edges[1::2]],
        "paint": take("paint", n),
    }
    if form & BEFORE:
        found["start"][0] = int(take("before", 1)[0])
    if form & AFTER:
        found["end"][-1] = int(take("after", 1)[0])
    return found


def _dense(take: Take, form: int, m: int) -> dict[str, list[Any]]:
    if form & BITS:
        bits = int.from_bytes(bytes(take("bits", 128)), "little")
        bucket = [i for i in range(1024) if bits >> i & 1]
        assert len(bucket) == m
    else:
        bucket = take("bucket", m)
    return {"bucket": bucket, "covered": take("covered", m), "paint": take("short", m)}


def _slices(
    extents: list[tuple[int, int]], names: list[int], styles: list[int]
) -> tile_columns.Slices:
    both, paints = np.array(extents, np.int64), tile_columns.Paints()
    paint = paints.add(np.array(names, np.uint32), np.array(styles, np.uint8))
    return tile_columns.Slices(both[:, 0].copy(), both[:, 1].copy(), paint, paints)


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
        [1, 8, 2, 2, 3, 0 | tile_columns.STYLE_UNFINISHED, 4, 5],
    )
    made = lod.window_tiles(slices.start, slices.end, [(0, 6), (6, 7), (7, 8)], level, index)
    rows = tile_columns.slice_rows(made, slices, level, np.full(3, begin))
    time = np.array([10, begin + 4_096, begin + 4_097, begin + 9_000, begin + (1 << 23)], np.int64)
    value = np.array([0.5, 1.0, -2.5, math.nan, 1.0])
    counter = tile_columns.sample_block(sample_window(time, value, level, index))
    parts = [
        Placed([2, 2, 7], [0, 1, 0], KIND_SLICES, rows),
        Placed([9], [0], KIND_COUNTER, tile_columns.sample_rows(counter)),
    ]
    return pack_tile(level, index, parts)


def crowded() -> bytes:
    """Level 8, tile 0: a row with more buckets than are listed one by one, and 300 paints."""
    extents = [(k * 512, k * 512 + 1 + k % 255) for k in range(300)]
    slices = _slices(extents, list(range(300)), [1] * 300)
    made = lod.window_tiles(slices.start, slices.end, [(0, 300)], 8, 0)
    return pack_tile(
        8, 0, [Placed([1], [3], 0, tile_columns.slice_rows(made, slices, 8, np.array([0])))]
    )


def far() -> bytes:
    """Level 0 (nanoseconds), 101 days into a run: the tile's index needs its high word."""
    index = 2**33 + 5
    begin = index << 10
    slices = _slices([(begin + 1, begin + 2), (begin + 1023, begin + 1030)], [7, 8], [1, 2])
    made = lod.window_tiles(slices.start, slices.end, [(0, 2)], 0, index)
    rows = tile_columns.slice_rows(made, slices, 0, np.array([begin]))
    return pack_tile(0, index, [Placed([0], [0], 0, rows)])


PAYLOADS = {"tile": mixed, "tile_far": far, "tile_crowded": crowded}


def main() -> None:
    for name, make in PAYLOADS.items():
        payload = make()
        (FIXTURES / f"{name}.bin").write_bytes(payload)
        text = json.dumps(decode(payload), indent=1)
        (FIXTURES / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
