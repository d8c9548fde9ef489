"""Finds gradients that are not zeroed between an optimizer's steps.

A program that forgets `zero_grad()` steps by the sum of all gradients since its start; one that
calls it for every fourth step uses gradients up to four times. An optimizer is reported if this
happens in nearly all pairs of steps that are looked at, or in all but those of a period, for
_MIN_SHARE of the gradients that it used. Of one gradient's storage, from one step to the next:

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
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import having, phases_of_kind, to_frame
from lanescope.webapp.analysis.cluster import per_rank
from lanescope.webapp.analysis.findings import Finding, NotRecorded, finding_at
from lanescope.webapp.analysis.nothing_to_check import need_accesses
from lanescope.webapp.analysis.stack_frames import where_of
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import Int64Array

MIN_PAIRS = 5  # pairs of steps
LOOKED_AT = 8  # pairs at the beginning, at the end, and apart from each other in between
_MIN_SHARE = 0.5  # of the gradients of a step
_MIN_PAIR_SHARE = 0.4  # of the pairs: of two steps one uses gradients of the other
_NEARLY_ALL = 0.9  # of the pairs, where gradients are zeroed once per epoch

_APART = 0.6180339887498949
"""Multiples of it are spread evenly over [0, 1) without a period, so that
a program that zeroes every n-th step is also looked at where it does."""

_PLACE = ["thread", "start_ns", "depth"]
_EMPTYING = ("zero_", "fill_")
_FUSED = "aten::_fused_"
_NODE = "AccumulateGrad"
_NEVER = np.iinfo(np.int64).max


def kept_gradients(run: Run) -> list[Finding]:
    """Returns findings of kind `exploding_gradient`, one per rank and optimizer. Raises
    NotApplicable."""
    found = {rank: _of_rank(run, rank) for rank in run.ranks}
    if all(of is None for of in found.values()):
        raise NotRecorded("record an optimizer step: the run has no steps")
    need_accesses(run)
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
    ends = _ends(run, rank, thread, times)
    kept = _pairs_kept(run, rank, pairs, times, ends, calls["count"])
    if not kept:
        return []
    never = len(kept) == len(pairs)
    first, last = kept[0], len(times) - 1
    step = int(calls["step"].iloc[first + 1])
    where = _where(run, rank, thread, (times[first + 1], ends[first + 1] or 0))
    return [
        finding_at(
            run,
            rank,
            {"thread": thread, "step": step, "time_ns": times[first + 1]},
            kind="exploding_gradient",
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
            where=where,
            evidence={
                "cause": "kept",
                "optimizer": int(own["optimizer"].iloc[0]),
                "steps": last + 1,
                "pairs_looked_at": len(pairs),
                "pairs_kept": len(kept),
                "gradients_used": int(calls["count"].iloc[first]),
            },
        )
    ]


def _pairs_kept(
    run: Run,
    rank: int,
    pairs: Sequence[int],
    times: Sequence[int],
    ends: Sequence[int | None],
    counts: pd.Series,
) -> list[int]:
    """Returns the pairs of steps in which the second uses gradients of the first.

    Returns none where the others are of no period, or too many.
    """
    kept: list[int] = []
    zeroed: list[int] = []
    needed = max(MIN_PAIRS, math.ceil(_MIN_PAIR_SHARE * len(pairs)))
    for number, pair in enumerate(pairs):
        (low, middle), (end, second) = times[pair : pair + 2], ends[pair : pair + 2]
        count = _kept(run, rank, (low, end, middle, second))
        if count >= _MIN_SHARE * int(counts.iloc[pair]):
            kept.append(pair)
        elif pair - 1 in zeroed:  # of no period: one step after the other
            return []
        else:
            zeroed.append(pair)
        if len(kept) + len(pairs) - number - 1 < needed:
            return []
    nearly_all = len(kept) >= _NEARLY_ALL * len(pairs)
    return kept if not zeroed or nearly_all or _has_period(zeroed, kept) else []


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


def _kept(run: Run, rank: int, times: tuple[int, int | None, int, int | None]) -> int:
    """How many gradients a step used, backward added to, and the next step used again.

    `times`: when each of the two steps began and ended; None: it did not.
    """
    low, first, middle, second = times
    if first is None or second is None:
        return 0
    columns = [*_PLACE, "storage", "version", "write", "birth"]
    table = run.events("access", rank, columns=columns, window=(low, second))
    start, storage = table["start_ns"].to_numpy(), table["storage"].to_numpy()
    used = (start >= low) & np.isin(storage, storage[start < first])
    table = table.filter(pa.array(used))
    grown = _used_twice(table, first, middle)
    if not len(grown):
        return 0
    table = table.filter(pc.is_in(table["storage"], pa.array(grown)))
    writers = _writers(run, rank, (low, second), table)
    # A fused optimizer is said to write gradients, which it does where they are scaled.
    fused = np.array([writer.startswith(_FUSED) for writer in writers], bool)
    write = table["write"].to_numpy() & ~fused
    start, storage = table["start_ns"].to_numpy(), table["storage"].to_numpy()
    between = (start >= first) & (start < middle)
    changed = storage[write & ~between]
    added = np.flatnonzero(write & between & ~np.isin(storage, changed))
    of_storage: dict[int, list[str]] = {}
    for at in added[np.argsort(start[added], kind="stable")]:
        of_storage.setdefault(int(storage[at]), []).append(writers[at])
    return sum(map(_added_to, of_storage.values()))


def _used_twice(accesses: pa.Table, first: int, middle: int) -> Int64Array:
    """Storages of tensors that both steps used and that changed in between.

    `first`: the end of the first step; `middle`: the beginning of the second.
    """
    start, version = accesses["start_ns"].to_numpy(), accesses["version"].to_numpy()
    storages, at = np.unique(accesses["storage"].to_numpy(), return_inverse=True)
    lowest = np.full((2, len(storages)), _NEVER)
    for step, inside in enumerate((start < first, start >= middle)):
        np.minimum.at(lowest[step], at[inside], version[inside])
    grown = (lowest[0] < lowest[1]) & (lowest[1] < _NEVER)
    grown[at[accesses["birth"].to_numpy()]] = False
    found: Int64Array = storages[grown]
    return found


def _added_to(writers: Sequence[str]) -> bool:
    """Whether those who wrote a gradient between two steps added to it before all else."""
    added = [writer == _NODE for writer in writers]
    if not added[0] or any(added[added.index(False) :] if False in added else ()):
        return False
    return not any(writer.endswith(_EMPTYING) for writer in writers)


def _writers(run: Run, rank: int, window: tuple[int, int], rows: pa.Table) -> list[str]:
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
    known = ops.take(pa.array(asked))
    own = np.where(np.isin(asked, within), _NODE, _texts(known["name"]))
    names = dict(zip(_places(known), own.tolist(), strict=True))
    return [names.get(place, "") for place in _places(rows)]


def _places(rows: pa.Table) -> Iterator[tuple[Any, ...]]:
    numbers = (rows[column].to_numpy().tolist() for column in _PLACE[1:])
    return zip(_texts(rows[_PLACE[0]]), *numbers, strict=True)


def _texts(column: pa.ChunkedArray) -> npt.NDArray[np.object_]:
    coded = column.combine_chunks()
    texts = np.array(coded.dictionary.to_pylist(), object)
    found: npt.NDArray[np.object_] = texts[coded.indices.to_numpy()]
    return found


def _ends(run: Run, rank: int, thread: str, times: Sequence[int]) -> list[int | None]:
    """When each of the optimizer's steps that began at `times`, or soon after, ended."""
    rows = phases_of_kind(run, schema.PhaseKind.optimizer, rank, thread).dropna()
    start = rows["start_ns"].to_numpy()
    ends = start + rows["duration_ns"].to_numpy()
    places = np.searchsorted(start, times)
    until = [*times[1:], run.duration_ns + 1]
    return [
        int(ends[at]) if at < len(start) and start[at] < high else None
        for at, high in zip(places, until, strict=True)
    ]


def _where(run: Run, rank: int, thread: str, window: tuple[int, int]) -> str | None:
    """The line at which an optimizer steps; `window`: one of its steps."""
    columns = ["start_ns", "stack"]
    rows = to_frame(run.events("op", rank, thread, columns=columns, window=window))
    rows = rows[(rows["start_ns"] >= window[0]) & (rows["stack"] >= 0)]
    return None if rows.empty else where_of(run, rank, int(rows["stack"].iloc[0]))
