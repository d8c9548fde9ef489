"""Joins what was read of two parts of a file, whose names, lanes and signatures have numbers of
their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..import_limits import MAX_INPUT_SIGNATURES
from ..spill import DEFAULT_PLATFORM, ROWS_AT_ONCE, Spill, StructArray, Trace


@dataclass(frozen=True)
class PartNumbers:
    """What the numbers of one part of a file become in what was read of those before it."""

    names: NDArray[np.uint32]
    lanes: NDArray[np.uint32]
    signatures: NDArray[np.uint32]
    args_at: int

    def renumbered(self, spill: Spill) -> Iterator[StructArray]:
        """Yields the rows of a file, many at a time."""
        rows = spill.rows()
        for first in range(0, len(rows), ROWS_AT_ONCE):
            some = rows[first : first + ROWS_AT_ONCE].copy()
            for name, become in (("name", self.names), ("lane", self.lanes)):
                if name in (some.dtype.names or ()):
                    some[name] = become[some[name]]
            if "signature" in (some.dtype.names or ()):
                some["signature"] = self.signatures[some["signature"]]
            some["args_at"] += self.args_at
            yield some


def append(trace: Trace, part: Trace) -> PartNumbers:
    """Adds what was read of the next part of its file to a trace. Returns how its numbers change.

    Raises ImportRejected where both together exceed a limit, OSError.
    """
    signatures = _signatures(trace, part)
    lanes = [trace.lanes[one.pid, one.tid, one.stream] for one in part.lanes.lanes]
    numbers = PartNumbers(
        np.array([trace.texts[one] for one in part.texts.texts], np.uint32),
        np.array(lanes, np.uint32),
        np.array(signatures, np.uint32),
        trace.arguments.append(part.arguments),
    )
    for own, more in (
        (trace.slices, part.slices),
        (trace.values, part.values),
        (trace.arrows, part.arrows),
    ):
        for rows in numbers.renumbered(more):
            own.add(rows)
    trace.collective_slices += [
        one._replace(lane=lanes[one.lane], signature=signatures[one.signature])
        for one in part.collective_slices
    ]
    trace.texts.cut += part.texts.cut
    trace.counts.update(part.counts)
    trace.process_names.update(part.process_names)
    if part.platform != DEFAULT_PLATFORM:
        trace.platform = part.platform
    return numbers


def _signatures(trace: Trace, part: Trace) -> list[int]:
    """The number in `trace` of each signature of a part; 0 beyond the limit."""
    known = {signature: number for number, signature in enumerate(trace.signatures)}
    for signature in part.signatures:
        if signature not in known and len(known) < MAX_INPUT_SIGNATURES:
            known[signature] = len(trace.signatures)
            trace.signatures.append(signature)
    return [known.get(signature, 0) for signature in part.signatures]
