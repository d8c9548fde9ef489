"""Finds gradients that are not zeroed between an optimizer's steps.

A program that forgets `zero_grad()` steps by the sum of all gradients since its start; one that
calls it for every fourth step uses gradients up to four times. An optimizer is reported if this
happens in all pairs of steps that are looked at, or in all but those of a period, for _MIN_SHARE of
the gradients that it used. Of one gradient's storage, from one step to the next:

- the optimizer read it in both steps, wrote it in neither, and its version grew: it is one tensor;
- what wrote it first in between was the addition of an AccumulateGrad node, and after another
  writer (a zero_, a mul_ by nothing) no such node added to it; one that only followed
  (clipping) does not count; and nothing allocated the storage again.

So accumulation over micro-batches, a discriminator that gets gradients from its generator's loss
before they are zeroed, and gradients that are let go of, zeroed or replaced in any way are silent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import having, to_frame
from lanescope.webapp.analysis.cluster import per_rank
from lanescope.webapp.analysis.findings import Finding, NotApplicable
from lanescope.webapp.analysis.links import step_link
from lanescope.webapp.analysis.stack_frames import where_of
from lanescope.webapp.runs.run import Run

MIN_PAIRS = 5  # pairs of steps
LOOKED_AT = 8  # pairs at the beginning, at the end, and apart from each other in between
_MIN_SHARE = 0.5  # of the gradients of a step
_MIN_PAIR_SHARE = 0.4  # of the pairs: of two steps one uses gradients of the other

_APART = 0.6180339887498949
"""Multiples of it are spread evenly over [0, 1) without a period, so that
a program that zeroes every n-th step is also looked at where it does."""

_PLACE = ["thread", "start_ns", "depth"]
_EMPTYING = ("zero_", "fill_")
_FUSED = "aten::_fused_"
_NODE = "AccumulateGrad"


def kept_gradients(run: Run) -> list[Finding]:
    """Returns findings of kind `exploding_gradient`, one per rank and optimizer. Raises
    NotApplicable."""
    found = {rank: _of_rank(run, rank) for rank in run.ranks}
    if all(of is None for of in found.values()):
        raise NotApplicable("record an optimizer step: the run has no steps")
    if not any(run.counts_of(rank)["access"] for rank in run.ranks):
        raise NotApplicable("record with --level access and the native engine")
    return [one for of in found.values() for one in of or ()]


@per_rank
def _of_rank(run: Run, rank: int) -> list[Finding] | None:
    """Findings of one rank; None: no optimizer made a step."""
    columns = ["thread", "step", "time_ns", "optimizer", "norm"]
    rows = to_frame(run.events("gradient", rank, columns=columns))
    if rows.empty:
        return None
    # Where threads share parameters, one adds to what another has used and will zero.
    if not run.counts_of(rank)["access"] or rows["thread"].nunique() != 1:
        return []
    of_optimizers = rows.dropna(subset=["norm"]).groupby("optimizer", sort=True)
    return [one for _, own in of_optimizers for one in _of_optimizer(run, rank, own)]


def _of_optimizer(run: Run, rank: int, own: pd.DataFrame) -> list[Finding]:
    """`own`: the gradients that an optimizer of a rank used, one row each."""
    calls = own.groupby("time_ns").agg(step=("step", "first"), count=("norm", "size"))
    times = [int(at) for at in calls.index]
    pairs = _chosen(len(times) - 1)
    thread = str(own["thread"].iloc[0])
    if len(pairs) < MIN_PAIRS:
        return []
    zeroed: list[int] = []
    kept, needed = [], max(MIN_PAIRS, math.ceil(_MIN_PAIR_SHARE * len(pairs)))
    for number, pair in enumerate(pairs):
        until = times[pair + 2] if pair + 2 < len(times) else run.duration_ns + 1
        count = _kept(run, rank, thread, (times[pair], times[pair + 1], until))
        if count >= _MIN_SHARE * int(calls["count"].iloc[pair]):
            kept.append(pair)
        elif pair - 1 in zeroed:  # of no period: one step after the other
            return []
        else:
            zeroed.append(pair)
        if len(kept) + len(pairs) - number - 1 < needed:
            return []
    never = len(kept) == len(pairs)
    if not never and not _has_period(zeroed, kept):
        return []
    first, last = kept[0], len(times) - 1
    step = int(calls["step"].iloc[first + 1])
    where = _where(run, rank, thread, (times[first + 1], times[first + 2]))
    return [
        Finding(
            kind="exploding_gradient",
            severity="warning",
            confidence="likely",
            title=(
                "Gradients are never zeroed: in each step backward adds"
                if never
                else "Gradients are zeroed for some steps only: in "
                f"{len(kept)} of {len(pairs)} steps that were looked at backward adds"
            )
            + " to those that the step before has used"
            + (f", at {where}" if where else "")
            + ". Call optimizer.zero_grad() once per step, and step() once per zero_grad().",
            rank=rank,
            ranks=(rank,),
            thread=thread,
            step=step,
            time_ns=times[first + 1],
            where=where,
            evidence={
                "cause": "kept",
                "optimizer": int(own["optimizer"].iloc[0]),
                "steps": last + 1,
                "pairs_looked_at": len(pairs),
                "pairs_kept": len(kept),
                "gradients_used": int(calls["count"].iloc[first]),
            },
            link=step_link(run, rank, step),
        )
    ]


def _chosen(count: int) -> Sequence[int]:
    """Which of `count` pairs of steps are looked at: all of a few."""
    if count <= 3 * LOOKED_AT:
        return range(max(count, 0))
    between = {int(count * (number * _APART % 1)) for number in range(1, LOOKED_AT + 1)}
    return sorted({*range(LOOKED_AT), *between, *range(count - LOOKED_AT, count)})


def _has_period(zeroed: Sequence[int], kept: Sequence[int]) -> bool:
    """Whether gradients were zeroed after each so many steps, as by an outer loop."""
    if len(zeroed) < 2:
        return False
    period = zeroed[1] - zeroed[0]
    last = zeroed[0] % period
    return (
        zeroed[0] < period
        and all(pair % period == last for pair in zeroed)
        and all(pair % period != last for pair in kept)
    )


def _kept(run: Run, rank: int, thread: str, times: tuple[int, int, int]) -> int:
    """How many gradients a step used, backward added to, and the next step used again.

    `times`: when each of the two steps began, and until when the second one may last.
    """
    columns = [*_PLACE, "storage", "version", "write", "birth"]
    low, middle, high = times
    first = _end(run, rank, thread, low, middle)
    second = _end(run, rank, thread, middle, high)
    if first is None or second is None:
        return 0
    table = run.events("access", rank, columns=columns, window=(low, second))
    used = pc.unique(table.filter(pc.less(table["start_ns"], first))["storage"])
    rows = to_frame(table.filter(pc.is_in(table["storage"], used)))
    rows = rows[rows["start_ns"] >= low]
    rows["writer"] = _writers(run, rank, (low, second), rows)
    # A fused optimizer is said to write gradients, which it does where they are scaled.
    rows["write"] &= ~rows["writer"].str.startswith(_FUSED)
    before, after = rows["start_ns"] < first, rows["start_ns"] >= middle
    changed = set(rows.loc[rows["birth"] | (rows["write"] & (before | after)), "storage"])
    other = ~rows["storage"].isin(changed)
    versions = [rows[at & other].groupby("storage")["version"].min() for at in (before, after)]
    grown = versions[1] - versions[0]  # NaN: not used again
    same = grown.index[grown > 0]
    between = rows[~before & ~after & rows["write"] & rows["storage"].isin(same)]
    between = between.sort_values("start_ns", kind="stable")
    return sum(_added_to(list(own["writer"])) for _, own in between.groupby("storage"))


def _added_to(writers: Sequence[str]) -> bool:
    """Whether those who wrote a gradient between two steps added to it before all else."""
    added = [writer == _NODE for writer in writers]
    if not added[0] or any(added[added.index(False) :] if False in added else ()):
        return False
    return not any(writer.endswith(_EMPTYING) for writer in writers)


def _writers(run: Run, rank: int, window: tuple[int, int], rows: pd.DataFrame) -> pd.Series:
    """The name of the operator of each access; of an addition within it, AccumulateGrad."""
    # By thread and start, parents before children.
    ops = run.events("op", rank, columns=[*_PLACE, "duration_ns", "name"], window=window)
    nodes = np.flatnonzero(having(ops["name"], _NODE.__eq__))
    adds = np.flatnonzero(having(ops["name"], "aten::add_".__eq__))
    before = np.searchsorted(nodes, adds) - 1
    adds, node = adds[before >= 0], nodes[before[before >= 0]]
    start = ops["start_ns"].to_numpy()
    ends = pc.add(ops["start_ns"], ops["duration_ns"]).fill_null(window[1]).to_numpy()
    thread = ops["thread"].combine_chunks().indices.to_numpy()
    within = adds[(thread[node] == thread[adds]) & (start[adds] < ends[node])]
    asked = np.flatnonzero(np.isin(start, rows["start_ns"].to_numpy()))
    known = to_frame(ops.select([*_PLACE, "name"]).take(pa.array(asked)))
    known["name"] = known["name"].mask(np.isin(asked, within), _NODE)
    names = dict(zip(_places(known), known["name"].to_numpy(), strict=True))
    return pd.Series([names.get(place, "") for place in _places(rows)], rows.index, "str")


def _places(rows: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    # Not of the columns themselves: to go through texts of Arrow one by one takes long.
    return zip(*(rows[column].to_numpy() for column in _PLACE), strict=True)


def _end(run: Run, rank: int, thread: str, low: int, high: int) -> int | None:
    """When the optimizer's step that began in [low, high) ended."""
    columns = ["start_ns", "duration_ns", "kind"]
    rows = to_frame(run.events("phase", rank, thread, columns=columns, window=(low, high)))
    own = (rows["kind"] == schema.PhaseKind.optimizer.name) & (rows["start_ns"] >= low)
    rows = rows[own & rows["duration_ns"].notna()]
    return None if rows.empty else int((rows["start_ns"] + rows["duration_ns"]).iloc[0])


def _where(run: Run, rank: int, thread: str, window: tuple[int, int]) -> str | None:
    """The line at which an optimizer steps."""
    end = _end(run, rank, thread, *window)
    columns = ["start_ns", "stack"]
    rows = to_frame(run.events("op", rank, thread, columns=columns, window=(window[0], end or 0)))
    rows = rows[(rows["start_ns"] >= window[0]) & (rows["stack"] >= 0)]
    return None if rows.empty else where_of(run, rank, int(rows["stack"].iloc[0]))
