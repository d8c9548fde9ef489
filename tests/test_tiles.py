"""The tile payload: the fixture that JavaScript reads too, and tiles of whole runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lanescope.webapp import lod, samples, tiles
from lanescope.webapp.index import Index, open_index
from lanescope.webapp.run import open_run
from lanescope.webapp.samples import sample_window
from lanescope.webapp.timeline import MAX_INDEX, NoSuch, Timeline
from tests.synthetic import START_NS, Builder, write_run
from tests.tile_payload import FIXTURES, PAYLOADS, decode


@pytest.mark.parametrize("name", list(PAYLOADS))
def test_fixture_is_what_the_code_makes(name: str) -> None:
    payload = (FIXTURES / f"{name}.bin").read_bytes()
    assert PAYLOADS[name]() == payload
    assert decode(payload) == json.loads((FIXTURES / f"{name}.json").read_text(encoding="utf-8"))


def test_fixture_on_paper() -> None:
    tile = decode((FIXTURES / "tile.bin").read_bytes())
    assert (tile["level"], tile["index"], tile["unit_shift"]) == (12, 3, 2)
    first, second, counter = tile["blocks"]  # lane 7 has nothing in this tile
    assert [(b["lane"], b["row"], b["kind"]) for b in tile["blocks"]] == [
        (2, 0, 0),
        (2, 1, 0),
        (9, 0, 1),
    ]
    # Units of 4 ns from the tile's start: 8 191 ns ends in unit 2 047.
    assert first["slices"] == {
        "start": [-1_250_000, 10_240, 1023 * 1024],
        "end": [2_047, 11_264, 2**30],
        "name": [0, 6, 1],
        "ref": [0, 4, 5],
        "style": [1, 3, 0],
        "flags": [2, 0, 1 | 4],
    }
    # Bucket 2 holds a mark, 100 ns and 288 ns of the 388 ns whose last 100 lie in bucket 3.
    assert first["dense"] == {
        "bucket": [2, 3],
        "covered": [(100 + 288) * 65535 // 4096, 100 * 65535 // 4096],
        "count": [3, 0],
        "name": [5, 5],
        "ref": [3, 3],
        "style": [2, 2],
    }
    assert second["dense"]["covered"] == [65535 // 4096]
    assert (counter["leading"], counter["samples"]["bucket"]) == (True, [0, 1, 2])
    far = decode((FIXTURES / "tile_far.bin").read_bytes())
    assert far["index"] == 2**33 + 5


def test_covered_share_is_never_nothing_and_never_more_than_all() -> None:
    start = np.array([0, 1 << 40, (1 << 41) - 1], np.int64)
    end = np.array([0, (1 << 41) - 1, 1 << 41], np.int64)
    made = lod.window(start, end, np.array([0]), np.array([3]), lod.MAX_LEVEL, 0)
    zeros = np.zeros(3, np.uint32)
    slices = tiles.Slices(start, end, zeros, zeros.astype(np.uint8))
    block = tiles.slice_blocks(made, slices, lod.MAX_LEVEL, np.array([0]), np.array([0]))[0]
    payload = tiles.pack(lod.MAX_LEVEL, 0, [(0, 0, 0, block)])
    dense = decode(payload)["blocks"][0]["dense"]
    assert dense["bucket"] == [0, 1]
    assert dense["covered"] == [1, 65535]


def test_counter_values_past_float32_stay_finite() -> None:
    tile = sample_window(np.array([5]), np.array([1e300]), 0, 0)
    block = tiles.sample_block(tile)
    sample = decode(tiles.pack(0, 0, [(0, 0, 1, block)]))["blocks"][0]["samples"]
    assert sample["low"] == [pytest.approx(3.4028235e38)]


def every_tile(timeline: Timeline) -> dict[tuple[int, int], bytes]:
    lanes = range(len(timeline.index.lanes))
    found = {}
    for level in range(8, lod.MAX_LEVEL + 1):
        for index in range((timeline.run.duration_ns >> (level + 10)) + 2):
            found[level, index] = timeline.tile(level, index, lanes)
    return found


def test_tiles_made_ahead_equal_those_made_on_demand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_run(write_run(tmp_path / "run", ranks=2, threads=2, steps=6, ops=60))
    plain = Timeline(run, open_index(run, None))
    assert len(plain.index.arrays["made_key"]) == 0
    monkeypatch.setattr(lod, "RAW_LIMIT", 3)
    monkeypatch.setattr(samples, "RAW_LIMIT", 3)
    ahead = Timeline(run, open_index(run, None))
    assert len(ahead.index.arrays["made_key"]) > 100
    assert every_tile(ahead) == every_tile(plain)


def test_every_slice_is_in_every_level_exactly_once(tmp_path: Path) -> None:
    shape = {"ranks": 1, "threads": 2, "steps": 4, "ops": 50, "step_ns": 20_000}
    run = open_run(write_run(tmp_path / "run", **shape))
    timeline = Timeline(run, open_index(run, None))
    thread = next(lane for lane in timeline.index.lanes if lane.thread == "1000-1")
    events = run.counts["op"] // 2 + run.counts["phase"] // 2
    for level in range(0, lod.MAX_LEVEL + 1, 3):
        wide: set[int] = set()
        count = 0
        for index in range((run.duration_ns >> (level + 10)) + 1):
            for block in decode(timeline.tile(level, index, [thread.id]))["blocks"]:
                wide.update(block["slices"]["ref"])
                count += sum(block["dense"]["count"])
        assert len(wide) + count == events


def test_unfinished_slice_and_what_overlaps_it(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    thread = builder.thread()
    builder.op(START_NS, None, "aten::stuck", thread=thread)
    builder.op(START_NS + 100, 50, "aten::late", thread=thread)
    builder.op(START_NS + 900, 100, "aten::last", thread=thread)
    run = open_run(builder.write())
    blocks = decode(Timeline(run, open_index(run, None)).tile(0, 0, [0]))["blocks"]
    assert [block["row"] for block in blocks] == [0, 1]
    stuck, others = (block["slices"] for block in blocks)
    assert (stuck["start"], stuck["end"], stuck["flags"]) == ([0], [1000], [1])
    assert (others["start"], others["end"], others["flags"]) == ([100, 900], [150, 1000], [0, 0])
    assert stuck["ref"] + others["ref"] == [0, 1, 2]


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
    tiny, mark = (timeline.index.names.index(name) for name in ("aten::tiny", "here"))
    for level in range(lod.MAX_LEVEL + 1):
        marks, ops = (
            decode(timeline.tile(level, at >> (level + 10), [0]))["blocks"]
            for at in (2_000_000, 3_000_000)
        )
        dense = marks[0]["dense"]
        assert (dense["name"], dense["count"], dense["covered"]) == ([mark], [1], [1])
        assert (dense["bucket"], dense["style"]) == ([2_000_000 >> level & 1023], [8])
        last = ops[-1]
        if level == 0:
            assert last["slices"]["name"] == [tiny]
            assert last["slices"]["start"] == [3_000_000 & 1023]
        else:
            at = last["dense"]["bucket"].index(3_000_000 >> level & 1023)
            assert last["dense"]["covered"][at] >= 1
            if level < 20:  # above, it shares its bucket with longer ones
                assert (last["dense"]["name"][at], last["dense"]["count"][at]) == (tiny, 1)
    assert sum(decode(timeline.tile(40, 0, [0]))["blocks"][1]["dense"]["count"]) == 20_001


def test_thousands_of_lanes_in_one_tile(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    builder.op(START_NS, 100, thread=builder.thread())
    run = open_run(builder.write())
    index = open_index(run, None)
    zeros, ones = np.zeros(3000, np.int64), np.ones(3000, np.int64)
    rows = {"row_begin": zeros, "row_end": ones, "row_made": zeros}
    many = Index.of(index.lanes * 3000, index.names, {**index.arrays, **rows})
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
