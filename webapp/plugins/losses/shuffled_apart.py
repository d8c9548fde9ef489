"""Finds inputs and targets that are shuffled apart from each other.

The rows of the inputs were chosen by one random permutation, those of the targets by another one of
the same length, and neither chose rows of anything else. Seen in the bytes that operators read.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import ops_named, texts_of, to_frame
from lanescope.webapp.analysis.cluster import per_rank
from lanescope.webapp.analysis.findings import Finding, NotApplicable
from lanescope.webapp.analysis.links import step_link
from lanescope.webapp.analysis.stack_frames import own_place
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

_AT = ["start_ns", "depth"]
_Tensor = tuple[int, int]
"""A storage, and when it was born."""


@dataclass(frozen=True)
class _Pick:
    """Rows of a tensor that a permutation chose."""

    order: _Tensor  # the permutation
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


def shuffled_apart(run: Run) -> list[Finding]:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    if not run.counts["access"]:
        raise NotApplicable("record with --level access and the native engine")
    return [one for rank in run.ranks if (one := _apart(run, rank)) is not None]


@per_rank
def _apart(run: Run, rank: int) -> Finding | None:
    if _DRAW not in texts_of(run, "op", "name", rank):
        return None
    for thread in run.threads_of(rank):
        losses, sources = _losses(run, rank, thread.thread)
        single = all(
            len(sources[pick.order]) == 1 for one in losses for pick in (one.inputs, one.targets)
        )
        if len(losses) >= _MIN_LOSSES and single:
            return _finding(run, rank, thread.thread, losses)
    return None


def _losses(run: Run, rank: int, thread: str) -> tuple[list[_Loss], dict[_Tensor, set[int]]]:
    """The losses whose targets another permutation chose than their inputs, none if others are
    without; and of each permutation what it chose rows of."""
    columns = [*_AT, "duration_ns", "name", "step", "stack", "sequence"]
    ops = ops_named(run, rank, thread, columns, _READ.fullmatch)
    trained = ops[ops["name"].str.fullmatch(_LOSS.pattern) & ops["sequence"].notna()]
    trained = trained.head(_COUNTED)
    if len(trained) < _MIN_LOSSES:
        return [], {}
    window = int(ops["start_ns"].min()), int(trained["start_ns"].max()) + 1
    rows = to_frame(
        run.events("access", rank, thread, [*_AT, "storage", "bytes", "write", "birth"], window)
    )
    memory = _Memory(rows)
    picks = dict(_picks(ops[ops["start_ns"] < window[1]], memory))
    sources = defaultdict[_Tensor, set[int]](set)
    for pick in picks.values():
        sources[pick.order].add(pick.source)
    reads = rows[~rows["write"] & ~rows["birth"]]
    found, ends = list[_Loss](), [window[0], *_backward_ends(run, rank, thread)]
    for _, loss in trained.iterrows():
        time = int(loss["start_ns"])
        own = reads["start_ns"] == time
        targets = memory.among(reads[own], picks)
        since = ends[bisect_right(ends, time) - 1]
        between = (reads["start_ns"] >= since) & (reads["start_ns"] < time)
        inputs = [one for one in memory.among(reads[between], picks) if one not in targets]
        if len(targets) != 1 or len(inputs) != 1:
            return [], {}
        (one,), (other,) = inputs, targets
        if one.order == other.order or one.length != other.length:
            return [], {}
        found.append(_Loss(int(loss["step"]), time, _stack(loss), one, other))
    return found, sources


def _backward_ends(run: Run, rank: int, thread: str) -> list[int]:
    columns = ["start_ns", "duration_ns", "kind"]
    phases = to_frame(run.events("phase", rank, thread, columns))
    own = phases[phases["kind"].astype("str") == schema.PhaseKind.backward.name].dropna()
    return sorted(map(int, own["start_ns"] + own["duration_ns"]))


class _Memory:
    """What was where: storages are used again for other tensors."""

    def __init__(self, rows: pd.DataFrame) -> None:
        born = rows[rows["birth"]].sort_values("start_ns")
        self._born = defaultdict[int, list[int]](list)
        for storage, time in zip(born["storage"].tolist(), born["start_ns"].tolist(), strict=True):
            self._born[storage].append(time)
        self._rows = rows
        self._at = rows.groupby(_AT).indices  # few are looked at: a frame of each takes seconds

    def at(self, op: pd.Series) -> pd.DataFrame | None:
        """Returns the accesses of an operator; None without any."""
        found = self._at.get((op["start_ns"], op["depth"]))
        return None if found is None else self._rows.iloc[found]

    def tensor(self, storage: int, time_ns: int) -> _Tensor:
        """Returns which tensor a storage held at an instant."""
        times = self._born.get(storage, [])
        before = bisect_right(times, time_ns)
        return storage, times[before - 1] if before else -1

    def among(self, reads: pd.DataFrame, picks: dict[_Tensor, _Pick]) -> list[_Pick]:
        """Returns the picks that were read, each source once."""
        pairs = zip(reads["storage"], reads["start_ns"], strict=True)
        found = (picks.get(self.tensor(int(storage), int(time))) for storage, time in pairs)
        return list({(one.order, one.source): one for one in found if one is not None}.values())


def _picks(ops: pd.DataFrame, memory: _Memory) -> Iterator[tuple[_Tensor, _Pick]]:
    """Yields each tensor of chosen rows, and how it was chosen."""
    orders = dict[_Tensor, int]()
    for _, op in ops.iterrows():
        rows = memory.at(op)
        if rows is None or _LOSS.fullmatch(op["name"]):
            continue
        time = int(op["start_ns"])
        end = time + int(op["duration_ns"])
        made = [memory.tensor(int(one), end) for one in rows.loc[rows["write"], "storage"]]
        if op["name"] == _DRAW:
            orders |= dict.fromkeys(made, int(rows["bytes"].max()))
            continue
        read = {
            memory.tensor(int(one), time)
            for one in rows.loc[~rows["write"] & ~rows["birth"], "storage"]
        }
        order = [one for one in read if one in orders]
        others = [one for one in read if one not in orders]
        if len(order) == 1 and len(others) == 1:
            pick = _Pick(order[0], orders[order[0]], others[0][0], _stack(op))
            yield from ((one, pick) for one in made)


def _stack(op: pd.Series) -> int | None:
    return None if pd.isna(op["stack"]) else int(op["stack"])


def _finding(run: Run, rank: int, thread: str, losses: list[_Loss]) -> Finding:
    first = losses[0]
    loss, inputs, targets = (
        own_place(run, rank, stack)
        for stack in (first.stack, first.inputs.stack, first.targets.stack)
    )
    return Finding(
        kind="wrong_loss",
        severity="warning",
        confidence="likely",
        title="Targets do not belong to their inputs: the rows of the targets of the loss at "
        f"{loss} are chosen at {targets} by another random permutation than those of the inputs "
        f"at {inputs}, in all {units.count(len(losses))} losses that were looked at. Use one "
        "permutation for both.",
        rank=rank,
        ranks=(rank,),
        thread=thread,
        step=first.step,
        time_ns=first.time_ns,
        where=targets,
        evidence={"cause": "permutations", "inputs": inputs, "losses": len(losses)},
        link=step_link(run, rank, first.step),
    )
