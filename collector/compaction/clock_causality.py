"""What the order of cause and effect adds to measured clock offsets.

No rank leaves a collective of all ranks before the last one entered it. So between two clocks each
such call tells two things: how far one may be ahead of the other at most, and at least.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .clock_fit import UNMEASURED_DRIFT_PPB, Fit

_HALVINGS = 80
"""Of the search for the slope: (2/3)^80 of what is possible is far below a nanosecond a year."""

_ROUNDING_NS = 2
"""Offset, drift's share and the uncertainty itself are rounded to whole nanoseconds."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Bounds(NamedTuple):
    """At `local_ns` of a clock, the reference clock read at least (or at most) `reference_ns`."""

    local_ns: Ints
    reference_ns: Ints


class Contradiction(ValueError):
    """The bounds exclude each other, or what was measured: one of them is not true."""


def refined(found: Fit, start_ns: int, end_ns: int, least: Bounds, most: Bounds) -> Fit:
    """`found` made narrower by what must have been, for local times from `start_ns` to `end_ns`.

    The true error of `found` lies within its uncertainty at any time, within every bound at its
    own, and changes by UNMEASURED_DRIFT_PPB (and the drift that was fitted) at most: together they
    make a band. The answer is the line through the band's middle that strays least from its edges,
    and the uncertainty is by how much. So it is as true as `found` and the bounds are, and no
    steadiness of the drift is assumed. Where the answer is not narrower, `found` itself.

    Raises Contradiction where nothing lies within all bounds.
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
    for _ in range(_HALVINGS):  # the width is convex in the slope
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


def _errors(found: Fit, start_ns: int, bounds: Bounds, sign: int = 1) -> tuple[Floats, Floats]:
    """Instants from the start, and what each bound says of the error of `found` then."""
    at = (bounds.local_ns - start_ns).astype(np.float64)
    offset = bounds.reference_ns - bounds.local_ns - found.offset_ns  # whole numbers: exact
    return at, sign * (offset - at * (found.drift_ppb * 1e-9))


def _edge(
    at: Floats, limits: Floats, wide: float, length: float, slope: float
) -> tuple[Floats, Floats]:
    """Corners of the highest curve below all limits and `wide` that rises and falls by `slope`."""
    at = np.concatenate([at, [0.0, length]])
    limits = np.minimum(np.concatenate([limits, [wide, wide]]), wide)
    order = np.argsort(at, kind="stable")
    at, limits = at[order], limits[order]
    rising = np.minimum.accumulate(limits - slope * at) + slope * at
    falling = np.minimum.accumulate((limits + slope * at)[::-1])[::-1] - slope * at
    edge = np.minimum(rising, falling)
    # Between two corners the curve rises from the one and falls to the other; it may be cut flat.
    left, right = edge[:-1], edge[1:]
    up = ((right - left) / slope + np.diff(at)) / 2
    up = np.minimum(up, (wide - left) / slope)
    down = np.minimum(np.diff(at) - up, (wide - right) / slope)
    corners = np.concatenate([at, at[:-1] + up, at[1:] - down])
    heights = np.concatenate([edge, left + slope * up, right + slope * down])
    order = np.argsort(corners, kind="stable")
    return corners[order], heights[order]
