"""Two sequences of codes: what belongs together, whatever was put in or left out."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lanescope.webapp.analysis.sequence_alignment import align

codes = st.lists(st.integers(1, 6), max_size=30)


@given(codes, codes)
def test_alignment_pairs_equal_codes_in_order(base: list[int], run: list[int]) -> None:
    left, right = align(np.array(base, np.uint64), np.array(run, np.uint64))
    assert [base[i] for i in left] == [run[j] for j in right]
    assert (np.diff(left) > 0).all()
    assert (np.diff(right) > 0).all()
    forth = len(left)
    assert forth >= min(1, len(set(base) & set(run)))


@given(codes, st.data())
def test_alignment_finds_all_of_what_was_only_cut(base: list[int], data: st.DataObject) -> None:
    kept = [code for code in base if data.draw(st.booleans())]
    left, right = align(np.array(base, np.uint64), np.array(kept, np.uint64))
    assert len(right) <= len(kept)
    assert [base[i] for i in left] == [kept[j] for j in right]
    if len(set(base)) == len(base):
        assert len(right) == len(kept)


def test_a_long_edit_script_is_still_aligned() -> None:
    random = np.random.default_rng(0)
    base = random.integers(1, 5, 5000).astype(np.uint64)
    run = np.delete(base, random.choice(5000, 500, replace=False))
    left, right = align(base, run)
    assert (base[left] == run[right]).all()
    assert (np.diff(left) > 0).all()
    assert len(left) > 100
