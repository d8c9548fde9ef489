"""Fits measured clock offsets by one mapping with its uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

UNMEASURED_DRIFT_PPB = 100_000.0
"""Bound for the drift of a clock that was measured once or for too short a time: quartz deviates by
about 50 parts per million, and two clocks may deviate in opposite directions."""


class Point(NamedTuple):
    """One measurement: the reference clock read `local_ns + offset_ns` +- `half_ns`."""

    local_ns: int
    offset_ns: int
    half_ns: int  # half of the round trip


class Calibration(NamedTuple):
    """A process's measurements of its clock against a reference clock."""

    reference: str  # identity of the reference clock
    wall_minus_monotonic_ns: int  # of the reference
    points: tuple[Point, ...]  # by time, at least one

    @classmethod
    def parse(cls, data: Any) -> Calibration:
        """Reads JSON. Raises KeyError, TypeError or ValueError for other contents."""
        points = tuple(sorted(Point(*map(_checked_time, point)) for point in data["points"]))
        if not points or not isinstance(data["reference"], str):
            raise ValueError("no calibration")
        return cls(data["reference"], _checked_time(data["wall_minus_monotonic_ns"]), points)

    def to_json(self) -> dict[str, Any]:
        """Returns the value that `parse` reads."""
        return self._asdict()


class Fit(NamedTuple):
    """reference = local + offset + (local - start) * drift, within the uncertainty."""

    offset_ns: int
    drift_ppb: float
    uncertainty_ns: int


def fit(points: Sequence[Point], start_ns: int, end_ns: int) -> Fit:
    """Returns the mapping for a process that ran from `start_ns` to `end_ns` of its own clock.

    Takes the candidate with the smaller uncertainty. One is the line through the first and the last
    point: between them the error is at most that of the ends plus the largest deviation of a point;
    beyond them the slope's error grows with the distance. The other is the tightest point without
    drift, whose error grows by UNMEASURED_DRIFT_PPB; it wins after a short time.
    """
    end_ns = max(end_ns, points[-1].local_ns)  # the process may still run
    best = min(points, key=lambda point: point.half_ns)
    far = max(abs(best.local_ns - start_ns), abs(end_ns - best.local_ns))
    still = Fit(best.offset_ns, 0.0, best.half_ns + round(far * UNMEASURED_DRIFT_PPB * 1e-9))
    first, last = points[0], points[-1]
    time = last.local_ns - first.local_ns
    if time <= 0:
        return still
    slope = (last.offset_ns - first.offset_ns) / time
    stray = max(
        abs(point.offset_ns - first.offset_ns - slope * (point.local_ns - first.local_ns))
        + point.half_ns
        for point in points
    )
    beyond = max(first.local_ns - start_ns, end_ns - last.local_ns, 0)
    error = stray + beyond * (first.half_ns + last.half_ns) / time
    if error >= still.uncertainty_ns:
        return still
    offset = first.offset_ns - round(slope * (first.local_ns - start_ns))
    return Fit(offset, slope * 1e9, round(error) + 1)


def _checked_time(value: Any) -> int:
    if type(value) is not int or abs(value) >= 2**62:
        raise ValueError(f"{value!r} is not a time")
    return value
