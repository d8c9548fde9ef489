"""Finds gradient accumulation that throws passes away: zero_grad() runs before each of them.

Between any two steps of a run's only optimizer the same number of backward passes run, all at one
line with the same callers, and zero_grad() follows each of them but the last. Passes for another
purpose, as the gradient of an input, are made at another line than that of the step.

Where several steps follow one pass, and as many passes went before it, tasks take turns within an
update: one zeroes the gradients of another, which then steps with those of the first.
"""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.cluster import per_rank
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.nothing_to_check import need_steps
from lanescope.webapp.analysis.stack_frames import first_place, phase_place
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import Int64Array

_MIN_PERIODS = 3
"""Stretches from one step to the next."""

_ZEROES = "Optimizer.zero_grad#"
_BACKWARD, _OPTIMIZER = (schema.PhaseKind.backward.name, schema.PhaseKind.optimizer.name)


def wasted_passes(run: Run) -> list[Finding]:
    """Returns findings of kind `dead_parameter` or `wrong_gradient`, at most one. Raises
    NotApplicable."""
    held = need_steps(run)
    for rank in run.ranks:
        own = held[held["rank"] == rank]
        if own["optimizer"].nunique() == 1 and own["thread"].nunique() == 1:
            found = _of_threads(run, rank)[str(own["thread"].iloc[0])]
            if found is not None:
                return [found]
    return []


@per_rank
def _of_threads(run: Run, rank: int) -> dict[str, Finding | None]:
    """By thread of a rank that steps an optimizer."""
    threads = pc.unique(run.events("gradient", rank, columns=["thread"])["thread"])
    return {thread: _of_thread(run, rank, thread) for thread in threads.to_pylist()}


def _of_thread(run: Run, rank: int, thread: str) -> Finding | None:
    phases = run.events("phase", rank, thread, columns=["start_ns", "duration_ns", "kind"])
    kinds = phases["kind"].cast(pa.string())
    backward = to_frame(phases.filter(pc.equal(kinds, _BACKWARD))).sort_values("start_ns")
    steps = np.sort(phases["start_ns"].filter(pc.equal(kinds, _OPTIMIZER)).to_numpy())
    zeroing = run.events("op", rank, thread, columns=["start_ns", "name", "stack"])
    zeroing = zeroing.filter(pc.starts_with(zeroing["name"].cast(pa.string()), _ZEROES))
    starts, zeroed = backward["start_ns"].to_numpy(), np.sort(zeroing["start_ns"].to_numpy())
    mixed = _mixed(starts, zeroed, steps)
    wasted = _wasted(starts, zeroed, steps) if len(steps) > _MIN_PERIODS else 0
    if not (wasted or len(mixed) >= _MIN_PERIODS):
        return None
    ends = starts + backward["duration_ns"].fillna(0).astype("int64").to_numpy()
    windows = [*zip(starts.tolist(), ends.tolist(), strict=True)][: wasted + 2 * len(mixed) + 1]
    places = {phase_place(run, rank, _BACKWARD, window) for window in windows}
    where = places.pop() if len(places) == 1 else None
    if where is None:
        return None
    stacks = zeroing["stack"].drop_null().to_pylist()
    at = first_place(run, rank, stacks)
    if not wasted:
        return _taking_turns(run, rank, thread, mixed, where, at)
    return _finding(run, rank, wasted, where, at)


def _wasted(backward: Int64Array, zeroed: Int64Array, steps: Int64Array) -> int:
    """How many passes are thrown away before each step, of several; 0: none, or not always."""
    counts = set()
    for since, until in pairwise(steps.tolist()):
        own = backward[(backward > since) & (backward < until)]
        zeros = zeroed[(zeroed > since) & (zeroed < until)]
        between = [((zeros > a) & (zeros < b)).any() for a, b in pairwise(own.tolist())]
        if len(own) < 2 or not all(between) or (zeros > own[-1]).any():
            return 0
        counts.add(len(own) - 1)
    return counts.pop() if len(counts) == 1 else 0


_TURNS = re.compile("(?:BZ+)+BSS+")
"""Passes of backward with zero_grad() between them, then several steps without either."""


def _mixed(backward: Int64Array, zeroed: Int64Array, steps: Int64Array) -> list[int]:
    """When each stretch begins in which several steps use the gradients of one pass, and others
    are thrown away: ns."""
    times = np.concatenate([backward, zeroed, steps])
    order = np.argsort(times, kind="stable")
    kinds = np.repeat([*"BZS"], [len(backward), len(zeroed), len(steps)])[order]
    return [int(times[order[one.start()]]) for one in _TURNS.finditer("".join(kinds))]


def _taking_turns(
    run: Run, rank: int, thread: str, mixed: list[int], where: str, at: str | None
) -> Finding:
    zero = f"zero_grad(){f' at {at}' if at else ''}"
    return finding_at(
        run,
        rank,
        pd.Series({"thread": thread, "time_ns": mixed[0], "step": 0}),
        kind="wrong_gradient",
        severity="error",
        confidence="likely",
        title=f"Updates of one model mix, {units.count(len(mixed))} times: after a backward pass "
        f"at {where}, {zero} throws its gradients away and another pass runs, then step() is "
        "called twice with the gradients of that one. So it is where tasks of asyncio, or "
        "callbacks, train one model and wait between backward() and step(). Hold an asyncio.Lock "
        "from zero_grad() to step(), or await nothing in between.",
        where=where,
        evidence={"cause": "mixed_updates", "times": len(mixed)},
    )


def _finding(run: Run, rank: int, wasted: int, where: str, at: str | None) -> Finding:
    every = units.count(wasted + 1)
    return finding_at(
        run,
        rank,
        0,
        kind="dead_parameter",
        confidence="likely",
        title=f"{units.count(wasted)} of {every} backward passes at {where} are thrown away: "
        f"zero_grad(){f' at {at}' if at else ''} runs between them, and step() only after the "
        f"last. Call zero_grad() after step() alone, so that the gradients of all {every} passes "
        "add up.",
        where=at or where,
        evidence={"cause": "wasted_passes", "passes": wasted + 1, "backward": where},
    )
