"""Samples parameters at some steps: norm, change by the optimizer, and numbers of the gradient.

A sample takes several passes over all parameters, so it is taken at steps 0, 1, 2, 4, 8, ... and
then at every `sample_every`-th. The change by a step is measured on at most ELEMENTS evenly spaced
elements of each parameter: a full copy could take memory that the program needs.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.optim import Optimizer

from ...format.record_kinds import GradientScope, SampleRecord
from ...journal import clock
from ...journal.journal import RecordKind
from ...recorder.private_names import optional
from ...recorder.recorder import Recorder
from .device_readback import DeviceReadback
from .norms import Alike, Norms, alike, has_norm
from .optimizer_parameters import (
    PLAIN,
    RECORD_TYPE,
    OptimizerParameters,
    ParameterGroup,
    ParameterInfo,
    local_part,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

ELEMENTS = 4096
"""Elements of a parameter at which its change is measured."""

_NORM, _MAXIMUM, _NONZERO, _OWN, _CHANGE = range(5)
"""Columns of a sample's numbers."""

_NOT_A_NUMBER = float("nan")


def _subtract_each(
    after: Sequence[torch.Tensor], before: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    return list(map(torch.sub, after, before))


_differences: Callable[..., Any] = optional("torch", "_foreach_sub", "") or _subtract_each


@dataclass
class _Row:
    """One parameter of a sample: the fields known without waiting for a device."""

    known: ParameterInfo
    scope: int
    readable: bool = True  # False: the gradient exists and has no norm
    lr: float = _NOT_A_NUMBER
    weight_decay: float = _NOT_A_NUMBER
    numbers: list[float | None] = field(default_factory=lambda: [None] * 5)


@dataclass
class _Changing:
    """Parameters of one device and dtype that the step may change."""

    rows: list[int]
    tensors: list[torch.Tensor]
    before: list[torch.Tensor]  # some elements of each, before the step


class Sample:
    """Parameters at one step, and their numbers that devices still compute."""

    def __init__(self, instant: int, step: int, aux: int, rule: int) -> None:
        self.instant, self.step, self.aux, self.rule = instant, step, aux, rule
        self.rows: list[_Row] = []
        self._parts: dict[torch.device, list[tuple[int, list[int], torch.Tensor]]] = defaultdict(
            list
        )
        self.changing: list[_Changing] = []

    def add(self, column: int, rows: list[int], numbers: torch.Tensor) -> None:
        """Adds a column's numbers on a device, one per row."""
        self._parts[numbers.device].append((column, rows, numbers.to(torch.float64)))

    def deliver(self, readback: DeviceReadback, then: Callable[[Sample], None]) -> None:
        """Calls `then` once all numbers are in `rows`."""
        parts, self._parts = self._parts, {}
        left = len(parts)
        if not left:
            then(self)

        def fill(places: Sequence[tuple[int, list[int]]], numbers: torch.Tensor) -> None:
            nonlocal left
            values = iter(numbers.tolist())
            for column, rows in places:
                for row in rows:
                    self.rows[row].numbers[column] = next(values)
            left -= 1
            if not left:
                then(self)

        for several in parts.values():
            places = [(column, rows) for column, rows, _ in several]
            readback.enqueue(torch.cat([n for *_, n in several]), partial(fill, places))


class Parameters:
    """Writes rows of the parameter table."""

    def __init__(
        self,
        recorder: Recorder,
        held: OptimizerParameters,
        readback: DeviceReadback,
        norms: Norms,
        alone: Callable[[], AbstractContextManager[bool]],
    ) -> None:
        """`alone`: see `ThreadGradients`."""
        self._recorder = recorder
        self._alone = alone
        self._norms = norms
        self._held = held
        self._readback = readback
        self._open: weakref.WeakKeyDictionary[Optimizer, Sample] = weakref.WeakKeyDictionary()
        self._trainable: dict[int, bool] = {}  # text of a name -> requires_grad, as last written
        self._begun: set[int] = set()  # ordinals of optimizers that were sampled
        self.listed = False  # whether parameters of no optimizer were recorded

    def before(
        self,
        optimizer: Optimizer,
        ordinal: int,
        instant: int,
        held: ParameterGroup,
        gradients: list[Alike],
    ) -> None:
        """Begins a sample before a step; `gradients`: those of `held` that exist."""
        recorder = self._recorder
        rule = recorder.intern(type(optimizer).__name__)
        sample = Sample(instant, recorder.step, ordinal + 1, rule)
        each = iter(zip(held.parameters, held.known, strict=True))
        for group, size in zip(optimizer.param_groups, held.sizes, strict=True):
            lr, decay = _as_float(group.get("lr")), _as_float(group.get("weight_decay"))
            for parameter, known in islice(each, size):
                readable = _is_readable(local_part(parameter.grad))
                sample.rows.append(_Row(known, _scope(parameter), readable, lr, decay))
                self._trainable[known.name] = parameter.requires_grad
        for same in gradients:
            self._gradients(sample, same)
        self._values(sample, [local_part(parameter) for parameter in held.parameters])
        self._open[optimizer] = sample
        if ordinal not in self._begun:
            self._begun.add(ordinal)
            self.others(instant, frozen=ordinal > 0)
        elif ordinal == 0:
            self.others(instant)

    def awaits(self, optimizer: Optimizer) -> bool:
        """Returns whether a sample of the optimizer's parameters is open."""
        return bool(self._open) and optimizer in self._open

    def after(self, optimizer: Optimizer) -> None:
        """Measures what the optimizer's step changed, and ends the sample."""
        sample = self._open.pop(optimizer)
        for own in sample.changing:
            after = self._norms.thinned(own.tensors, ELEMENTS)
            change = self._norms.of(list(_differences(after, own.before)))
            ratio = torch.where(change == 0, change, change / self._norms.of(own.before))
            sample.add(_CHANGE, own.rows, ratio)
        sample.deliver(self._readback, self._write)

    def skipped(self, optimizer: Optimizer, ordinal: int) -> None:
        """Records non-finite gradients of a step that a scaler skipped. Waits for the device."""
        recorder = self._recorder
        held = self._held.of(optimizer, ordinal)
        tensors = [local_part(parameter.grad) for parameter in held.parameters]
        dense = [i for i, one in enumerate(tensors) if one is not None and not one.is_sparse]
        sample = Sample(clock.now(), recorder.step, ordinal + 1, 0)
        for own in alike([tensors[i] for i in dense]):
            several = [dense[i] for i in own]
            norms = self._norms.of([tensors[i] for i in several])
            for position, norm in zip(several, norms.tolist(), strict=True):
                if norm - norm != 0:  # NaN or infinite
                    row = _Row(held.known[position], GradientScope.SKIPPED)
                    row.numbers[_NORM] = norm
                    sample.rows.append(row)
        self._write(sample)

    def _gradients(self, sample: Sample, same: Alike) -> None:
        sample.add(_NORM, same.positions, same.norms)
        full = [i for i, tensor in enumerate(same.tensors) if tensor.numel()]
        if full:
            rows = [same.positions[i] for i in full]
            largest, nonzero = self._norms.spread([same.tensors[i] for i in full])
            sample.add(_MAXIMUM, rows, largest)
            sample.add(_NONZERO, rows, nonzero)

    def _values(self, sample: Sample, tensors: list[torch.Tensor]) -> None:
        """Takes norms of all parameters, and some elements of those that the step may change."""
        for rows in alike(tensors):
            sample.add(_OWN, rows, self._norms.of([tensors[i] for i in rows]))
            changing = [
                i
                for i in rows
                if not sample.rows[i].scope & GradientScope.FROZEN and tensors[i].numel()
            ]
            if changing:
                own = [tensors[i] for i in changing]
                before = self._norms.thinned(own, ELEMENTS)
                sample.changing.append(_Changing(changing, own, before))

    def others(self, instant: int, *, frozen: bool = False) -> None:
        """Samples parameters of no optimizer: frozen ones only once and when that changes.

        `frozen`: these alone, as a later optimizer may come with a model of its own.

        Does nothing once another thread has run a backward: they may be that thread's.
        """
        self.listed = True
        held = list(self._held.others())
        with self._alone() as alone:
            if not alone:
                return
            found = [(*each, local_part(each[0].grad)) for each in held]
        sample = Sample(instant, self._recorder.step, 0, 0)
        own: list[torch.Tensor] = []
        gradients: list[tuple[int, torch.Tensor]] = []
        for parameter, known, gradient in found:
            trainable = parameter.requires_grad
            known_as_frozen = not trainable and self._trainable.get(known.name) is False
            if parameter.is_meta or known_as_frozen or (frozen and trainable):
                continue
            self._trainable[known.name] = trainable
            if trainable and gradient is not None and not gradient.is_sparse:
                gradients.append((len(sample.rows), gradient))
            own.append(_view(local_part(parameter)))
            sample.rows.append(_Row(known, _scope(parameter), _is_readable(gradient)))
        for several in alike([gradient for _, gradient in gradients]):
            rows = [gradients[i][0] for i in several]
            sample.add(_NORM, rows, self._norms.of([gradients[i][1] for i in several]))
        trained = [i for i, row in enumerate(sample.rows) if not row.scope & GradientScope.FROZEN]
        for several in alike([own[i] for i in trained]):
            rows = [trained[i] for i in several]
            sample.add(_OWN, rows, self._norms.of([own[i] for i in rows]))
        sample.deliver(self._readback, self._write)

    def _write(self, sample: Sample) -> None:
        rows = [row for row in sample.rows if row.readable]
        if rows:
            self._recorder.put_all(self._recorder.thread(), _records(sample, rows))


def _records(sample: Sample, rows: Sequence[_Row]) -> NDArray[np.void]:
    """Returns the records of each row, one row after the other. A call per record would take most
    of the time of a sample."""
    numbers = np.array([row.numbers for row in rows], np.float64)  # None becomes NaN
    given = np.array([[one is not None for one in row.numbers] for row in rows])
    numel = np.array([row.known.numel for row in rows])
    found = np.zeros((len(rows), len(SampleRecord)), RECORD_TYPE)
    there = np.zeros(found.shape, bool)

    def put(part: SampleRecord, first: Any, second: Any, which: Any, signature: Any = 0) -> None:
        own = found[:, part]
        own["depth"], own["signature"], there[:, part] = part, signature, which
        own["sequence"], own["extra"] = _bits(first), second

    norms = np.where(given[:, _NORM], numbers[:, _NORM], 0.0)
    put(SampleRecord.gradient, norms, numel, True, [row.known.signature for row in rows])
    zeros = 1 - numbers[:, _NONZERO] / np.maximum(numel, 1)
    spread = given[:, _MAXIMUM] & given[:, _NONZERO] & (numel > 0)
    put(SampleRecord.spread, numbers[:, _MAXIMUM], _bits(zeros), spread)
    whole = [row.known.whole_numel for row in rows]
    put(SampleRecord.parameter, numbers[:, _OWN], whole, given[:, _OWN])
    rates, decays = ([getattr(row, name) for row in rows] for name in ("lr", "weight_decay"))
    put(SampleRecord.rule, rates, _bits(decays), bool(sample.rule), sample.rule)
    put(SampleRecord.change, numbers[:, _CHANGE], 0, given[:, _CHANGE])
    found["kind"], found["start"] = RecordKind.GRADIENT, sample.instant
    found["step"], found["aux"] = sample.step, sample.aux
    found["name"] = [[row.known.name] for row in rows]
    scopes = np.array([row.scope for row in rows]) | int(GradientScope.SAMPLE)
    found["scope"] = (scopes | np.where(given[:, _NORM], 0, int(GradientScope.NONE)))[:, None]
    records: NDArray[np.void] = found[there]
    return records


def _bits(numbers: Any) -> NDArray[np.int64]:
    return np.asarray(numbers, np.float64).view(np.int64)


def is_sampled(step: int, every: int) -> bool:
    """Returns whether a step is 0, 1, 2, 4, 8, ... below `every`, or a multiple of it; 0: never."""
    return bool(every) and (step % every == 0 or (step < every and is_doubling(step)))


def is_doubling(step: int) -> bool:
    """Returns whether a step is 0, 1, 2, 4, 8, ..."""
    return not step & (step - 1)


def _view(parameter: torch.Tensor) -> torch.Tensor:
    """Returns a parameter that keeps its memory: another thread may assign `data` meanwhile, which
    frees it."""
    return parameter.detach() if type(parameter) in PLAIN else parameter


def _scope(parameter: torch.Tensor) -> int:
    return 0 if parameter.requires_grad else GradientScope.FROZEN


def _is_readable(gradient: torch.Tensor | None) -> bool:
    return gradient is None or has_norm(gradient)


def _as_float(setting: Any) -> float:
    """Returns a number of a parameter group; NaN for one on a device, which would need a wait."""
    if isinstance(setting, torch.Tensor):
        return float(setting) if setting.device.type == "cpu" else _NOT_A_NUMBER
    return float(setting) if isinstance(setting, (int, float)) else _NOT_A_NUMBER
