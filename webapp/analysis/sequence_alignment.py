"""What of one run belongs to what of another: threads, and operators of a thread.

Operators are aligned as sequences of integers that encode their signatures: equal ends first,
then codes that are unique on both sides (patience), then the shortest edit script (Myers) where
that is short, else the k-th of each kind with the k-th. Each of these is bounded by n log n.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from lanescope.webapp.runs.run import Run, Thread
from lanescope.webapp.runs.types import Int64Array

Codes = NDArray[np.uint64]
Pair = tuple[Thread | None, Thread | None]

_EDITS = 64
"""Longest edit script that is looked for in a gap: its cost is the square of that."""


def thread_pairs(base: Run, run: Run, rank: int | None = None) -> list[Pair]:
    """Returns threads of a rank, or of all, that belong together; None where one has no partner.

    Per rank: of equal name and kind in the same kind of process, then of equal kind alone, both in
    the order of appearance. So the main thread stays itself whatever it is called.
    """
    pairs: list[Pair] = []
    for one in sorted({*base.ranks, *run.ranks}) if rank is None else [rank]:
        left = list(base.threads_of(one))
        right = list(run.threads_of(one))
        for key in (lambda t: (t.role, t.kind, t.name), lambda t: (t.role, t.kind)):
            pairs += _paired(left, right, key)
        pairs += [(t, None) for t in left] + [(None, t) for t in right]
    return pairs


def pools(run: Run, rank: int | None = None) -> set[tuple[int, str, str]]:
    """Returns (rank, kind, name) of threads that the program did not make, where several have that
    name, of a rank or of all: which of them takes a piece of work is chance, so none is compared
    with another.
    """
    threads = run.threads if rank is None else run.threads_of(rank)
    count = Counter((t.rank, t.kind, t.name) for t in threads if t.kind == "native")
    return {key for key, several in count.items() if several > 1}


def _paired(
    left: list[Thread], right: list[Thread], key: Callable[[Thread], Hashable]
) -> list[Pair]:
    """Takes pairs of equal key out of both lists."""
    found: list[Pair] = []
    for one in list(left):
        other = next((t for t in right if key(t) == key(one)), None)
        if other is not None:
            left.remove(one)
            right.remove(other)
            found.append((one, other))
    return found


def align(
    base: Codes, run: Codes, base_content: Codes | None = None, run_content: Codes | None = None
) -> tuple[Int64Array, Int64Array]:
    """Returns positions in `base` and in `run` that belong together, ascending on both sides.

    The contents, 0 without any, say which of several equal signatures is meant: where the
    sequences are not equal anyway, a content that is unique on both sides ties them together.
    """
    if np.array_equal(base, run):
        every = np.arange(len(base))
        return every, every
    left, right = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    corners = [(-1, -1), (len(base), len(run))]
    if base_content is not None and run_content is not None:
        corners[1:1] = _anchors(base_content, run_content)
    gaps = _between(corners)
    ties = corners[1:-1]
    while gaps:
        low, high, first, last = gaps.pop()
        a, b = base[low:high], run[first:last]
        size = min(len(a), len(b))
        unequal = np.flatnonzero(a[:size] != b[:size])
        head = int(unequal[0]) if len(unequal) else size
        size -= head
        unequal = np.flatnonzero(a[len(a) - size :][::-1] != b[len(b) - size :][::-1])
        tail = int(unequal[0]) if len(unequal) else size
        left += [np.arange(low, low + head), np.arange(high - tail, high)]
        right += [np.arange(first, first + head), np.arange(last - tail, last)]
        low, high, first, last = low + head, high - tail, first + head, last - tail
        if low == high or first == last:
            continue
        a, b = base[low:high], run[first:last]
        anchors = _anchors(a, b)
        if anchors:
            placed = [(low + i, first + j) for i, j in anchors]
            gaps += _between([(low - 1, first - 1), *placed, (high, last)])
        else:
            script = _shortest(a.tolist(), b.tolist())
            placed = [(low + i, first + j) for i, j in script or _in_order(*by_occurrence(a, b))]
        ties += placed
    left.append(np.array([i for i, _ in ties], np.int64))
    right.append(np.array([j for _, j in ties], np.int64))
    one, two = np.sort(np.concatenate(left)), np.sort(np.concatenate(right))
    return one, two


def by_occurrence(base: Codes, run: Codes) -> tuple[Int64Array, Int64Array]:
    """Returns the k-th of each code on one side with the k-th of it on the other, in whatever
    order."""
    here, there = (_numbered(side) for side in (base, run))
    _, left, right = np.intersect1d(here, there, assume_unique=True, return_indices=True)
    return left.astype(np.int64), right.astype(np.int64)


def _between(corners: list[tuple[int, int]]) -> list[tuple[int, int, int, int]]:
    """Gaps between pairs of positions, as (low, high, first, last)."""
    return [(i + 1, k, j + 1, m) for (i, j), (k, m) in pairwise(corners) if k > i + 1 and m > j + 1]


def _anchors(base: Codes, run: Codes) -> list[tuple[int, int]]:
    """Most pairs, in order on both sides, of codes that each side has once; 0 is not a code."""
    sides = []
    for codes in (base, run):
        values, places, counts = np.unique(codes, return_index=True, return_counts=True)
        once = (counts == 1) & (values != 0)
        sides.append((values[once], places[once]))
    _, left, right = np.intersect1d(
        sides[0][0], sides[1][0], assume_unique=True, return_indices=True
    )
    return _in_order(sides[0][1][left], sides[1][1][right])


def _in_order(
    left: NDArray[np.intp] | Int64Array, right: NDArray[np.intp] | Int64Array
) -> list[tuple[int, int]]:
    """The longest part of the pairs that ascends on both sides (patience sorting)."""
    order = np.argsort(left)
    one, two = left[order].tolist(), right[order].tolist()
    ends: list[int] = []  # smallest last value of an ascending row of each length
    heads: list[int] = []  # and the pair it belongs to
    before: list[int] = []
    for pair, value in enumerate(two):
        length = bisect_left(ends, value)
        before.append(heads[length - 1] if length else -1)
        ends[length : length + 1] = [value]
        heads[length : length + 1] = [pair]
    found = []
    pair = heads[-1] if heads else -1
    while pair >= 0:
        found.append((one[pair], two[pair]))
        pair = before[pair]
    return found[::-1]


def _shortest(base: Sequence[int], run: Sequence[int]) -> list[tuple[int, int]] | None:
    """Pairs that a shortest edit script leaves in place (Myers); None: it is too long."""
    if abs(len(base) - len(run)) > _EDITS:
        return None
    reach = {1: 0}  # diagonal -> how far in `base` it was followed
    trace: list[dict[int, int]] = []
    for edits in range(min(_EDITS, len(base) + len(run)) + 1):
        trace.append(dict(reach))
        for diagonal in range(-edits, edits + 1, 2):
            i = _step(reach, diagonal, edits)
            j = i - diagonal
            while i < len(base) and j < len(run) and base[i] == run[j]:
                i, j = i + 1, j + 1
            reach[diagonal] = i
            if i >= len(base) and j >= len(run):
                return _walked_back(trace, len(base), len(run))
    return None


def _down(reach: dict[int, int], diagonal: int, edits: int) -> bool:
    """Whether the last edit before a diagonal takes one from `run`, not from `base`."""
    if abs(diagonal) == edits:
        return diagonal == -edits
    return reach[diagonal - 1] < reach[diagonal + 1]


def _step(reach: dict[int, int], diagonal: int, edits: int) -> int:
    down = _down(reach, diagonal, edits)
    return reach[diagonal + 1] if down else reach[diagonal - 1] + 1


def _walked_back(trace: list[dict[int, int]], i: int, j: int) -> list[tuple[int, int]]:
    pairs = []
    for edits in range(len(trace) - 1, -1, -1):
        reach, diagonal = trace[edits], i - j
        start = _step(reach, diagonal, edits)
        while i > start:
            i, j = i - 1, j - 1
            pairs.append((i, j))
        i, j = (i, j - 1) if _down(reach, diagonal, edits) else (i - 1, j)
    return pairs[::-1]


def _numbered(codes: Codes) -> Codes:
    """Each code mixed with how often it came before."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    new = np.ones(len(codes), bool)
    new[1:] = ordered[1:] != ordered[:-1]
    starts = np.flatnonzero(new)
    place = np.arange(len(codes)) - np.repeat(starts, np.diff([*starts, len(codes)]))
    result = np.empty(len(codes), np.uint64)
    result[order] = mixed(ordered, place)
    return result


def mixed(codes: Codes, more: NDArray[np.integer]) -> Codes:
    """Returns two columns as one of 64 bits, by a mixer that keeps them distinct except by
    chance."""
    value = codes * np.uint64(0xD6E8FEB86659FD93) + more.astype(np.uint64)
    value = value * np.uint64(0x2545F4914F6CDD1D) + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        value ^= value >> np.uint64(shift)
        value *= np.uint64(factor)
    value ^= value >> np.uint64(31)
    return value
