"""Do two ranges of a storage, with gaps or without, share a byte?"""

from __future__ import annotations

from dataclasses import dataclass

MOST_RUNS = 10_000
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


def share(a: Span, b: Span) -> bool:
    """Whether they surely share a byte. Of gaps that are not evenly spaced nobody can be sure."""
    if a.low >= b.high or b.low >= a.high:
        return False
    if a.stride < 0 or b.stride < 0:
        return False
    if a.stride == 0 and b.stride == 0:
        return True
    few, many = sorted((a, b), key=lambda span: span.runs)
    if few.runs > MOST_RUNS:
        # Rows of one table, as a rule: where in its row does each lie?
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
