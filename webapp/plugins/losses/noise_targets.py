"""Finds models that are to predict noise which is not the one in their input, or their input.

`x_t = a * x + b * torch.randn_like(x)` and `mse_loss(model(x_t, t), torch.randn_like(x))` draw
twice: nothing can be learned. Found where a loss reads numbers that were drawn at random and that
nothing else reads, and others of that size were drawn and added to data before. And where it reads
what the model reads, data with noise whose factor each sample has for itself: the model would learn
to copy. An autoencoder adds noise of one size, or is compared with the data.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd

from lanescope.webapp.analysis.arrow_columns import ops_named, stack_of
from lanescope.webapp.analysis.cluster import found_per_rank
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import at_place
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

_DRAW = re.compile(r"aten::(normal_|normal)")
_MIX = re.compile(r"aten::(add|add_|addcmul|addcmul_|lerp|lerp_|mul|mul_|sub|sub_)")
_SUMS = re.compile(r"aten::(add|add_|addcmul|addcmul_|lerp|lerp_|sub|sub_)")
_LOSS = re.compile(r"aten::(mse_loss|smooth_l1_loss|huber_loss)")
_PRODUCTS = ("aten::mul", "aten::mul_")
_DIFFERENCE = "aten::sub"
_READ = re.compile(rf"{_DRAW.pattern}|{_MIX.pattern}|{_LOSS.pattern}")

_COUNTED = 12
"""Losses that are looked at, at most; at least `_MIN_LOSSES`."""
_MIN_LOSSES = 4
_MIN_FACTORS = 32
"""Bytes of a tensor with a factor per sample."""


class _Draw(NamedTuple):
    """Numbers that were drawn."""

    tensor: Tensor
    bytes: int
    stack: int | None


@dataclass(frozen=True)
class _Loss:
    step: int
    time_ns: int
    stack: int | None
    drawn: int | None  # stack of the draw that it reads
    added: int | None  # of the one in the input
    copied: bool = False  # it reads the input


@of_operators(_DRAW, "draws no noise from a normal distribution")
@found_per_rank(need_accesses, need_backward)
def other_noise(run: Run, rank: int) -> Finding | None:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    for thread in run.threads_of(rank):
        losses = _losses(run, rank, thread.thread)
        if len(losses) >= _MIN_LOSSES and len({one.copied for one in losses}) == 1:
            return _finding(run, rank, thread.thread, losses)
    return None


def _losses(run: Run, rank: int, thread: str) -> list[_Loss]:
    """The losses that read noise of their own; none if others do not."""
    columns = [*OPERATOR_KEY, "duration_ns", "name", "step", "stack", "sequence", "phase"]
    ops = ops_named(run, rank, thread, columns, _READ.fullmatch)
    names = ops["name"]
    differs = (names == _DIFFERENCE) & ~ops["phase"].astype("str").isin(("forward", "backward"))
    trained = ops[(names.str.fullmatch(_LOSS.pattern) | differs) & ops["sequence"].notna()]
    if len(trained) < _MIN_LOSSES or not names.str.fullmatch(_DRAW.pattern).any():
        return []
    ends = [-1, *backward_ends(run, rank, thread)]
    last = trained["start_ns"].map(lambda time: bisect_right(ends, time))
    trained = trained[last.isin(last.drop_duplicates().iloc[:_COUNTED])]
    window = int(ops["start_ns"].min()), int(trained["start_ns"].max()) + 1
    reads = TensorReads(run.events("access", rank, thread, READ_COLUMNS, window))
    found = []
    for number, own in trained.groupby(last.loc[trained.index], sort=True):
        since = ends[int(str(number)) - 1]
        before = ops[(ops["start_ns"] > since) & (ops["start_ns"] < own["start_ns"].max())]
        losses = [one for _, loss in own.iterrows() if (one := _noise(reads, before, loss))]
        if not losses:
            return []
        found.append(losses[0])
    return found


def _noise(reads: TensorReads, ops: pd.DataFrame, loss: pd.Series) -> _Loss | None:
    """A loss of noise that nothing else reads, while other noise was added to data; or of data with
    noise that the model reads."""
    time, draws = int(loss["start_ns"]), dict[int, _Draw]()
    made, added, by_sample = dict[Tensor, frozenset[int]](), set[int](), set[int]()
    sums = set[Tensor]()  # of noise and other numbers
    for _, op in ops[ops["start_ns"] < time].iterrows():
        began = int(op["start_ns"])
        accesses = reads.at(began, int(op["depth"]))
        if not len(accesses) or (pd.notna(op["sequence"]) and not _DRAW.fullmatch(op["name"])):
            continue
        size = int(reads.bytes[accesses].max())
        end = began + (0 if pd.isna(op["duration_ns"]) else int(op["duration_ns"]))
        places = reads.storage[accesses[reads.write[accesses]]]
        written = {reads.tensor(int(one), end) for one in places}
        if _DRAW.fullmatch(op["name"]):
            draws[began] = _Draw(min(written, default=(0, 0)), size, stack_of(op))
            made |= dict.fromkeys(written, frozenset((began,)))
            continue
        parts = [made.get(one, frozenset()) for one in reads.full(accesses, size)]
        if op["name"].endswith("_"):  # what it writes to is a part as well
            parts += [made.get(one, frozenset()) for one in written]
        union = frozenset().union(*parts)
        made |= dict.fromkeys(written, union)
        if _SUMS.fullmatch(op["name"]) and len(parts) > 1:
            added |= union - frozenset.intersection(*parts)
            sums |= written
        if op["name"] in _PRODUCTS and reads.bytes[accesses].min() in range(_MIN_FACTORS, size):
            by_sample |= union
    noisy = added & by_sample
    targets = {one for one in reads.read(time, time + 1) if one in sums and made[one] & noisy}
    copied = targets.intersection(reads.read(min(noisy, default=time), time))
    if copied:
        own = max(made[min(copied)] & noisy)
        return _Loss(int(loss["step"]), time, stack_of(loss), None, draws[own].stack, copied=True)
    compared = {
        draw
        for one in reads.read(time, time + 1)
        for draw in made.get(one, ())
        if draws[draw].tensor == one
    }
    if len(compared) != 1:
        return None
    own = compared.pop()
    target = draws[own]
    same = [one for one in sorted(added - {own}) if draws[one].bytes == target.bytes]
    if not same or target.tensor in reads.read(own + 1, time):
        return None
    return _Loss(int(loss["step"]), time, stack_of(loss), target.stack, draws[same[-1]].stack)


def _finding(run: Run, rank: int, thread: str, losses: list[_Loss]) -> Finding:
    first = losses[0]
    where, drawn, added = (
        own_place(run, rank, stack) for stack in (first.stack, first.drawn, first.added)
    )
    at, of, other = (at_place(one) for one in (where, drawn, added))
    count = units.count(len(losses))
    title = (
        f"The loss{at} compares the output with noise{of} that is not in the input: other noise"
        f"{other} was added there, in all {count} losses that were looked at. Nothing can predict "
        "it. Draw the noise once, add it to the data and pass it to the loss."
    )
    if first.copied:
        title = (
            f"The loss{at} compares the output with the noisy input itself: the model reads the "
            f"data to which noise{other} was added, and these numbers are its target in all "
            f"{count} losses that were looked at. It learns to copy its input, not to take noise "
            "out. Compare with the noise, or with the data without it."
        )
    cause = "noisy_target" if first.copied else "other_noise"
    return finding_at(
        run,
        rank,
        {"thread": thread, "step": first.step, "time_ns": first.time_ns},
        kind="wrong_loss",
        confidence="likely",
        title=title,
        where=where,
        evidence={"cause": cause, "drawn_at": drawn, "added_at": added},
    )
