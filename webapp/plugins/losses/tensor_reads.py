"""Says which tensors operators read, where storages are used again for other tensors."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import phases_of_kind
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import BoolArray, Int64Array

OPERATOR_KEY = ["start_ns", "depth"]
READ_COLUMNS = [*OPERATOR_KEY, "storage", "bytes", "write", "birth"]
"""Columns of accesses."""

Tensor = tuple[int, int]
"""A storage, and when it was born."""


def backward_ends(run: Run, rank: int, thread: str) -> list[int]:
    """Returns when the backward passes of a thread ended, nanoseconds."""
    own = phases_of_kind(run, schema.PhaseKind.backward, rank, thread).dropna()
    return sorted(map(int, own["start_ns"] + own["duration_ns"]))


class TensorReads:
    """What was where: storages are used again for other tensors. Accesses are by start."""

    def __init__(self, rows: pa.Table) -> None:
        self._start, self._depth, self.storage, self.bytes, self.write, self._birth = (
            rows[name].to_numpy() for name in READ_COLUMNS
        )
        self._reads = ~self.write & ~self._birth
        self._born = defaultdict[int, list[int]](list)
        born = zip(self.storage[self._birth], self._start[self._birth], strict=True)
        for storage, time in born:
            self._born[int(storage)].append(int(time))

    def at(self, start_ns: int, depth: int) -> Int64Array:
        """Returns the accesses of an operator, by position."""
        low, high = np.searchsorted(self._start, (start_ns, start_ns + 1)).tolist()
        own: Int64Array = low + np.flatnonzero(self._depth[low:high] == depth)
        return own

    def tensor(self, storage: int, time_ns: int) -> Tensor:
        """Returns which tensor a storage held at an instant."""
        times = self._born.get(storage, [])
        before = bisect_right(times, time_ns)
        return storage, times[before - 1] if before else -1

    def read(self, since_ns: int, until_ns: int) -> Iterator[Tensor]:
        """Yields the tensors that accesses which begin in [since, until) read."""
        yield from self._among(self._reads, since_ns, until_ns)

    def written(self, since_ns: int, until_ns: int) -> Iterator[Tensor]:
        """Yields the tensors that accesses which begin in [since, until) write."""
        yield from self._among(self.write, since_ns, until_ns)

    def _among(self, chosen: BoolArray, since_ns: int, until_ns: int) -> Iterator[Tensor]:
        low, high = np.searchsorted(self._start, (since_ns, until_ns)).tolist()
        for at in low + np.flatnonzero(chosen[low:high]):
            yield self.tensor(int(self.storage[at]), int(self._start[at]))

    def full(self, accesses: Int64Array, size: int) -> set[Tensor]:
        """Returns the tensors of `size` bytes that accesses of one operator read."""
        reads = accesses[self._reads[accesses] & (self.bytes[accesses] == size)]
        return {self.tensor(int(self.storage[at]), int(self._start[at])) for at in reads}

    def read_by(self, accesses: Int64Array) -> set[Tensor]:
        """Returns the tensors that accesses of one operator read."""
        reads = accesses[self._reads[accesses]]
        return {self.tensor(int(self.storage[at]), int(self._start[at])) for at in reads}
