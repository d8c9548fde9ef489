"""Level of detail of counters against brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanescope.webapp.runs.types import Float64Array, Int64Array
from lanescope.webapp.timeline import counter_lod, lod
from lanescope.webapp.timeline.counter_lod import SampleTile, sample_pyramid, sample_window

Series = list[tuple[int, float]]

series = st.lists(
    st.tuples(
        st.integers(0, 300_000), st.sampled_from([0.0, 1.0, -2.5, math.inf, math.nan, 1e300])
    ),
    max_size=60,
).map(lambda pairs: sorted(pairs, key=lambda pair: pair[0]))


def arrays(pairs: Series) -> tuple[Int64Array, Float64Array]:
    return np.array([t for t, _ in pairs], np.int64), np.array([v for _, v in pairs], np.float64)


def plain(tile: SampleTile) -> tuple[bool, list[tuple[int, str, str, str]]]:
    columns = (tile.bucket.tolist(), tile.low.tolist(), tile.high.tolist(), tile.last.tolist())
    rows = [(b, str(x), str(y), str(z)) for b, x, y, z in zip(*columns, strict=True)]
    return tile.leading, rows  # as text, since NaN differs from itself


def brute(pairs: Series, level: int, index: int) -> tuple[bool, list[tuple[int, str, str, str]]]:
    begin = index << (level + 10)
    rows = []
    earlier = [v for t, v in pairs if t < begin]
    if earlier:
        rows.append((0, *[str(earlier[-1])] * 3))
    for bucket in range(1024):
        low, high = begin + (bucket << level), begin + ((bucket + 1) << level)
        values = [v for t, v in pairs if low <= t < high]
        if values:
            wrong = any(map(math.isnan, values))
            least = math.nan if wrong else min(values)
            most = math.nan if wrong else max(values)
            rows.append((bucket, str(least), str(most), str(values[-1])))
    return bool(earlier), rows


@given(series, st.integers(0, 12))
@settings(max_examples=100)
def test_window_equals_brute_force(pairs: Series, level: int) -> None:
    time, value = arrays(pairs)
    last = max((t for t, _ in pairs), default=0) >> (level + 10)
    for index in {0, 1, last // 2, last, last + 1}:
        assert plain(sample_window(time, value, level, index)) == brute(pairs, level, index)


@given(series, st.integers(1, 5))
@settings(max_examples=100)
def test_pyramid_is_every_crowded_tile_and_equals_window(pairs: Series, limit: int) -> None:
    time, value = arrays(pairs)
    with pytest.MonkeyPatch.context() as patch:
        for module in (lod, counter_lod):
            patch.setattr(module, "RAW_LIMIT", limit)
            patch.setattr(module, "MAX_LEVEL", 12)
        made = {(level, index): tile for level, index, tile in sample_pyramid(time, value)}
    crowded = {
        (level, t >> (level + 10))
        for level in range(13)
        for t, _ in pairs
        if sum(t >> (level + 10) == other >> (level + 10) for other, _ in pairs) > limit
    }
    assert set(made) == crowded
    for (level, index), tile in made.items():
        assert plain(tile) == plain(sample_window(time, value, level, index))


def test_empty_series() -> None:
    time, value = arrays([])
    assert len(sample_window(time, value, 3, 0)) == 0
    assert list(sample_pyramid(time, value)) == []
