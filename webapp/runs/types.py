"""Types that many modules name."""

from collections.abc import Callable

from lanescope.collector.format.array_types import (
    BoolArray,
    Float64Array,
    Int64Array,
    UInt8Array,
    UInt32Array,
)

__all__ = [
    "BoolArray",
    "Float64Array",
    "Int64Array",
    "Progress",
    "UInt8Array",
    "UInt32Array",
    "Window",
]

Window = tuple[int, int]
"""[t0, t1), ns from the start of the run."""

Progress = Callable[[int, int], None]
"""Called with (events done, events in all)."""
