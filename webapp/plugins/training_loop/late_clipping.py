"""Finds gradients that are clipped after the optimizer has used them.

clip_grad_norm_ comes after optimizer.step() and before the next backward: the step was taken with
gradients of any size, and the clipped ones are zeroed.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from lanescope.collector.format import schema
from lanescope.collector.format.names import CLIP_LIMIT, CLIP_NORM
from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.fault_series import found_in_rows
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.nothing_to_check import need_rows
from lanescope.webapp.analysis.parameter_history import clip_place, logged
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import BoolArray, Int64Array

_MIN_LATE = 5  # calls
_MIN_SHARE = 0.9  # of the calls


def _norms(run: Run) -> pd.DataFrame:
    return need_rows(logged(run, None, CLIP_NORM), "the program does not call clip_grad_norm_")


@found_in_rows(_norms)
def clipped_late(run: Run, rank: int, rows: pd.DataFrame) -> Finding | None:
    """Returns findings of kind `exploding_gradient`, one per rank. Raises NotApplicable."""
    known = logged(run, rank, CLIP_LIMIT).drop_duplicates("time_ns").set_index("time_ns")
    clips = rows.sort_values("time_ns")
    clips = clips.assign(limit=clips["time_ns"].map(known["value"]))
    late = clips[_late(run, rank, clips["time_ns"].to_numpy())]
    above = late[late["value"] > late["limit"]]
    if len(above) < _MIN_LATE or len(late) < _MIN_SHARE * len(clips):
        return None
    count = len(late)
    first = above.iloc[0]
    step, norm, limit = int(first["step"]), float(first["value"]), float(first["limit"])
    return finding_at(
        run,
        rank,
        first,
        kind="exploding_gradient",
        title=f"Gradients are clipped after the optimizer has used them, in {units.count(count)} "
        f"calls: at step {step} it stepped by a norm of {units.number(norm)}, and then "
        f"clip_grad_norm_ scaled it to {units.number(limit)}. Call clip_grad_norm_ between "
        "backward() and step().",
        where=clip_place(run, rank),
        evidence={"cause": "clipped_late", "norm": norm, "max_norm": limit, "steps": count},
    )


def _late(run: Run, rank: int, times: Int64Array) -> BoolArray:
    """Whether an optimizer stepped last before each time, and no one steps before the next
    backward. Within a step, hooks of the optimizer clip before it."""
    phases = to_frame(run.events("phase", rank, columns=["start_ns", "duration_ns", "kind"]))
    phases = phases.sort_values("start_ns")
    kinds = phases["kind"].astype("str").to_numpy()
    back, step = schema.PhaseKind.backward.name, schema.PhaseKind.optimizer.name
    events = (kinds == back) | (kinds == step)
    starts, steps = phases["start_ns"].to_numpy()[events], (kinds == step)[events]
    ends = np.where(steps, starts + phases["duration_ns"].fillna(0).to_numpy()[events], 0)
    # At both ends stand steps, so that each time has a neighbour.
    around = np.concatenate(([False], steps, [True]))
    after = np.searchsorted(starts, times)
    within = np.append(0, np.maximum.accumulate(ends))[after] > times
    late: BoolArray = around[after] & ~around[after + 1] & ~within
    return late
