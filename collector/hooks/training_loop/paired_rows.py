"""Compares the targets that the same rows of a model's input get at several sampled steps.

Rows of inputs and of targets that are shuffled apart, in whatever way, belong together by chance:
a row that comes again has another target. So do the rows of a batch that are all one row, as states
of a replay buffer that are one array.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch

from ...format.loop_names import PAIRED_ROWS
from ...recorder.recorder import Recorder
from ..graphs.node_facts import nodes_below, on_host, saved_tensor

_MIN_ROWS, _MAX_ROWS = 8, 256
_MAX_COLUMNS = 16
"""Of a row, evenly spaced."""
_MIN_COLUMNS = 4
_MAX_KEPT = 8192
_MAX_SEEN = 4096
_MAX_CALLS = 4
_MAX_NODES = 64
_MIN_ORDERS = 4
"""Different batches of targets: classes of an episode may be numbered again in each of them."""

_LOSSES = {
    "NllLossBackward0": 2,
    "BinaryCrossEntropyBackward0": 2,
    "BinaryCrossEntropyWithLogitsBackward0": 2,
    "MseLossBackward0": 8,
    "SmoothL1LossBackward0": 8,
    "HuberLossBackward0": 8,
}
"""Nodes of losses that have one target per row, and how many different ones there are at least."""


class PairedRows:
    """Writes values named PAIRED_ROWS at the sampled steps at which a row comes again."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._calls: list[list[int] | None] = []  # hashes of rows, since the last backward
        self._known: dict[int, float] = {}  # hash of a row -> its first target
        self._values: Counter[float] = Counter()  # of all targets
        self._targets: Counter[float] = Counter()  # of rows that came again
        self._orders: set[int] = set()
        self._changed: Counter[float] = Counter()  # of these the targets other than the first
        self._alike: set[int] = set()  # rows that were whole batches
        self._seen = self._same = 0
        self._off = False

    def called(self, arguments: Sequence[torch.Tensor], *, alone: bool) -> None:
        """Notes a call of a model at a sampled step; `alone`: it got tensors and nothing else."""
        if not self._off and len(self._calls) < _MAX_CALLS:
            self._calls.append(_rows(arguments) if alone else None)

    def backward(self, arguments: tuple[Any, ...]) -> None:
        """Compares targets at the begin of a backward, from the engine's arguments."""
        calls, self._calls = self._calls, []
        rows = [one for one in calls if one is not None]
        if self._off or not rows or len(rows) < len(calls) or len(rows) >= _MAX_CALLS:
            return
        if len({*map(len, rows)}) > 1 or self._recorder.thread().busy:
            return
        with self._recorder.contain_errors(), self._recorder.own_torch(), torch.no_grad():
            found = _target(arguments)
            if found is not None:
                self._compare([*map(hash, zip(*rows, strict=True))], *found)

    def _compare(self, rows: list[int], targets: list[float], least: int) -> None:
        if len(rows) != len(targets):
            return
        if len({*rows}) == 1 and (self._alike or not self._known):
            self._alike.update(rows if len({*targets}) > 1 else ())
            self._recorder.value(f"{PAIRED_ROWS}alike", float(len(self._alike)))
            return
        if self._alike:
            self._alike.clear()
            self._recorder.value(f"{PAIRED_ROWS}alike", 0.0)
        if len({*rows}) < len(rows):  # states of a game, or other inputs that are not samples
            self._off = True
            return
        if len(self._orders) < _MIN_ORDERS:
            self._orders.add(hash(tuple(targets)))
        before = self._seen
        if len(self._values) < _MAX_KEPT:
            self._values.update(targets)
        for row, target in zip(rows, targets, strict=True):
            first = self._known.get(row)
            if first is None:
                if len(self._known) < _MAX_KEPT:
                    self._known[row] = target
                continue
            self._seen += 1
            self._same += first == target
            if first != target:
                self._changed[target] += 1
            self._targets[target] += 1
        if self._seen > before and len(self._orders) >= _MIN_ORDERS and len(self._values) >= least:
            chance = sum(one**2 for one in self._targets.values()) / self._seen**2
            another = sum(count for one, count in self._changed.items() if self._values[one] > 1)
            numbers = (self._seen, self._same, another, chance)
            for name, number in zip(("seen", "same", "another", "chance"), numbers, strict=True):
                self._recorder.value(f"{PAIRED_ROWS}{name}", float(number))
        self._off = self._off or self._seen >= _MAX_SEEN


def _rows(tensors: Sequence[torch.Tensor]) -> list[int] | None:
    """Returns a hash of each row of all tensors together; None where they have no rows in common,
    or too few numbers in each."""
    if not all(map(on_host, tensors)):
        return None
    lengths = {len(one) if one.dim() > 1 else 0 for one in tensors}
    count = next(iter(lengths), 0)
    if len(lengths) != 1 or not _MIN_ROWS <= count <= _MAX_ROWS:
        return None
    flat = [one.detach().reshape(count, -1) for one in tensors]
    if max(one.shape[1] for one in flat) < _MIN_COLUMNS:
        return None
    few = [one[:, :: -(-one.shape[1] // _MAX_COLUMNS)].double().numpy() for one in flat]
    return [hash(tuple(one[row].tobytes() for one in few)) for row in range(count)]


def _target(arguments: tuple[Any, ...]) -> tuple[list[float], int] | None:
    """Returns the targets of the only loss of a backward, one per row, and how many different ones
    there are at least; None without such a loss."""
    roots = arguments[0] if isinstance(arguments[0], (tuple, list)) else (arguments[0],)
    if len(roots) != 1 or roots[0].grad_fn is None or (len(arguments) > 4 and arguments[4]):
        return None
    found = [
        (node, least)
        for node in islice(nodes_below(roots[0].grad_fn), _MAX_NODES)
        if (least := _LOSSES.get(node.name()))
    ]
    if len(found) != 1 or getattr(found[0][0], "_saved_reduction", 0) == 0:
        return None
    node, least = found[0]
    target = saved_tensor(node, "_raw_saved_target")
    if not on_host(target) or not 1 <= target.dim() <= 2 or target.numel() != len(target):
        return None
    numbers = target.detach().double().flatten().tolist()
    whole = not target.is_floating_point()
    if whole and len({*numbers}) == len(numbers):  # places in the batch, as of pairs
        return None
    return numbers, least
