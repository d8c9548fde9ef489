"""Finds racing pairs of memory accesses: no happens-before edge orders them.

Two accesses race where they touch a common byte, at least one of them writes, they are of different
threads (or streams), and neither happened before the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

import numpy as np

from lanescope.collector.format import schema
from lanescope.webapp.analysis.access_site import CallSite
from lanescope.webapp.plugins.races.access_table import Accesses, sorted_apart
from lanescope.webapp.plugins.races.vector_clocks import Order, VectorClock
from lanescope.webapp.runs.types import BoolArray, Int64Array


@dataclass(frozen=True)
class RacingPair:
    """Two racing accesses, representative of all of their kinds."""

    a: int  # rows of Accesses
    b: int
    pairs: int
    maker: CallSite | None = None
    """What made the storage: one of the two, or of its thread, which wrote to it before the other
    thread read it."""


def racing_pairs(
    order: Order,
    accesses: Accesses,
    sites: Sequence[CallSite],
    steps: Set[str],
    *,
    empty: bool = True,
) -> Iterator[RacingPair]:
    """Yields pairs of accesses that race: one for each two kinds of access to a storage that do.

    `steps` are the names of optimizers' phases. `empty`: whether making a storage counts where
    nothing is written to it (`torch.empty`).

    A kind is (thread, range, reading or writing, site). Segments of a thread are in order, and so
    is what each knows of another thread: those of A that are unordered with a given one of B are
    consecutive, and two binary searches find them.
    """
    for kinds in _kinds_by_storage(accesses, sites):
        if not empty:
            kinds = [kind for kind in kinds if kind.site.op]
        for i, one in enumerate(kinds):
            for other in kinds[i + 1 :]:
                if one.thread == other.thread or not _matter(one, other, steps):
                    continue
                if not share_bytes(one.span, other.span):
                    continue
                pair = _unordered(order, accesses, one, other)
                if pair is not None:
                    maker = one if one.makes else other if other.makes else None
                    maker = maker or _filled_by(accesses, kinds, one, other)
                    yield pair if maker is None else replace(pair, maker=maker.site)


@dataclass(frozen=True)
class _Kind:
    """Accesses of one thread to one range of a storage, from one site, in their order."""

    rows: Int64Array  # of Accesses
    thread: int  # position in Order.threads
    write: bool
    span: Span
    site: CallSite
    birth: bool  # the storage was made by it

    @property
    def releases(self) -> bool:
        """Whether a gradient is let go of: written, by that name; its parameter counts as read."""
        return self.site.op in schema.GRADIENT_RELEASES

    @property
    def makes(self) -> bool:
        """Whether the storage is made by it, and then handed on by the program.

        What backward makes becomes a gradient, to which others add: autograd hands it on.
        """
        return self.birth and self.site.phase != schema.PhaseKind.backward.name


def _filled_by(
    accesses: Accesses, kinds: Sequence[_Kind], one: _Kind, other: _Kind
) -> _Kind | None:
    """The kind that made a storage, where its thread is of one of two kinds and wrote to it for the
    last time before the other one read it at all: it filled what it made, and then handed it on."""
    maker = next((kind for kind in kinds if kind.makes), None)
    if maker is None or maker.thread not in (one.thread, other.thread):
        return None
    reader = other.thread if maker.thread == one.thread else one.thread
    theirs = [kind for kind in kinds if kind.thread == reader]
    written = [int(accesses.end[kind.rows].max()) for kind in kinds if kind.write]
    read = min(int(accesses.start[kind.rows].min()) for kind in theirs)
    return None if any(kind.write for kind in theirs) or max(written) > read else maker


def _matter(one: _Kind, other: _Kind, steps: Set[str]) -> bool:
    """Whether the two do harm where nothing orders them."""
    if one.releases or other.releases:
        release, rest = (one, other) if one.releases else (other, one)
        if rest.releases or not rest.write:  # its other holders may read it
            return False
        if release.write:  # what backward adds to it is lost
            return rest.site.phase == schema.PhaseKind.backward.name
        return rest.site.phase in steps  # of the parameter: it may or may not find a gradient
    return one.write or other.write


def _rows_in_question(accesses: Accesses) -> Int64Array:
    """Rows of the storages that two threads touched and one wrote."""
    if not len(accesses):
        return np.zeros(0, np.int64)
    storage, generation = accesses.storage, accesses.generation
    new = np.ones(len(accesses), bool)
    new[1:] = (storage[1:] != storage[:-1]) | (generation[1:] != generation[:-1])
    first = np.flatnonzero(new)
    thread, write = accesses.thread, accesses.write
    several = np.minimum.reduceat(thread, first) != np.maximum.reduceat(thread, first)
    written = np.maximum.reduceat(write, first)
    return np.flatnonzero((several & written)[np.cumsum(new) - 1])


def _kinds_by_storage(accesses: Accesses, sites: Sequence[CallSite]) -> Iterator[list[_Kind]]:
    """The kinds of access of each storage in question, the rows of each in the order of their
    segments."""
    rows = _rows_in_question(accesses)
    columns = (
        accesses.storage,
        accesses.generation,
        accesses.thread,
        accesses.low,
        accesses.high,
        accesses.run,
        accesses.stride,
        accesses.kind,
        accesses.site,
    )
    # All storages at once: there may be thousands with a few rows each.
    by, new = sorted_apart([accesses.segment[rows]], [column[rows] for column in columns])
    rows, first = rows[by], np.flatnonzero(new)
    parts = pairwise([*first.tolist(), len(rows)])
    values = zip(*(column[rows[first]].tolist() for column in columns), strict=True)
    each = zip(parts, values, strict=True)
    for _, of_storage in groupby(each, key=lambda one: one[1][:2]):
        kinds = []
        for (begin, end), (_, _, thread, *span, kind, site) in of_storage:
            kinds.append(
                _Kind(rows[begin:end], thread, kind > 0, Span(*span), sites[site], kind > 1)
            )
        yield kinds


def _by_segment(own: VectorClock, before: BoolArray) -> tuple[BoolArray, BoolArray]:
    """The first row of each segment, and which of those have one of what was before.

    A segment may begin before a stretch and go on in it.
    """
    first = np.ones(len(own), bool)
    first[1:] = own[1:] != own[:-1]
    old = np.zeros_like(first)
    old[first] = np.logical_or.reduceat(before, np.flatnonzero(first))
    return first, old


def _unordered(order: Order, accesses: Accesses, one: _Kind, other: _Kind) -> RacingPair | None:
    ours, theirs = accesses.segment[one.rows], accesses.segment[other.rows]
    own, others = order.own[ours], order.own[theirs]
    # The first of A that B did not know of yet, and the first that knows of B's.
    low = own.searchsorted(order.clocks[theirs, one.thread], side="right")
    high = order.clocks[ours, other.thread].searchsorted(others, side="left")
    count = np.maximum(high - low, 0)
    racing = count.nonzero()[0]
    if not len(racing):
        return None
    pairs = int(count.sum())
    before, other_before = accesses.old[one.rows], accesses.old[other.rows]
    if before.any() or other_before.any():
        first, old = _by_segment(own, before)
        other_first, other_old = _by_segment(others, other_before)
        pairs = 0
        for mine, their, sign in ((first, other_first, 1), (old, other_old, -1)):
            counted = np.concatenate([[0], np.cumsum(mine)])
            those = racing[their[racing]]
            pairs += sign * int((counted[high[those]] - counted[low[those]]).sum())
        if not pairs:
            return None
    # Of all, the two nearest to each other in time show best what may happen.
    theirs = other.rows[racing]
    starts = accesses.start[one.rows]
    near = np.clip(starts.searchsorted(accesses.start[theirs]), low[racing], high[racing] - 1)
    earlier = np.clip(near - 1, low[racing], high[racing] - 1)
    gap, gap_before = (
        np.maximum(accesses.start[one.rows[i]], accesses.start[theirs])
        - np.minimum(accesses.end[one.rows[i]], accesses.end[theirs])
        for i in (near, earlier)
    )
    near = np.where(gap_before < gap, earlier, near)
    best = int(np.argmin(np.minimum(gap, gap_before)))
    return RacingPair(int(one.rows[near[best]]), int(theirs[best]), pairs)


MAX_RUNS = 10_000
"""Runs that are gone through one by one; of ranges with more, nothing is claimed."""


@dataclass(frozen=True)
class Span:
    """Bytes [low, low + run), and again every `stride` bytes below `high`.

    stride 0: [low, high) without gaps; -1: gaps that are not evenly spaced.
    """

    low: int
    high: int
    run: int
    stride: int

    @property
    def runs(self) -> int:
        """How many runs there are."""
        if self.stride <= 0:
            return 1
        return max(1, -(-(self.high - self.low - self.run) // self.stride) + 1)


def share_bytes(a: Span, b: Span) -> bool:
    """Returns whether they surely share a byte. With uneven gaps this is unknown: False."""
    if a.low >= b.high or b.low >= a.high:
        return False
    if a.stride < 0 or b.stride < 0:
        return False
    if a.stride == 0 and b.stride == 0:
        return True
    few, many = sorted((a, b), key=lambda span: span.runs)
    if few.runs > MAX_RUNS:
        # Usually rows of one table: compare the columns.
        return a.stride == b.stride and _same_columns(a, b)
    # By the number of runs: a damaged record may bear a stride that does not fit the others.
    starts = (few.low + number * few.stride for number in range(few.runs))
    length = few.run if few.stride else few.high - few.low
    return any(_meets(low, low + length, many) for low in starts)


def _meets(low: int, high: int, span: Span) -> bool:
    """Whether [low, high) meets a run of `span`."""
    if not span.stride:
        return low < span.high and high > span.low
    first = max(0, -(-(low - span.run + 1 - span.low) // span.stride))  # the first to end past low
    start = span.low + first * span.stride
    return first < span.runs and start < high


def _same_columns(a: Span, b: Span) -> bool:
    offset = (b.low - a.low) % a.stride
    return offset < a.run or a.stride - offset < b.run
