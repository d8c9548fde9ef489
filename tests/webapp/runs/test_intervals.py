"""Interval algebra against its definition: a set of intervals is a set of integers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lanescope.webapp.runs.intervals import Intervals, at_least

SLICES = st.lists(st.tuples(st.integers(-20, 20), st.integers(-2, 12)), max_size=12)


def instants(slices: list[tuple[int, int]]) -> set[int]:
    return {t for start, length in slices for t in range(start, start + length)}


def intervals(slices: list[tuple[int, int]]) -> Intervals:
    return Intervals.of([s for s, _ in slices], [s + length for s, length in slices])


def members(found: Intervals) -> set[int]:
    """The instants of a result, after checking that it is in the one form there is."""
    assert found.start.dtype == found.end.dtype == np.int64
    assert (found.end > found.start).all()
    assert (found.start[1:] > found.end[:-1]).all()
    return {t for a, b in zip(found.start, found.end, strict=True) for t in range(a, b)}


@given(SLICES)
def test_of_is_the_union_of_its_slices(slices: list[tuple[int, int]]) -> None:
    found = intervals(slices)
    assert members(found) == instants(slices)
    assert found.total == len(instants(slices))


@given(SLICES, SLICES)
def test_algebra_is_that_of_sets(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    a, b = intervals(left), intervals(right)
    assert members(a.union(b)) == instants(left) | instants(right)
    assert members(a.intersection(b)) == instants(left) & instants(right)
    assert members(a.subtraction(b)) == instants(left) - instants(right)


@given(st.lists(SLICES, max_size=5), st.integers(1, 5))
def test_at_least_counts_sets(lists: list[list[tuple[int, int]]], count: int) -> None:
    sets = [instants(slices) for slices in lists]
    expected = {t for t in set().union(*sets) if sum(t in one for one in sets) >= count}
    assert members(at_least([intervals(slices) for slices in lists], count)) == expected


@given(SLICES, st.integers(-25, 25), st.integers(-25, 25))
def test_clip_is_a_window(slices: list[tuple[int, int]], low: int, high: int) -> None:
    expected = {t for t in instants(slices) if low <= t < high}
    assert members(intervals(slices).clip(low, high)) == expected


@given(SLICES, st.lists(st.integers(-25, 40), max_size=8))
def test_covered_counts_the_time_before(slices: list[tuple[int, int]], at: list[int]) -> None:
    known = instants(slices)
    expected = [sum(t < instant for t in known) for instant in at]
    assert intervals(slices).covered(at).tolist() == expected


def test_equal_sets_are_equal_however_they_were_cut() -> None:
    assert intervals([(0, 5), (5, 5), (2, 3)]) == intervals([(0, 10)])
    assert intervals([(0, 5)]) != intervals([(0, 6)])


def test_instants_past_2_to_the_53_stay_exact() -> None:
    far = 2**62
    a, b = Intervals.of([far], [far + 3]), Intervals.of([far + 2], [far + 9])
    assert a.intersection(b) == Intervals.of([far + 2], [far + 3])
    assert a.intersection(b).total == 1


def test_a_million_intervals_are_one_sweep() -> None:
    start = np.arange(1_000_000, dtype=np.int64) * 10
    a, b = Intervals.of(start, start + 6), Intervals.of(start + 3, start + 9)
    assert a.intersection(b).total == 3_000_000
    assert a.union(b).total == 9_000_000
    assert a.subtraction(b).total == 3_000_000
