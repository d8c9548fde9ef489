"""Narrows measured clock offsets by causality.

No rank leaves a collective before the last one entered it. So each call bounds the offset of two
clocks from both sides.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ..format.array_types import Float64Array, Int64Array
from .clock_fit import UNMEASURED_DRIFT_PPB, Fit

_ITERATIONS = 80
"""Of the search for the slope: (2/3)^80 of the range is far below a nanosecond a year."""

_ROUNDING_NS = 2
"""Offset, drift's share and the uncertainty itself are rounded to whole nanoseconds."""


class Bounds(NamedTuple):
    """At `local_ns` of a clock the reference clock read at least (or at most) `reference_ns`."""

    local_ns: Int64Array
    reference_ns: Int64Array


class Contradiction(ValueError):
    """The bounds exclude each other or the measurement."""


def refined(found: Fit, start_ns: int, end_ns: int, least: Bounds, most: Bounds) -> Fit:
    """Returns `found` narrowed by the bounds, for local times from `start_ns` to `end_ns`.

    The true error of `found` is within its uncertainty at any time, within every bound at its time,
    and changes at most by UNMEASURED_DRIFT_PPB plus the fitted drift. Together these form a band.
    The result is the line through the band with the least distance to its edges, and that distance
    is the uncertainty. So the result holds if `found` and the bounds hold; a constant drift is not
    assumed. Returns `found` itself if the result is not narrower.

    Raises Contradiction if no line is within all bounds.
    """
    length = float(end_ns - start_ns)
    if length <= 0 or len(least.local_ns) + len(most.local_ns) == 0:
        return found
    slope = (UNMEASURED_DRIFT_PPB + abs(found.drift_ppb)) * 1e-9
    wide = float(found.uncertainty_ns)
    at, over = _edge(*_errors(found, start_ns, most), wide, length, slope)
    below, under = _edge(*_errors(found, start_ns, least, -1), wide, length, slope)
    under = -under
    both = np.union1d(at, below)
    if np.any(np.interp(both, below, under) > np.interp(both, at, over)):
        raise Contradiction("no offset of the clocks agrees with all calls")

    def strays(turn: float) -> tuple[float, float]:
        return float((over - turn * at).max()), float((under - turn * below).min())

    low, high = -2 * wide / length, 2 * wide / length
    for _ in range(_ITERATIONS):  # the width is convex in the slope
        first, second = low + (high - low) / 3, high - (high - low) / 3
        above, beneath = strays(first)
        if above - beneath <= np.subtract(*strays(second)):
            high = second
        else:
            low = first
    turn = (low + high) / 2
    above, beneath = strays(turn)
    uncertainty = math.ceil((above - beneath) / 2) + _ROUNDING_NS
    if uncertainty >= found.uncertainty_ns:
        return found
    middle = round((above + beneath) / 2)
    return Fit(found.offset_ns + middle, found.drift_ppb + turn * 1e9, uncertainty)


def _errors(
    found: Fit, start_ns: int, bounds: Bounds, sign: int = 1
) -> tuple[Float64Array, Float64Array]:
    """Returns times since the start, and each bound on the error of `found` at that time, ns."""
    at = (bounds.local_ns - start_ns).astype(np.float64)
    offset = bounds.reference_ns - bounds.local_ns - found.offset_ns  # whole numbers: exact
    return at, sign * (offset - at * (found.drift_ppb * 1e-9))


def _edge(
    at: Float64Array, limits: Float64Array, wide: float, length: float, slope: float
) -> tuple[Float64Array, Float64Array]:
    """Returns times and heights of the highest curve below `limits` and `wide`, with +-`slope`."""
    at = np.concatenate([at, [0.0, length]])
    limits = np.minimum(np.concatenate([limits, [wide, wide]]), wide)
    order = np.argsort(at, kind="stable")
    at, limits = at[order], limits[order]
    rising = np.minimum.accumulate(limits - slope * at) + slope * at
    falling = np.minimum.accumulate((limits + slope * at)[::-1])[::-1] - slope * at
    edge = np.minimum(rising, falling)
    # Between two corners the curve rises, may stay flat at `wide`, and falls.
    left, right = edge[:-1], edge[1:]
    up = ((right - left) / slope + np.diff(at)) / 2
    up = np.minimum(up, (wide - left) / slope)
    down = np.minimum(np.diff(at) - up, (wide - right) / slope)
    corners = np.concatenate([at, at[:-1] + up, at[1:] - down])
    heights = np.concatenate([edge, left + slope * up, right + slope * down])
    order = np.argsort(corners, kind="stable")
    return corners[order], heights[order]
