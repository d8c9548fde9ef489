"""Slices of a trace have exact instants, their depth and their order, in parts of any length."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanescope.collector.format.array_types import Int64Array
from lanescope.collector.importers import nesting
from lanescope.collector.importers.import_limits import ImportRejected
from lanescope.collector.importers.nesting import (
    MAX_DEPTH,
    end_times,
    nesting_of,
    nesting_order,
    remaining,
    subtract_children,
)
from lanescope.collector.importers.spill import UNFINISHED, VALUE_ROW, new_slices
from lanescope.collector.importers.timestamps import decimal_ns, exact_ns, rounded_ns


def test_instants_are_exact_to_the_nanosecond() -> None:
    texts = [b"1712195495519689.047", b"12", b"-0.5", b"1e3", b'"7.25"', b"0.0004", b"1.0005001"]
    found, bad = exact_ns(texts)
    assert found.tolist() == [1712195495519689047, 12_000, -500, 1_000_000, 7_250, 0, 1_001]
    assert not bad.any()
    wrong = [b"", b"null", b"1e400", b"9" * 25, b"nan", b"[1]", b"2305843009213693952"]
    assert exact_ns(wrong)[1].all()
    assert exact_ns([b"3.5", b"9" * 25])[0].tolist() == [3_500, 0]
    whole = [b"1712195495519689", b"1712195495519690"]
    assert exact_ns(whole)[0].tolist() == [1712195495519689000, 1712195495519690000]
    lengths, missing, bad = rounded_ns([63.813, 2, None, -1.0, 1e300])
    assert lengths.tolist() == [63_813, 2_000, 0, 0, 0]
    assert (missing.tolist(), bad.tolist()) == (
        [False, False, True, False, False],
        [False, False, False, True, True],
    )


def nested(start: Int64Array, duration: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Depth of each slice of a lane, and its duration less that of its direct children."""
    depths, parents = nesting_of(start, end_times(start, duration))
    own = duration.copy()
    subtract_children(own, duration, parents)
    return np.minimum(depths, MAX_DEPTH), remaining(own, duration)


def test_depth_is_the_number_of_slices_around() -> None:
    random = np.random.default_rng(3)
    start = random.integers(0, 60, 200)
    length = random.integers(0, 30, 200)
    order = nesting_order(start, length)
    start, length = start[order], length[order]
    depth, own = nested(start, length)
    end = start + length
    for i in range(len(start)):
        # Those before it that hold all of it, and are not over when it begins.
        outside = [j for j in range(i) if end[j] >= end[i] and end[j] > start[i]]
        assert depth[i] == len(outside)
    assert ((own >= 0) & (own <= length)).all()


@pytest.mark.parametrize("most", [7, 40, 10**6])
@pytest.mark.parametrize("crowd", [0, 300])
def test_instants_of_a_lane_are_in_order_in_parts_of_any_length(
    most: int, crowd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nesting, "CHUNK_ROWS", most)
    random = np.random.default_rng(6)
    rows = np.zeros(900, VALUE_ROW)
    rows["start"] = random.integers(0, 400, 900)
    rows["start"][random.permutation(900)[:crowd]] = 77
    which = np.sort(random.permutation(900)[:800]).astype(np.uint32)
    found = list(nesting.batches_by_start(rows, which))
    assert max(map(len, found)) <= max(4 * most, 40)
    ordered = np.concatenate(found)
    assert ordered.tolist() == which[np.argsort(rows["start"][which], kind="stable")].tolist()


@pytest.mark.parametrize(("most", "longest"), [(7, 30), (40, 4), (40, 400), (10**6, 30)])
def test_a_lane_is_the_same_in_stretches_of_any_length(
    most: int, longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nesting, "CHUNK_ROWS", most)
    random = np.random.default_rng(5)
    lane = new_slices(900)
    lane["start"] = random.integers(0, 400, 900)
    lane["duration"] = random.integers(0, longest, 900)
    lane["duration"][::90] = UNFINISHED
    which = random.permutation(900)[:800].astype(np.uint32)
    order = nesting_order(lane["start"][which], lane["duration"][which])
    mine = lane[which[order]]
    depth, own = nested(mine["start"], mine["duration"])
    found = list(nesting.time_chunks_of(lane, which, Path("trace")))
    assert len(found) >= min(800 // most, 20)
    for one in found:
        assert (np.diff(lane["start"][one.where]) >= 0).all()
    columns = [
        column for one in found for column in zip(one.where, one.depth, one.own, strict=True)
    ]
    assert sorted(columns) == sorted(zip(which[order], depth, own, strict=True))


def test_more_slices_at_one_instant_than_a_program_has_are_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nesting, "CHUNK_ROWS", 20)
    monkeypatch.setattr(nesting, "_MAX_OPEN", 30)
    every = np.arange(100, dtype=np.uint32)
    together, unfinished = new_slices(100), new_slices(100)
    unfinished["start"], unfinished["duration"] = every, UNFINISHED
    for lane in (together, unfinished):
        with pytest.raises(ImportRejected, match="slices at one instant of a thread"):
            list(nesting.time_chunks_of(lane, every, Path("trace")))


@given(st.integers(1, 18), st.integers(0, 5), st.data())
def test_numbers_of_one_form_are_converted_as_one_by_one(
    digits: int, decimals: int, data: st.DataObject
) -> None:
    whole = st.text("0123456789", min_size=digits, max_size=digits)
    part = st.text("0123456789", min_size=decimals, max_size=decimals)
    numbers = data.draw(st.lists(st.tuples(whole, part).map(".".join), min_size=1, max_size=4))
    texts = [number.removesuffix(".") for number in numbers]
    found, bad = exact_ns([text.encode() for text in texts])
    values = [None if wrong else value for value, wrong in zip(found.tolist(), bad, strict=True)]
    assert values == [decimal_ns(text) for text in texts]
