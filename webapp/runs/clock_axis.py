"""From a process's monotonic clock to the run's time axis, in integers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.collector.format.columns import TIME_COLUMNS
from lanescope.webapp.runs.types import Int64Array

SPAN_COLUMNS = ("duration_ns", "self_ns")
"""Columns that hold a length of time; they stretch with the clock's drift."""


_TIMES = frozenset((*TIME_COLUMNS, *SPAN_COLUMNS))

_UNKNOWN_ERROR_NS = 1 << 61
"""Farthest instant where no process's start is known: 2043, on a wall clock."""


@dataclass(frozen=True)
class Axis:
    """Mapping of one process: axis = local + offset + (local - reference) * drift.

    The reference is the process's start, so the drift's share stays small enough to be computed
    in float64 without loss: 1e-4 of a week is 6e13 ns, far below 2^53. The instants themselves
    never leave int64.

    Files may be damaged. An instant farther than `farthest_ns` from the reference is put at the
    reference, and a negative or longer duration is put at 0 (`impossible_times` says so), so that
    nothing that is computed of them overflows.
    """

    offset_ns: int
    drift_ppb: float
    reference_ns: int
    farthest_ns: int = schema.MAX_TIME_NS

    @cached_property
    def possible(self) -> tuple[int, int]:
        """First and last local instant that is believed."""
        return self.reference_ns - self.farthest_ns, self.reference_ns + self.farthest_ns

    @classmethod
    def of(cls, process: schema.Process) -> Axis:
        """Returns the mapping that the manifest states for a process."""
        clock = process["clock"]
        return cls(clock["offset_ns"], float(clock["drift_ppb"]), process["start_ns"])

    def instant(self, local_ns: int) -> int:
        """Returns one local instant on the axis, as `instants` puts it."""
        low, high = self.possible
        if not low <= local_ns <= high:
            local_ns = self.reference_ns
        elapsed = local_ns - self.reference_ns
        return local_ns + self.offset_ns + round(float(elapsed) * (self.drift_ppb * 1e-9))

    def instants(self, local: pa.ChunkedArray, origin_ns: int) -> pa.ChunkedArray:
        """Returns local instants (int64, null stays null) on the axis, relative to `origin_ns`."""
        return self._moved(self.believed("start_ns", local), origin_ns)

    def _moved(self, local: pa.ChunkedArray, origin_ns: int) -> pa.ChunkedArray:
        """Possible local instants on the axis."""
        shifted = pc.add(local, pa.scalar(self.offset_ns - origin_ns, pa.int64()))
        if not self.drift_ppb:
            return shifted
        elapsed = pc.subtract(local, pa.scalar(self.reference_ns, pa.int64()))
        return pc.add(shifted, self._stretch(elapsed))

    def readings(self, local: Int64Array, origin_ns: int) -> Int64Array:
        """Returns possible local instants as `instants` puts them."""
        shifted: Int64Array = local + (self.offset_ns - origin_ns)
        if self.drift_ppb:
            elapsed = (local - self.reference_ns).astype(np.float64)
            shifted += np.rint(elapsed * (self.drift_ppb * 1e-9)).astype(np.int64)
        return shifted

    def around(self, window: tuple[int, int], origin_ns: int) -> tuple[int, int]:
        """Returns a stretch of local time that holds a window of the axis, and little more."""
        share = 1 + self.drift_ppb * 1e-9
        shift = origin_ns - self.offset_ns - self.reference_ns
        low, high = (self.reference_ns + int((instant + shift) / share) for instant in window)
        return low - 1000, high + 1000  # float64 is exact to some ns within a year

    def spans(self, length: pa.ChunkedArray) -> pa.ChunkedArray:
        """Returns lengths of local time in axis time."""
        return pc.add(length, self._stretch(length)) if self.drift_ppb else length

    def limits(self, name: str) -> tuple[int, int] | None:
        """Returns least and greatest value that a column may hold; None for one that holds no
        time."""
        if name in TIME_COLUMNS:
            return self.possible
        if name == "duration_ns":
            return 0, self.farthest_ns
        return (-self.farthest_ns, self.farthest_ns) if name == "self_ns" else None

    def believed(self, name: str, local: pa.ChunkedArray) -> pa.ChunkedArray:
        """Returns the values of a column with those that cannot be replaced."""
        limits = self.limits(name)
        if limits is None or not beyond(local, limits):
            return local
        inside = pc.and_(pc.greater_equal(local, limits[0]), pc.less_equal(local, limits[1]))
        instead = self.reference_ns if name in TIME_COLUMNS else 0
        return pc.if_else(inside, local, pa.scalar(instead, pa.int64()))

    def _stretch(self, elapsed: pa.ChunkedArray) -> pa.ChunkedArray:
        share = pc.multiply(pc.cast(elapsed, pa.float64(), safe=False), self.drift_ppb * 1e-9)
        return pc.cast(pc.round(share), pa.int64(), safe=False)

    def apply(self, table: pa.Table, origin_ns: int) -> pa.Table:
        """Returns all time columns of an event table on the axis.

        A duration becomes the difference of its mapped ends, so that what nested before nests
        after; rounding each length by itself would let a child end a nanosecond past its parent.
        """
        columns = dict(zip(table.column_names, table.columns, strict=True))
        local = {name: self.believed(name, columns[name]) for name in columns if name in _TIMES}
        columns |= local
        for name in local:
            if name in TIME_COLUMNS:
                columns[name] = self._moved(local[name], origin_ns)
        if self.drift_ppb:
            if "start_ns" in local and "duration_ns" in local:
                end = self.instants(pc.add(local["start_ns"], local["duration_ns"]), origin_ns)
                columns["duration_ns"] = pc.subtract(end, columns["start_ns"])
            if "self_ns" in local:
                columns["self_ns"] = self.spans(local["self_ns"])
        return pa.Table.from_arrays(list(columns.values()), schema=table.schema)


def axis_of(axes: Mapping[tuple[int, int], Axis], rank: int, pid: int) -> Axis:
    """Returns the mapping of process `pid` of a rank.

    One that the manifest does not list (it died before) shares its rank's host, hence the clock
    of any other process of the rank; without one, local time is taken as axis time.
    """
    own = axes.get((rank, pid))
    if own is not None:
        return own
    shared = (axis for (other, _), axis in axes.items() if other == rank)
    return next(shared, Axis(0, 0.0, 0, _UNKNOWN_ERROR_NS))


def beyond(values: pa.ChunkedArray, limits: tuple[int, int]) -> bool:
    """Returns True where a column holds a value outside of the limits."""
    for chunk in values.chunks:
        if chunk.null_count:
            chunk = chunk.drop_null()
        numbers = chunk.to_numpy()
        if len(numbers) and (numbers.min() < limits[0] or numbers.max() > limits[1]):
            return True
    return False
