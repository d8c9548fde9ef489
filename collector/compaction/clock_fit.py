"""From measured clock offsets to one mapping, with what remains uncertain of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

UNMEASURED_DRIFT_PPB = 100_000.0
"""Bound for the drift of a clock that was measured once or for too short a time to tell: quartz is
good to about 50 parts per million, and two clocks may err in opposite directions."""


class Point(NamedTuple):
    """One measurement: the reference clock read `local_ns + offset_ns`, give or take `half_ns`."""

    local_ns: int
    offset_ns: int
    half_ns: int  # half of the round trip that told: the answer was written within it


class Calibration(NamedTuple):
    """What a process measured of its clock against that of another, the reference."""

    reference: str  # identity of the reference clock
    wall_minus_monotonic_ns: int  # of the reference
    points: tuple[Point, ...]  # by time, at least one

    @classmethod
    def parse(cls, data: Any) -> Calibration:
        """From JSON. Raises KeyError, TypeError or ValueError where it is not one."""
        points = tuple(sorted(Point(*map(_whole, point)) for point in data["points"]))
        if not points or not isinstance(data["reference"], str):
            raise ValueError("no calibration")
        return cls(data["reference"], _whole(data["wall_minus_monotonic_ns"]), points)

    def to_json(self) -> dict[str, Any]:
        """What `parse` reads."""
        return self._asdict()


class Fit(NamedTuple):
    """reference = local + offset + (local - start) * drift, within the uncertainty."""

    offset_ns: int
    drift_ppb: float
    uncertainty_ns: int


def fit(points: Sequence[Point], start_ns: int, end_ns: int) -> Fit:
    """The mapping for a process that ran from `start_ns` to `end_ns` of its own clock.

    Two candidates, of which the one with the smaller uncertainty is taken. A line through the
    first and the last point: its error between them is at most that of its ends and what the
    points between stray from it; beyond them the slope's error grows with the distance. And the
    tightest point alone with no drift, which is all there is after a short time: then the error
    grows by UNMEASURED_DRIFT_PPB.
    """
    end_ns = max(end_ns, points[-1].local_ns)  # it may be running still
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


def _whole(value: Any) -> int:
    if type(value) is not int or abs(value) >= 2**62:
        raise ValueError(f"{value!r} is no time")
    return value
