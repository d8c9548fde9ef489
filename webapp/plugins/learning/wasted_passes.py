"""Finds gradient accumulation that throws passes away: zero_grad() runs before each of them.

Between any two steps of a run's only optimizer the same number of backward passes run, all at one
line with the same callers, and zero_grad() follows each of them but the last. Passes for another
purpose, as the gradient of an input, are made at another line than that of the step. Passes whose
gradients the program copies before are those of tasks, each for itself.

Likewise, where step() runs before the last passes of each stretch from one zero_grad() to the next.

Where several steps follow one pass, and as many passes went before it, tasks take turns within an
update: one zeroes the gradients of another, which then steps with those of the first, or both step
with the sum of the gradients of both.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import ops_named, phases_of_kind, to_frame
from lanescope.webapp.analysis.cluster import per_rank
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.nothing_to_check import need_steps
from lanescope.webapp.analysis.stack_frames import first_place, phase_place
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import BoolArray, Int64Array

_MIN_PERIODS = 3
"""Stretches from one step to the next."""

_MIN_WASTED = 8
"""Passes in fewer stretches, as of a step() after the loop of an epoch."""

_LOOKED_AT = 50
"""Backward passes, the first ones, whose lines must be the same."""

_KEEPS = re.compile(
    r"::_?(abs|add|cat|clone|copy_|dot|foreach_(add|clone|copy_)|mul|pow|square|stack|sub)\b"
)
"""Operators that keep what they read, or sum it up."""

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
    backward = phases_of_kind(run, schema.PhaseKind.backward, rank, thread)
    steps, done = _outer_steps(phases_of_kind(run, schema.PhaseKind.optimizer, rank, thread))
    # A closure's passes are its step's, which may run it several times, as that of LBFGS does.
    backward = backward[~_within(backward["start_ns"].to_numpy(), steps, done)]
    zeroing = run.events("op", rank, thread, columns=["start_ns", "name", "stack"])
    zeroing = zeroing.filter(pc.starts_with(zeroing["name"].cast(pa.string()), _ZEROES))
    starts, zeroed = backward["start_ns"].to_numpy(), np.sort(zeroing["start_ns"].to_numpy())
    zeroed = zeroed[~_within(zeroed, steps, done)]
    mixed = _mixed(starts, zeroed, steps, _empty(run, rank, thread, steps))
    wasted = _wasted(starts, zeroed, steps)
    if len(steps) <= _MIN_PERIODS and wasted * (len(steps) - 1) < _MIN_WASTED:
        wasted = 0
    first = backward[starts > steps[:1].max(initial=0)].head(wasted)
    if wasted and all(_is_kept(run, rank, thread, one, zeroed) for one in first.itertuples()):
        wasted = 0
    late = 0 if wasted else _late(starts, zeroed, steps)
    if not (wasted or late or len(mixed) >= _MIN_PERIODS):
        return None
    ends = starts + backward["duration_ns"].fillna(0).astype("int64").to_numpy()
    looked_at = _LOOKED_AT if late else wasted + 2 * len(mixed) + 1
    windows = [*zip(starts.tolist(), ends.tolist(), strict=True)][:looked_at]
    places = {phase_place(run, rank, _BACKWARD, window) for window in windows}
    where = places.pop() if len(places) == 1 else None
    if where is None:
        return None
    stacks = zeroing["stack"].drop_null().to_pylist()
    at = first_place(run, rank, stacks)
    if late:
        return _after_step(run, rank, late, where, at)
    if not wasted:
        return _taking_turns(run, rank, thread, mixed, where, at)
    every = units.count(wasted + 1)
    return finding_at(
        run,
        rank,
        0,
        kind="dead_parameter",
        confidence="likely",
        title=f"{units.count(wasted)} of {every} backward passes at {where} are thrown away: "
        f"zero_grad(){at_place(at)} runs between them, and step() only after the "
        f"last. Call zero_grad() after step() alone, so that the gradients of all {every} passes "
        "add up.",
        where=at or where,
        evidence={"cause": "wasted_passes", "passes": wasted + 1, "backward": where},
    )


def _is_kept(run: Run, rank: int, thread: str, backward: Any, zeroed: Int64Array) -> bool:
    """Whether the program reads what a pass wrote before zero_grad() follows, other than to clip it
    or to look at its norm: it may keep a copy of the gradients, as those of a task."""
    end = int(backward.start_ns + backward.duration_ns)
    window = int(backward.start_ns), int(zeroed[np.searchsorted(zeroed, end)])
    rows = to_frame(run.events("access", rank, thread, ["start_ns", "storage", "write"], window))
    after = rows["start_ns"] >= end
    written = rows.loc[rows["write"] & ~after, "storage"]
    reads = rows[after & ~rows["write"] & rows["storage"].isin(written)]
    ops = ops_named(run, rank, thread, ["start_ns", "name"], _KEEPS.search)
    return bool(reads["start_ns"].isin(ops["start_ns"]).any())


def _outer_steps(steps: pd.DataFrame) -> tuple[Int64Array, Int64Array]:
    """When steps begin and end, in order: ns. One within another's, as of a wrapper, is a part of
    it."""
    starts = steps["start_ns"].to_numpy()
    ends = np.maximum.accumulate(starts + steps["duration_ns"].fillna(0).to_numpy().astype("int64"))
    outer = np.flatnonzero(np.r_[True, starts[1:] >= ends[:-1]][: len(starts)])
    return starts[outer], np.maximum.reduceat(ends, outer) if len(outer) else ends


def _within(times: Int64Array, starts: Int64Array, ends: Int64Array) -> BoolArray:
    """Which instants are within one of some intervals that do not overlap."""
    last = np.searchsorted(starts, times, side="right") - 1
    found: BoolArray = (last >= 0) & (times < np.r_[ends, 0][last])
    return found


def _empty(run: Run, rank: int, thread: str, steps: Int64Array) -> BoolArray:
    """Which steps found no gradient, or only zeros."""
    rows = run.events("gradient", rank, thread, columns=["time_ns", "norm"])
    live = to_frame(rows.filter(pc.not_equal(rows["norm"], 0)))["time_ns"].to_numpy()
    used = np.zeros(len(steps) + 1, dtype=bool)  # norms are recorded right before the step
    used[np.searchsorted(steps, live)] = True
    empty: BoolArray = ~used[:-1]
    return empty


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


def _late(backward: Int64Array, zeroed: Int64Array, steps: Int64Array) -> int:
    """How many passes of each stretch between zero_grad() run after its only step; 0: none, or not
    always."""
    counts = set()
    for since, until in pairwise(zeroed.tolist()):
        own = backward[(backward > since) & (backward < until)]
        stepped = steps[(steps > since) & (steps < until)]
        if len(stepped) != 1 or not (own < stepped[0]).any():
            return 0
        counts.add(int((own > stepped[0]).sum()))
    return counts.pop() if len(counts) == 1 and len(zeroed) > _MIN_PERIODS else 0


_TURNS = re.compile("(B(?:Z*B)+)(S(?:S|Z+E)+)")
"""Several passes of backward, then steps that share their gradients: the first takes them all, and
each other uses the same ones again, or finds none (E) as zero_grad() has run."""


def _mixed(
    backward: Int64Array, zeroed: Int64Array, steps: Int64Array, empty: BoolArray
) -> list[tuple[int, bool]]:
    """When each stretch begins in which as many steps as passes share gradients (ns), and whether
    those of some passes were thrown away before; else the first step uses the sum of all."""
    times = np.concatenate([backward, zeroed, steps])
    order = np.argsort(times, kind="stable")
    kinds = [*"B" * len(backward), *"Z" * len(zeroed), *np.where(empty, "E", "S")]
    stretches = _TURNS.finditer("".join(kinds[place] for place in order))
    return [
        (int(times[order[one.start()]]), "Z" in one[1])
        for one in stretches
        if one[1].count("B") == len(one[2].replace("Z", ""))
    ]


def _taking_turns(
    run: Run, rank: int, thread: str, mixed: list[tuple[int, bool]], where: str, at: str | None
) -> Finding:
    if any(thrown_away for _, thrown_away in mixed):
        how = (
            f"zero_grad(){at_place(at)} throws its gradients away and another pass "
            "runs, then step() is called twice with the gradients of that one"
        )
    else:
        how = (
            "another pass adds its gradients: the first step() that follows uses the sum of both, "
            "and the second the same again or none"
        )
    return finding_at(
        run,
        rank,
        pd.Series({"thread": thread, "time_ns": mixed[0][0], "step": 0}),
        kind="wrong_gradient",
        severity="error",
        confidence="likely",
        title=f"Updates of one model mix, {units.count(len(mixed))} times: after a backward pass "
        f"at {where}, {how}. So it is where tasks of asyncio, or callbacks, train one model and "
        "wait between backward() and step(). Hold an asyncio.Lock "
        "from zero_grad() to step(), or await nothing in between.",
        where=where,
        evidence={"cause": "mixed_updates", "times": len(mixed)},
    )


def _after_step(run: Run, rank: int, late: int, where: str, at: str | None) -> Finding:
    step = phase_place(run, rank, _OPTIMIZER, None)
    passes = "last backward pass" if late == 1 else f"last {units.count(late)} backward passes"
    return finding_at(
        run,
        rank,
        0,
        kind="dead_parameter",
        confidence="likely",
        title=f"The {passes} at {where} of each stretch from one zero_grad() to the next "
        f"{'is' if late == 1 else 'are'} thrown away: step(){at_place(step)} runs "
        f"before, and zero_grad(){at_place(at)} after. Call step() once all passes "
        "are done.",
        where=step or where,
        evidence={"cause": "passes_after_step", "passes": late, "backward": where},
    )
