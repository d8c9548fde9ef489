"""The training steps and phases that a trace tells of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..kinds import PhaseKind
from .instants import I64
from .kineto import STEP
from .rows import PHASE, Rows, Trace

_MOST_STEP = 2**31 - 2


@dataclass(frozen=True)
class Steps:
    """Step of each instant: `first` before `bounds[0]`, then `numbers[i]` from `bounds[i]` on."""

    bounds: I64
    numbers: I64
    first: int

    def at(self, instants: I64) -> I64:
        """The step of each instant."""
        place = np.searchsorted(self.bounds, instants, "right")
        return np.concatenate([[self.first], self.numbers])[place]


def steps_of(trace: Trace, slices: Rows) -> Steps:
    """Steps as torch's profiler marks them (ProfilerStep#N); else ends of the first optimizer.

    What lies before the first mark belongs to the step before it, what lies after the last one to
    the step after it. Without either, all is step 0.
    """
    phases = slices[slices["kind"] == PHASE + PhaseKind.user]
    marks = []
    for row in phases:
        found = STEP.fullmatch(trace.text(int(row["name"])))
        if found:
            begin = int(row["start"])
            marks.append((begin, begin + max(0, int(row["duration"])), int(found[1])))
    if marks:
        marks.sort()
        bounds = [one[0] for one in marks] + [marks[-1][1]]
        numbers = [one[2] for one in marks] + [marks[-1][2] + 1]
        return Steps(np.array(bounds), np.array(numbers), max(0, marks[0][2] - 1))
    ends = slices[(slices["kind"] == PHASE + PhaseKind.optimizer) & (slices["duration"] >= 0)]
    if not len(ends):
        return Steps(np.empty(0, np.int64), np.empty(0, np.int64), 0)
    first = ends[np.argmin(ends["start"])]
    same = ends[(ends["name"] == first["name"]) & (ends["lane"] == first["lane"])]
    bounds_ = np.unique(same["start"] + same["duration"])
    return Steps(bounds_, np.arange(1, len(bounds_) + 1), 0)
