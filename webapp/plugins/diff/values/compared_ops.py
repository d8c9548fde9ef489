"""Operators of one thread in two runs: which belong together, and how they differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lanescope.webapp.analysis.sequence_alignment import thread_pairs
from lanescope.webapp.analysis.tensor_fingerprints import (
    Ops,
    Words,
    pair_ops,
    pair_tensors,
    read_ops,
    with_overwritten,
    with_turns,
)
from lanescope.webapp.plugins.diff.values.closeness import (
    IDENTITY,
    Mode,
    relative_differences,
    tensor_states,
)
from lanescope.webapp.plugins.diff.values.noise import Floor
from lanescope.webapp.plugins.diff.values.precision import least_tolerance
from lanescope.webapp.plugins.diff.values.world_sizes import inside_steps, optimizing, shares_differ
from lanescope.webapp.runs.intervals import enclosing
from lanescope.webapp.runs.run import Run, Thread
from lanescope.webapp.runs.types import BoolArray, Float64Array, Int64Array

UNKNOWN, IDENTICAL, WITHIN, DIFFERENT = -1, 0, 1, 2
"""What is known of an operator's values; the numbers of `closeness.tensor_states`."""

SLOWER_BY = 1.5
SLOWER_NS = 50_000
"""An operator is slower that takes this many times as long, and this much longer, ns: below that
single calls on a machine that does other things as well say nothing.
"""

States = NDArray[np.int8]


@dataclass(frozen=True)
class ComparedOps:
    """One thread of both runs. Positions are those in the op table of each."""

    mine: Thread  # in `base`
    thread: Thread  # in `run`
    old: Ops
    new: Ops
    left: Int64Array  # operators of `old`, with that of `new` at the same place of `right`
    right: Int64Array
    one: Int64Array  # tensors of `old`, with that of `new` at the same place of `two`
    two: Int64Array
    state: States  # of each pair of tensors: IDENTICAL, WITHIN or DIFFERENT
    apart: Float64Array  # how far each pair is, see `closeness.relative_differences`
    left_out: int = 0  # pairs of tensors that are not among these, see `world_sizes`

    def op_states(self) -> States:
        """Returns for each pair of operators the worst of its tensors, UNKNOWN where it has
        none."""
        pair = np.full(len(self.new), -1, np.int64)
        pair[self.right] = np.arange(len(self.right))
        worst = np.full(len(self.right), UNKNOWN, np.int8)
        np.maximum.at(worst, pair[self.new.owner[self.two]], self.state)
        return worst

    def slower(self) -> tuple[BoolArray, BoolArray]:
        """Returns for each pair of operators whether the run's is slower, and whether it is
        faster."""
        was, now = self.old.duration[self.left], self.new.duration[self.right]
        known = (was >= 0) & (now >= 0)
        more = known & (now - was >= SLOWER_NS) & (now >= SLOWER_BY * was)
        less = known & (was - now >= SLOWER_NS) & (was >= SLOWER_BY * now)
        return more, less


def compared_ops(
    base: Run,
    run: Run,
    mine: Thread,
    theirs: Thread,
    words: Words,
    mode: Mode,
    floor: Floor | None = None,
) -> ComparedOps:
    """Pairs the operators of a thread of `base` with those of one of `run`, and their tensors.

    Tensors no further apart than `floor` are within tolerance.
    """
    old = read_ops(base, mine.rank, mine.thread, words)
    new = read_ops(run, theirs.rank, theirs.thread, words)
    left, right = pair_ops(old, new)
    left, right = with_turns(old, new, left, right, optimizing(run, new, words))
    one, two = pair_tensors(old, new, left, right, words)
    old, new, one, two = with_overwritten(old, new, left, right, one, two)
    left_out = 0
    if shares_differ(base, run):
        kept = inside_steps(run, new, words)[new.owner[two]]
        one, two, left_out = one[kept], two[kept], int((~kept).sum())
    # Most are identical: of these nothing more is looked at.
    unequal = np.zeros(len(one), np.bool_)
    for name in IDENTITY:
        unequal |= old.tensors[name][one] != new.tensors[name][two]
    rows = np.flatnonzero(unequal)
    was = {name: column[one[rows]] for name, column in old.tensors.items()}
    now = {name: column[two[rows]] for name, column in new.tensors.items()}
    least = least_tolerance(base, run)
    state, apart = np.zeros(len(one), np.int8), np.zeros(len(one))
    state[rows] = tensor_states(was, now, words.known["dtype"], mode, least)
    apart[rows] = relative_differences(was, now)
    if floor is not None:
        noise = floor.at(words.known["dtype"], old.tensors["dtype"][one], old.step[old.owner[one]])
        state[(state == DIFFERENT) & (apart <= noise)] = WITHIN
    return ComparedOps(mine, theirs, old, new, left, right, one, two, state, apart, left_out)


def all_compared(base: Run, run: Run, mode: Mode, words: Words) -> Iterator[ComparedOps]:
    """Yields thread after thread that both runs have, so as to hold one of each at a time."""
    for mine, theirs in thread_pairs(base, run):
        if mine is not None and theirs is not None:
            yield compared_ops(base, run, mine, theirs, words, mode)


def with_inner(ops: Ops, own: States) -> States:
    """States in which an operator without tensors of its own has the worst of those inside it."""
    state = own.copy()
    end = ops.start + ops.duration.clip(min=0)
    for depth in np.unique(ops.depth[ops.depth > 0])[::-1].tolist():
        inner = np.flatnonzero((ops.depth == depth) & (state > UNKNOWN))
        outer = np.flatnonzero(ops.depth == depth - 1)
        around = enclosing(ops.start[outer], end[outer], ops.start[inner])
        held = around >= 0
        worst = np.full(len(outer), UNKNOWN, np.int8)
        np.maximum.at(worst, around[held], state[inner[held]])
        bare = own[outer] == UNKNOWN
        state[outer[bare]] = worst[bare]
    return state


def tensor_floor(base: Run, other: Run) -> Floor:
    """Returns the floor of tensors, of two runs at level numerics; none of runs that are not."""
    words = Words()
    dtypes, steps, aparts = [], [], []
    for pairs in all_compared(base, other, "bitwise", words):
        dtypes.append(pairs.old.tensors["dtype"][pairs.one])
        steps.append(pairs.old.step[pairs.old.owner[pairs.one]])
        aparts.append(pairs.apart)
    if not dtypes:
        return Floor({})
    names = np.array(words.known["dtype"] or [""], object)
    codes = np.concatenate(dtypes)
    return Floor.of(names[codes], np.concatenate(steps), np.concatenate(aparts))
