"""Level of detail against brute force, and on rows whose answer can be worked out on paper."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanescope.webapp.runs.intervals import enclosing
from lanescope.webapp.runs.types import Int64Array
from lanescope.webapp.timeline import lod
from lanescope.webapp.timeline.lod_buckets import offsets
from lanescope.webapp.timeline.span_nesting import sub_rows

Slices = list[tuple[int, int]]


@st.composite
def rows(draw: st.DrawFn) -> Slices:
    """Slices that do not overlap: gaps and lengths of very different sizes, touching, empty.

    Drawn as bytes: to draw number by number takes several times as long as the test itself.
    """
    count = 4 * draw(st.one_of(st.integers(0, 8), st.integers(0, 40)))
    drawn = np.frombuffer(draw(st.binary(min_size=count, max_size=count)), "<u2").astype(np.int64)
    sizes = (drawn >> 2) % np.array([4, 71, 9001, 9001])[drawn & 3]
    edges = np.cumsum(sizes).reshape(-1, 2)
    return [(start, end) for start, end in edges.tolist()]


def arrays(slices: Slices) -> tuple[Int64Array, Int64Array]:
    both = np.array(slices, np.int64).reshape(-1, 2)
    return both[:, 0].copy(), both[:, 1].copy()


Dense = dict[int, tuple[int, int, int]]


def brute(slices: Slices, level: int, index: int) -> tuple[list[int], Dense]:
    """Wide slices, and per bucket covered time, count and longest, one slice at a time."""
    width = 1 << level
    begin, stop = index * 1024 * width, (index + 1) * 1024 * width
    wide: list[int] = []
    dense: Dense = {}
    for position, (start, end) in enumerate(slices):
        if end - start >= width:
            if start < stop and end > begin:
                wide.append(position)
            continue
        for bucket in range(start // width, max(start, end - 1) // width + 1):
            low, high = bucket * width, (bucket + 1) * width
            if not begin <= low < stop:
                continue
            covered, count, longest = dense.get(bucket - index * 1024, (0, 0, -1))
            covered += max(0, min(end, high) - max(start, low))
            count += low <= start < high
            if longest < 0 or end - start > slices[longest][1] - slices[longest][0]:
                longest = position
            dense[bucket - index * 1024] = (covered, count, longest)
    return wide, dense


def plain(made: lod.Tiles, k: int = 0, shift: int = 0) -> tuple[list[int], Dense]:
    """Tile k, positions counted from `shift`."""
    wide = made.wide[made.wide_at[k] : made.wide_at[k + 1]] - shift
    part = slice(made.dense_at[k], made.dense_at[k + 1])
    buckets = made.bucket[part].tolist()
    assert buckets == sorted(set(buckets))
    values = zip(
        made.covered[part].tolist(),
        made.count[part].tolist(),
        (made.longest[part] - shift).tolist(),
        strict=True,
    )
    return wide.tolist(), dict(zip(buckets, values, strict=True))


def window(start: Int64Array, end: Int64Array, level: int, index: int) -> tuple[list[int], Dense]:
    return plain(lod.window_tiles(start, end, [(0, len(start))], level, index))


def pyramid(start: Int64Array, end: Int64Array) -> dict[tuple[int, int], tuple[list[int], Dense]]:
    return {key[1:]: tile for key, tile in pyramids([(start, end)]).items()}


def pyramids(
    rows: list[tuple[Int64Array, Int64Array]],
) -> dict[tuple[int, int, int], tuple[list[int], Dense]]:
    """(row, level, index) -> tile, positions counted from the row's begin."""
    at = offsets(np.array([len(start) for start, _ in rows], np.int64))
    start = np.concatenate([start for start, _ in rows])
    end = np.concatenate([end for _, end in rows])
    found = {}
    for level in lod.pyramid(start, end, at[:-1], at[1:]):
        places = list(zip(level.row.tolist(), level.index.tolist(), strict=True))
        assert places == sorted(places)
        for k, (row, index) in enumerate(places):
            found[row, level.level, index] = plain(level.tiles, k, int(at[row]))
    return found


def tiles_of(slices: Slices, level: int) -> range:
    last = max((end for _, end in slices), default=0) >> (level + lod.TILE_BITS)
    return range(last + 2)


@given(rows(), st.integers(0, 16))
@settings(max_examples=300)
def test_window_equals_brute_force(slices: Slices, level: int) -> None:
    start, end = arrays(slices)
    for index in list(tiles_of(slices, level))[:40]:
        assert window(start, end, level, index) == brute(slices, level, index)


@given(st.lists(rows(), max_size=6), st.integers(0, 16), st.integers(0, 3))
@settings(max_examples=300)
@pytest.mark.slow
def test_several_rows_in_one_pass_equal_each_alone(
    several: list[Slices], level: int, index: int
) -> None:
    start, end = arrays([one for slices in several for one in slices])
    at = offsets(np.array([len(slices) for slices in several], np.int64))
    made = lod.window_tiles(start, end, list(pairwise(at.tolist())), level, index)
    for k, slices in enumerate(several):
        wide, dense = plain(made, k, int(at[k]))
        assert (wide, dense) == brute(slices, level, index)


@given(
    st.lists(rows(), min_size=1, max_size=6),
    st.integers(0, 16),
    st.integers(0, 3),
    st.integers(1, 9),
)
@settings(max_examples=200)
@pytest.mark.slow
def test_rows_narrowed_by_fences_have_all_of_the_tile(
    several: list[Slices], level: int, index: int, apart: int
) -> None:
    start, end = arrays([one for slices in several for one in slices])
    at = offsets(np.array([len(slices) for slices in several], np.int64)).tolist()
    whole = list(pairwise(at))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lod, "FENCE", apart)
        fence = lod.fences(start)
        pieces = [lod.fences(start[low:high], low) for low, high in whole]
        assert np.array_equal(fence, np.concatenate(pieces))
        near = lod.narrowed(fence, whole, level, index)
    for k, (row, stretch) in enumerate(zip(whole, near, strict=True)):
        assert row[0] <= stretch[0] <= stretch[1] <= row[1]
        answer = [
            plain(lod.window_tiles(start, end, one, level, index), k) for one in (whole, near)
        ]
        assert answer[0] == answer[1]


def test_row_is_narrowed_to_the_slices_next_to_the_tile() -> None:
    start = np.arange(0, 1 << 30, 1 << 10)
    (near,) = lod.narrowed(lod.fences(start), [(700, len(start) - 3)], 13, 40)
    inside = (40 << 13, 41 << 13)  # a slice per 2^10 ns, of a tile of 2^23
    assert inside[0] - lod.FENCE <= near[0] < inside[0]
    assert inside[1] <= near[1] <= inside[1] + lod.FENCE


@given(rows(), st.integers(1, 6))
@settings(max_examples=200)
def test_pyramid_is_every_crowded_tile_and_equals_window(slices: Slices, limit: int) -> None:
    start, end = arrays(slices)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lod, "RAW_LIMIT", limit)
        patch.setattr(lod, "MAX_LEVEL", 18)
        made = pyramid(start, end)
    crowded = {
        (level, index)
        for level in range(19)
        for index in tiles_of(slices, level)
        if sum(index == begin >> (level + 10) for begin, _ in slices) > limit
    }
    assert set(made) == crowded
    for (level, index), tile in made.items():
        assert tile == brute(slices, level, index)


@given(
    st.lists(rows(), min_size=1, max_size=5), st.integers(1, 6), st.sampled_from([2, 7, 1 << 15])
)
@settings(max_examples=40)
@pytest.mark.slow
def test_pyramid_of_several_rows_equals_each_alone(
    several: list[Slices], limit: int, piece: int
) -> None:
    separate = [arrays(slices) for slices in several]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lod, "RAW_LIMIT", limit)
        patch.setattr(lod, "MAX_LEVEL", 18)
        patch.setattr(lod, "SLICES_AT_ONCE", piece)
        together = pyramids(separate)
        alone = [pyramid(start, end) for start, end in separate]
    assert together == {
        (row, *place): tile for row, tiles in enumerate(alone) for place, tile in tiles.items()
    }


def test_rows_far_into_a_long_run_keep_apart() -> None:
    # 2^53 ns leave room for 128 rows in one go.
    begin = (1 << 53) - 4096 * 20
    start = np.arange(4096 + 1, dtype=np.int64) * 10 + begin
    made = pyramids([(start + k, start + k + 5) for k in range(300)])
    for row, shift in ((0, 0), (127, 127), (128, 128), (299, 299)):
        mine = {key[1:]: tile for key, tile in made.items() if key[0] == row}
        assert mine == pyramid(start + shift, start + shift + 5)
        (_, dense) = mine[lod.MAX_LEVEL, 7]
        assert dense == {1023: (5 * 4097, 4097, 0)}


@given(rows())
@settings(max_examples=100)
def test_counts_and_covered_time_add_up_at_every_level(slices: Slices) -> None:
    start, end = arrays(slices)
    for level in (4, 9, lod.MAX_LEVEL):
        covered = count = 0
        wide: set[int] = set()
        for index in tiles_of(slices, level):
            long, dense = window(start, end, level, index)
            covered += sum(one[0] for one in dense.values())
            count += sum(one[1] for one in dense.values())
            wide.update(long)
        assert count + len(wide) == len(slices)
        assert covered + sum(slices[i][1] - slices[i][0] for i in wide) == (end - start).sum()


def test_one_nanosecond_among_millions_is_found_at_every_zoom() -> None:
    n = 2_000_000
    start = np.arange(n, dtype=np.int64) * 100
    end = start + 60
    lonely = 7_777_777_777_777
    start, end = np.append(start, lonely), np.append(end, lonely + 1)
    made = pyramid(start, end)
    for level in range(lod.MAX_LEVEL + 1):
        key = level, lonely >> (level + 10)
        wide, dense = made[key] if key in made else window(start, end, *key)
        if level == 0:
            assert wide == [n]
            continue
        covered, count, longest = dense[lonely >> level & 1023]
        assert covered >= 1
        assert count >= 1
        if level < 33:  # above, it shares a bucket with longer ones
            assert (covered, count, longest) == (1, 1, n)


def test_full_resolution_pyramid_is_exact_on_a_long_row() -> None:
    generator = np.random.default_rng(7)
    n = 300_000
    gaps = generator.integers(0, 2000, n) * (generator.random(n) < 0.5)
    lengths = generator.integers(0, 3000, n) ** generator.integers(0, 2, n)
    edges = np.cumsum(np.stack([gaps, lengths], 1).ravel())
    start, end = edges[0::2].astype(np.int64), edges[1::2].astype(np.int64)
    made = pyramid(start, end)
    assert len({level for level, _ in made}) > 20
    assert sum(len(wide) + len(dense) for wide, dense in made.values()) < n
    for (level, index), tile in made.items():
        assert tile == window(start, end, level, index)
        assert len(tile[0]) + len(tile[1]) <= 2 * lod.TILE_BUCKETS + 1


def test_on_paper() -> None:
    # Level 2: buckets of 4 ns. [0,1) [1,3) short; [3,9) wide; [9,9) empty; [10,13) has a tail.
    start = np.array([0, 1, 3, 9, 10], np.int64)
    end = np.array([1, 3, 9, 9, 13], np.int64)
    assert window(start, end, 2, 0) == (
        [2],
        {0: (3, 2, 1), 2: (2, 2, 4), 3: (1, 0, 4)},
    )
    assert window(start, end, 4, 0) == ([], {0: (12, 5, 2)})
    assert window(start, end, 0, 0) == ([0, 1, 2, 4], {9: (0, 1, 3)})
    assert window(start, end, 2, 1) == ([], {})


def test_slice_that_spans_many_tiles_is_in_all_of_them() -> None:
    start = np.array([5, 10_000_000], np.int64)
    end = np.array([9_000_000, 10_000_001], np.int64)
    for index in (0, 1, 4000, 8788):
        assert window(start, end, 0, index) == ([0], {})
    assert window(start, end, 0, 8790) == ([], {})


def test_empty_row() -> None:
    none = np.empty(0, np.int64)
    assert window(none, none, 3, 0) == ([], {})
    assert pyramid(none, none) == {}


def first_fit(slices: Slices) -> list[int]:
    ends: list[int] = []
    rows = []
    for start, end in slices:
        row = next((i for i, last in enumerate(ends) if last <= start), len(ends))
        ends[row:] = [end, *ends[row + 1 :]]
        rows.append(row)
    return rows


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=60), st.integers(0, 64))
@settings(max_examples=300)
def test_sub_rows_are_first_fit(pairs: Slices, chains: int) -> None:
    slices = sorted((start, start + length) for start, length in pairs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lanescope.webapp.timeline.span_nesting.CHAINS", chains)
        assert sub_rows(*arrays(slices)).tolist() == first_fit(slices)


def test_sub_rows_of_very_many_at_once() -> None:
    start = np.arange(20_000, dtype=np.int64)
    assert sub_rows(start, np.full(20_000, 10**6)).tolist() == start.tolist()


def test_sub_rows_of_an_unfinished_slice_below_a_million() -> None:
    start = np.arange(1_000_000, dtype=np.int64) * 10
    end = start + 10
    end[0] = 10_000_000
    rows = sub_rows(start, end)
    assert rows[0] == 0
    assert (rows[1:] == 1).all()


def test_enclosing() -> None:
    start, end = np.array([2, 5, 5], np.int64), np.array([4, 5, 8], np.int64)
    at = np.array([1, 2, 3, 4, 5, 7, 8], np.int64)
    assert enclosing(start, end, at).tolist() == [-1, 0, 0, -1, 2, 2, -1]
    assert enclosing(start[:0], end[:0], at[:2]).tolist() == [-1, -1]
