"""The tile payload: the fixture that JavaScript reads too, and tiles of whole runs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lanescope.webapp.runs.run import open_run
from lanescope.webapp.timeline import counter_lod, lod, tile_columns
from lanescope.webapp.timeline.counter_lod import sample_window
from lanescope.webapp.timeline.index import Index, open_index
from lanescope.webapp.timeline.search.lookup import slices_in_window
from lanescope.webapp.timeline.tile_columns import STYLE_UNFINISHED, Paints
from lanescope.webapp.timeline.tile_format import (
    KIND_COUNTER,
    KIND_SLICES,
    Placed,
    compressed,
    pack_tile,
)
from lanescope.webapp.timeline.timeline import MAX_INDEX, NoSuch, Timeline
from tests.support.synthetic import START_NS, Builder, write_run
from tests.support.tile_payload import FIXTURES, PAYLOADS, decode


@pytest.mark.parametrize("name", list(PAYLOADS))
def test_fixture_is_what_the_code_makes(name: str) -> None:
    payload = (FIXTURES / f"{name}.bin").read_bytes()
    assert PAYLOADS[name]() == payload
    assert decode(payload) == json.loads((FIXTURES / f"{name}.json").read_text(encoding="utf-8"))


def test_fixture_on_paper() -> None:
    tile = decode((FIXTURES / "tile.bin").read_bytes())
    assert (tile["level"], tile["index"], tile["unit_shift"]) == (12, 3, 7)
    first, second, counter = tile["blocks"]  # lane 7 has nothing in this tile
    assert [(b["lane"], b["row"], b["kind"]) for b in tile["blocks"]] == [
        (2, 0, 0),
        (2, 1, 0),
        (9, 0, 1),
    ]
    # Paints count the names 0 1 2 4 5 6 9 300. Times within the tile are rounded down to 128 ns,
    # those beyond it are exact.
    assert first["slices"] == {
        "start": [-5_000_000, 40_960, 1023 * 4096],
        "end": [8_191 // 128 * 128, 45_057 // 128 * 128, 1 << 40],
        "paint": [0, 5, 1],
    }
    # Bucket 2 holds a mark, 100 ns and 288 ns of the 388 ns whose last 100 are in bucket 3.
    assert first["dense"] == {
        "bucket": [2, 3],
        "covered": [round(32 * math.sqrt(ns / 4096)) for ns in (100 + 288, 100)],
        "paint": [4, 4],
    }
    assert second["dense"] == {"bucket": [5], "covered": [1], "paint": [7]}
    assert (counter["leading"], counter["samples"]["bucket"]) == (True, [0, 1, 2])
    far = decode((FIXTURES / "tile_far.bin").read_bytes())
    assert far["index"] == 2**33 + 5
    (crowded,) = decode((FIXTURES / "tile_crowded.bin").read_bytes())["blocks"]
    assert crowded["dense"]["bucket"] == [2 * k for k in range(300)]
    assert crowded["dense"]["paint"] == list(range(300))


def test_paints_number_pairs_of_name_and_style() -> None:
    paints = Paints()
    first = np.array([7, 7, 2], np.uint32), np.array([1, STYLE_UNFINISHED | 1, 8], np.uint8)
    numbers = paints.add(*first)
    paints.add(np.array([2, 7000], np.uint32), np.array([8, 0], np.uint8))
    slices = tile_columns.Slices(numbers, numbers, numbers, paints)
    assert [slices.name[:].tolist(), slices.style[:].tolist()] == [one.tolist() for one in first]
    assert (int(slices.name[2]), int(slices.style[1])) == (2, STYLE_UNFINISHED | 1)
    assert sorted(zip(paints.names, paints.styles, strict=True)) == [
        (2, 8),
        (7, 1),
        (7, 0x81),
        (7000, 0),
    ]
    again = Paints.of(paints.codes)
    name, style = np.array([7000, 7], np.uint32), np.array([0, 0x81], np.uint8)
    assert again.add(name, style).tolist() == paints.add(name, style).tolist()
    assert again.codes == paints.codes


def test_covered_share_is_never_nothing_and_never_more_than_all() -> None:
    start = np.array([0, 1 << 40, (1 << 41) - 1], np.int64)
    end = np.array([0, (1 << 41) - 1, 1 << 41], np.int64)
    made = lod.window_tiles(start, end, [(0, 3)], lod.MAX_LEVEL, 0)
    zeros, paints = np.zeros(3, np.uint32), Paints()
    slices = tile_columns.Slices(start, end, paints.add(zeros, zeros.astype(np.uint8)), paints)
    rows = tile_columns.slice_rows(made, slices, lod.MAX_LEVEL, np.array([0]))
    dense = decode(pack_tile(lod.MAX_LEVEL, 0, [Placed([0], [0], KIND_SLICES, rows)]))["blocks"][0][
        "dense"
    ]
    assert dense["bucket"] == [0, 1]
    assert dense["covered"] == [1, 32]


def test_counter_values_past_float32_stay_finite() -> None:
    tile = sample_window(np.array([5]), np.array([1e300]), 0, 0)
    rows = tile_columns.sample_rows(tile_columns.sample_block(tile))
    sample = decode(pack_tile(0, 0, [Placed([0], [0], KIND_COUNTER, rows)]))["blocks"][0]["samples"]
    assert sample["low"] == [pytest.approx(3.4028235e38)]


Blocks = dict[tuple[int, int], dict[str, Any]]


def blocks_of(payload: bytes) -> Blocks:
    return {(one["lane"], one["row"]): one for one in decode(payload)["blocks"]}


def every_tile(timeline: Timeline) -> dict[tuple[int, int], Blocks]:
    lanes = range(len(timeline.index.lanes))
    found = {}
    for level in range(8, lod.MAX_LEVEL + 1):
        for index in range((timeline.run.duration_ns >> (level + 10)) + 2):
            found[level, index] = blocks_of(timeline.tile(level, index, lanes))
    return found


@pytest.mark.slow
def test_tiles_made_ahead_equal_those_made_on_demand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_run(write_run(tmp_path / "run", ranks=2, threads=2, steps=6, ops=60))
    plain = Timeline(run, open_index(run, None))
    assert len(plain.index.arrays["made_key"]) == 0
    monkeypatch.setattr(lod, "RAW_LIMIT", 3)
    monkeypatch.setattr(counter_lod, "RAW_LIMIT", 3)
    ahead = Timeline(run, open_index(run, None))
    assert len(ahead.index.arrays["made_key"]) > 100
    whole = every_tile(plain)
    assert every_tile(ahead) == whole
    # Parts of them hold what of the whole tile touches these buckets, whichever way they are made.
    lanes = range(len(plain.index.lanes))
    for (level, index), blocks in whole.items():
        for part in ((0, 128), (128, 896), (500, 501), (640, 1024)):
            expected = {place: of_part(block, part, level) for place, block in blocks.items()}
            expected = {place: block for place, block in expected.items() if holds(block)}
            for timeline in (plain, ahead):
                found = blocks_of(timeline.tile(level, index, lanes, None, part))
                found = {place: of_part(block, part, level) for place, block in found.items()}
                assert {place: block for place, block in found.items() if holds(block)} == expected


def of_part(block: dict[str, Any], part: tuple[int, int], level: int) -> dict[str, Any]:
    """A block with nothing but the drawn slices of some buckets."""
    if block["kind"] == KIND_COUNTER:
        return block
    low, high = (edge << level for edge in part)
    wide = zip(*block["slices"].values(), strict=True)
    dense = zip(*block["dense"].values(), strict=True)
    return {
        "slices": [one for one in wide if one[1] > low and one[0] < high],
        "dense": [one for one in dense if part[0] <= one[0] < part[1]],
    }


def holds(block: dict[str, Any]) -> bool:
    return "samples" in block or bool(block["slices"] or block["dense"])


def test_every_slice_is_in_every_level_exactly_once(tmp_path: Path) -> None:
    shape = {"ranks": 1, "threads": 2, "steps": 4, "ops": 50, "step_ns": 20_000}
    run = open_run(write_run(tmp_path / "run", **shape))
    timeline = Timeline(run, open_index(run, None))
    thread = next(lane for lane in timeline.index.lanes if lane.thread == "1000-1")
    events = run.counts["op"] // 2 + run.counts["phase"] // 2
    for level in range(0, lod.MAX_LEVEL + 1, 3):
        wide: set[tuple[int, int]] = set()
        count = 0
        for index in range((run.duration_ns >> (level + 10)) + 1):
            begin = index << (level + 10)
            for block in decode(timeline.tile(level, index, [thread.id]))["blocks"]:
                row = block["row"]
                found = zip(block["slices"]["start"], block["slices"]["end"], strict=True)
                for start, end in found:
                    # Those that reach into several tiles are the same one in each.
                    at = begin + (start + end) // 2
                    exact = slices_in_window(timeline, thread.id, row, (at, at + 1))
                    wide.add((row, exact["ref"]))
                for bucket in block["dense"]["bucket"]:
                    t0 = begin + (bucket << level)
                    window = (t0, t0 + (1 << level))
                    count += slices_in_window(timeline, thread.id, row, window, 1 << level)["count"]
        assert len(wide) + count == events


def test_unfinished_slice_and_what_overlaps_it(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    thread = builder.thread()
    builder.op(START_NS, None, "aten::stuck", thread=thread)
    builder.op(START_NS + 100, 50, "aten::late", thread=thread)
    builder.op(START_NS + 900, 100, "aten::last", thread=thread)
    run = open_run(builder.write())
    timeline = Timeline(run, open_index(run, None))
    blocks = decode(timeline.tile(0, 0, [0]))["blocks"]
    assert [block["row"] for block in blocks] == [0, 1]
    stuck, others = (block["slices"] for block in blocks)
    assert (stuck["start"], stuck["end"]) == ([0], [1000])
    assert (others["start"], others["end"]) == ([100, 900], [150, 1000])
    unfinished = [bool(style & STYLE_UNFINISHED) for style in timeline.index.paints.styles]
    assert [unfinished[paint] for paint in stuck["paint"] + others["paint"]] == [True, False, False]
    assert [slices_in_window(timeline, 0, row, (110, 111))["ref"] for row in (0, 1)] == [0, 1]


def test_instant_and_one_nanosecond_are_there_at_every_level(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    thread = builder.thread()
    begin = START_NS + np.arange(20_000, dtype=np.int64) * 50
    builder.rows("op", 0, thread, start_ns=begin, duration_ns=40, name="aten::mm")
    builder.op(START_NS + 3_000_000, 1, "aten::tiny", thread=thread)
    builder.phase(START_NS + 2_000_000, 0, "mark", name="here", thread=thread)
    run = open_run(builder.write())
    timeline = Timeline(run, open_index(run, None))
    assert len(timeline.index.arrays["made_key"]) > 0
    names = [timeline.index.names[name] for name in timeline.index.paints.names]
    tiny, mark = (names.index(name) for name in ("aten::tiny", "here"))
    for level in range(lod.MAX_LEVEL + 1):
        marks, ops = (
            decode(timeline.tile(level, at >> (level + 10), [0]))["blocks"]
            for at in (2_000_000, 3_000_000)
        )
        dense = marks[0]["dense"]
        assert (dense["paint"], dense["covered"]) == ([mark], [1])
        assert dense["bucket"] == [2_000_000 >> level & 1023]
        last = ops[-1]
        if level == 0:
            assert last["slices"]["paint"] == [tiny]
            assert last["slices"]["start"] == [3_000_000 & 1023]
            continue
        at = last["dense"]["bucket"].index(3_000_000 >> level & 1023)
        assert last["dense"]["covered"][at] >= 1
        begin = 3_000_000 >> level << level
        exact = slices_in_window(timeline, 0, 1, (begin, begin + (1 << level)), 1 << level)
        if level < 20:  # above, it shares its bucket with longer ones
            assert last["dense"]["paint"][at] == tiny
            assert (exact["name"], exact["count"], exact["covered_ns"]) == ("aten::tiny", 1, 1)
    assert slices_in_window(timeline, 0, 1, (0, 1 << 40), 1 << 40)["count"] == 20_001


def test_only_the_first_rows_where_no_more_are_asked_for(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run", ranks=1, threads=1, steps=2, ops=8))
    timeline = Timeline(run, open_index(run, None))
    whole = decode(timeline.tile(14, 0, [0]))["blocks"]
    assert [block["row"] for block in whole] == [0, 1, 2]
    assert decode(timeline.tile(14, 0, [0], 2))["blocks"] == whole[:2]


def test_compressed_payload_is_one_frame_that_holds_all_of_it(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run", ranks=2, threads=4, steps=30, ops=60))
    timeline = Timeline(run, open_index(run, None))
    for level, lanes in ((14, range(len(timeline.index.lanes))), (14, [0]), (40, [])):
        payload = timeline.tile(level, 0, lanes)
        packed = compressed(payload)
        assert pa.Codec("zstd").decompress(packed, len(payload), asbytes=True) == payload


def test_tile_reads_no_slices_but_those_it_had_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lod, "FENCE", 16)
    run = open_run(write_run(tmp_path / "run", ranks=1, threads=2, steps=20, ops=40))
    index = open_index(run, None)
    tile = int(index.slices.start[-500]) >> (5 + lod.TILE_BITS)
    fetched: list[tuple[int, int]] = []
    with monkeypatch.context() as patch:
        patch.setattr(Index, "expect", lambda _, parts: fetched.extend(parts))
        whole = Timeline(run, index).tile(5, tile, [0, 1])
    near = np.zeros(len(index.slices.start), np.bool_)
    for low, high in fetched:
        near[low:high] = True
    assert 0 < np.count_nonzero(near) < len(near) / 4
    others = {name: np.where(near, index.arrays[name], 0) for name in ("start", "end", "paint")}
    bare = Index.of(index.lanes, index.names, index.paints, {**index.arrays, **others})
    assert Timeline(run, bare).tile(5, tile, [0, 1]) == whole
    blocks = decode(whole)["blocks"]
    assert {block["lane"] for block in blocks} == {0, 1}
    assert {block["row"] for block in blocks} == {0, 1, 2}


def test_thousands_of_lanes_in_one_tile(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    builder.op(START_NS, 100, thread=builder.thread())
    run = open_run(builder.write())
    index = open_index(run, None)
    zeros, ones = np.zeros(3000, np.int64), np.ones(3000, np.int64)
    rows = {"row_begin": zeros, "row_end": ones, "row_made": zeros}
    many = Index.of(index.lanes * 3000, index.names, index.paints, {**index.arrays, **rows})
    blocks = decode(Timeline(run, many).tile(0, 0, range(3000)))["blocks"]
    assert [block["lane"] for block in blocks] == list(range(3000))
    assert all(block["slices"]["end"] == [100] for block in blocks)


def test_what_does_not_exist_is_refused(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run", ranks=1, threads=1, steps=1, ops=2))
    timeline = Timeline(run, open_index(run, None))
    count = len(timeline.index.lanes)
    for level, index, lanes in [
        (-1, 0, [0]),
        (41, 0, [0]),
        (0, -1, [0]),
        (0, MAX_INDEX + 1, [0]),
        (40, 9, [0]),
        (0, 0, [0, count]),
        (0, 0, [-1]),
    ]:
        with pytest.raises(NoSuch, match=r"^no (level|tile|lane) "):
            timeline.tile(level, index, lanes)
    assert decode(timeline.tile(0, MAX_INDEX, [0]))["blocks"] == []
    assert decode(timeline.tile(40, MAX_INDEX >> 40, [0]))["index"] == 8
