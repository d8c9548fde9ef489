"""Finds inputs and targets that are shuffled apart from each other.

The rows of the inputs were chosen by one random permutation, those of the targets by another one of
the same length, and neither chose rows of anything else. Where rows are mixed (mixup), a third
choice is common to both. Seen in the bytes that operators read.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from lanescope.webapp.analysis.arrow_columns import ops_named, stack_of
from lanescope.webapp.analysis.cluster import found_per_rank
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.nothing_to_check import need_accesses, need_backward, of_operators
from lanescope.webapp.analysis.stack_frames import own_place
from lanescope.webapp.plugins.losses.tensor_reads import (
    OPERATOR_KEY,
    READ_COLUMNS,
    Tensor,
    TensorReads,
    backward_ends,
)
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_DRAW, _PICK = "aten::randperm", re.compile(r"aten::index(_select)?")
_LOSS = re.compile(
    r"aten::(nll_loss_forward|nll_loss2d_forward|mse_loss|smooth_l1_loss|huber_loss"
    r"|binary_cross_entropy(_with_logits)?)"
)
_READ = re.compile(rf"{_DRAW}|{_PICK.pattern}|{_LOSS.pattern}")

_COUNTED = 12
"""Losses that are looked at, at most; at least `_MIN_LOSSES`."""
_MIN_LOSSES = 4


@dataclass(frozen=True)
class _Pick:
    """Rows of a tensor that a permutation chose."""

    order: Tensor  # the permutation
    length: int  # its, in bytes
    source: int
    stack: int | None


@dataclass(frozen=True)
class _Loss:
    step: int
    time_ns: int
    stack: int | None
    inputs: _Pick
    targets: _Pick


class _Read(NamedTuple):
    """The choices of rows that a loss reads, and those that were read since the last backward."""

    loss: Any  # a row of the operators
    targets: list[_Pick]
    inputs: list[_Pick]


@of_operators(_DRAW, "does not call torch.randperm()")
@found_per_rank(need_accesses, need_backward)
def shuffled_apart(run: Run, rank: int) -> Finding | None:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    for thread in run.threads_of(rank):
        losses, sources = _losses(run, rank, thread.thread)
        single = all(
            len(sources[pick.order]) == 1 for one in losses for pick in (one.inputs, one.targets)
        )
        if len(losses) >= _MIN_LOSSES and single:
            return _finding(run, rank, thread.thread, losses)
    return None


def _losses(run: Run, rank: int, thread: str) -> tuple[list[_Loss], dict[Tensor, set[int]]]:
    """The losses whose targets another permutation chose than their inputs, none if others are
    without; and of each permutation what it chose rows of."""
    columns = [*OPERATOR_KEY, "duration_ns", "name", "step", "stack", "sequence"]
    ops = ops_named(run, rank, thread, columns, _READ.fullmatch)
    trained = ops[ops["name"].str.fullmatch(_LOSS.pattern) & ops["sequence"].notna()]
    trained = trained.head(_COUNTED)
    if len(trained) < _MIN_LOSSES:
        return [], {}
    window = int(ops["start_ns"].min()), int(trained["start_ns"].max()) + 1
    memory = TensorReads(run.events("access", rank, thread, READ_COLUMNS, window))
    picks = dict(_picks(ops[ops["start_ns"] < window[1]], memory))
    sources = defaultdict[Tensor, set[int]](set)
    for pick in picks.values():
        sources[pick.order].add(pick.source)
    ends = [window[0], *backward_ends(run, rank, thread)]
    found = defaultdict[int, list[_Read]](list)
    for loss in trained.itertuples():
        time = int(loss.start_ns)
        targets = _among(memory.read(time, time + 1), picks)
        since = ends[bisect_right(ends, time) - 1]
        inputs = _among(memory.read(since, time), picks)
        found[since].append(_Read(loss, targets, inputs))
    apart = [_of_mixture(own) for own in found.values()]
    if len(apart) < _MIN_LOSSES or None in apart:
        apart = [_of_loss(one) for own in found.values() for one in own]
    losses = [one for one in apart if one is not None]
    return (losses if len(losses) == len(apart) else []), sources


def _of_loss(read: _Read) -> _Loss | None:
    """A loss that reads one choice of rows, after another one alone was read."""
    inputs = [one for one in read.inputs if one not in read.targets]
    return _pair(read, inputs, read.targets)


def _of_mixture(losses: list[_Read]) -> _Loss | None:
    """Losses of one backward that mix rows: beside a choice that is common to inputs and targets,
    or beside all rows in their order, each has one of its own."""
    targets = [one for read in losses for one in read.targets]
    inputs = [one for one in losses[-1].inputs if one not in targets]
    of_targets, of_inputs = ({one.order for one in own} for own in (targets, inputs))
    in_order = any(not read.targets for read in losses)
    if not of_targets & of_inputs and not in_order:
        return None
    own_inputs = [one for one in inputs if one.order not in of_targets]
    own_targets = [one for one in targets if one.order not in of_inputs]
    return _pair(losses[-1], own_inputs, own_targets)


def _pair(read: _Read, inputs: list[_Pick], targets: list[_Pick]) -> _Loss | None:
    if len(targets) != 1 or len(inputs) != 1:
        return None
    (one,), (other,) = inputs, targets
    if one.order == other.order or one.length != other.length:
        return None
    return _Loss(int(read.loss.step), int(read.loss.start_ns), stack_of(read.loss), one, other)


def _among(read: Iterable[Tensor], picks: dict[Tensor, _Pick]) -> list[_Pick]:
    """The picks that were read, each source once."""
    found = (picks[one] for one in read if one in picks)
    return list({(one.order, one.source): one for one in found}.values())


def _picks(ops: pd.DataFrame, memory: TensorReads) -> Iterator[tuple[Tensor, _Pick]]:
    """Yields each tensor of chosen rows, and how it was chosen."""
    orders = dict[Tensor, int]()
    for op in ops.itertuples():
        time = int(op.start_ns)
        accesses = memory.at(time, op.depth)
        if not len(accesses) or _LOSS.fullmatch(op.name):
            continue
        end = time + int(op.duration_ns)
        written = memory.storage[accesses[memory.write[accesses]]]
        made = [memory.tensor(int(one), end) for one in written]
        if op.name == _DRAW:
            orders |= dict.fromkeys(made, int(memory.bytes[accesses].max()))
            continue
        read = memory.read_by(accesses)
        order = [one for one in read if one in orders]
        others = [one for one in read if one not in orders]
        if len(order) == 1 and len(others) == 1:
            pick = _Pick(order[0], orders[order[0]], others[0][0], stack_of(op))
            yield from ((one, pick) for one in made)


def _finding(run: Run, rank: int, thread: str, losses: list[_Loss]) -> Finding:
    first = losses[0]
    loss, inputs, targets = (
        own_place(run, rank, stack)
        for stack in (first.stack, first.inputs.stack, first.targets.stack)
    )
    return finding_at(
        run,
        rank,
        {"thread": thread, "step": first.step, "time_ns": first.time_ns},
        kind="wrong_loss",
        confidence="likely",
        title="Targets do not belong to their inputs: the rows of the targets of the loss at "
        f"{loss} are chosen at {targets} by another random permutation than those of the inputs "
        f"at {inputs}, in all {units.count(len(losses))} losses that were looked at. Use one "
        "permutation for both.",
        where=targets,
        evidence={"cause": "permutations", "inputs": inputs, "losses": len(losses)},
    )
