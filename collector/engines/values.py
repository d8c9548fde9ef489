"""Reads tensors of operators for the portable engine, and writes their records.

The rules are those of the native engine (`observer/operators/tensor_capture.h`,
`observer/storages/storages.h`). When an operator ends, its results and changed inputs are read.
When it begins, inputs are read if no recorded operator wrote them, if they belong to a collective,
or if they have changed since the last write.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from ..hooks.cuda_graphs import capturing
from ..hooks.training.device_readback import has_passed, passes_soon
from ..journal.journal import (
    RECORD,
    TENSOR_MORE_RECORD,
    TENSOR_ORDINAL,
    TENSOR_RECORD,
    RecordKind,
    TensorFlag,
)
from ..journal.own_lock import own_lock
from ..journal.process_journals import ThreadState
from ..numerics.fingerprint import Fingerprint, fingerprint
from ..numerics.host_fingerprint import Numbers, numbers_of
from ..recorder.private_names import optional
from ..recorder.program_modes import NoModes
from ..recorder.recorder import Recorder
from .read_plans import Argument, ReadPlan, read_plan
from .storages import LiveStorages, is_readable

_COMPILER = "torch._inductor.output_code"
"""Once this module is loaded, compiled kernels may write without a visible operator, so inputs are
not compared with earlier fingerprints.
"""


class TensorRow(NamedTuple):
    """A tensor that was read."""

    found: Numbers | Fingerprint
    signature: int
    position: int
    expected: int | None
    unset: bool


class OperatorReading:
    """Tensors read of one call of an operator."""

    __slots__ = ("finite", "known", "plan", "rows", "unset", "written")

    def __init__(self, plan: ReadPlan) -> None:
        self.plan = plan
        self.finite = True
        self.known = True
        self.unset = False  # an input is derived from uninitialised memory
        self.rows: list[TensorRow] = []
        self.written: list[tuple[torch.Tensor, int]] = []

    def found(self, finite: bool | None) -> None:
        """Notes that an input is finite, not finite, or unknown (None)."""
        self.finite = self.finite and finite is not False
        self.known = self.known and finite is not None


class Values:
    """Reads operators' tensors and writes their records."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._plans: dict[Any, ReadPlan | None] = {}
        self._storages = LiveStorages()
        self._lock = own_lock()
        self._current_node = optional("torch._C", "_current_autograd_node", "") or (lambda: None)
        self._pending: deque[tuple[Any, list[torch.Tensor], TensorRow, int, int, int]] = deque()

    def begin(
        self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], wanted: bool
    ) -> OperatorReading | None:
        """Reads inputs before the operator runs; None: it is not read."""
        if operator not in self._plans:
            self._plans[operator] = read_plan(operator)
        plan = self._plans[operator]
        if plan is None:
            return None
        with NoModes():
            return self._begin(OperatorReading(plan), args, kwargs, wanted)

    def _begin(
        self, reading: OperatorReading, args: tuple[Any, ...], kwargs: dict[str, Any], wanted: bool
    ) -> OperatorReading:
        plan, position = reading.plan, 0
        for argument in plan.arguments:
            given = (
                args[argument.position]
                if argument.position < len(args)
                else kwargs.get(argument.name)
            )
            for tensor in _tensors(given):
                self._begin_one(reading, tensor, argument, position, wanted)
                position += 1
        return reading

    def _begin_one(
        self,
        reading: OperatorReading,
        tensor: torch.Tensor,
        argument: Argument,
        position: int,
        wanted: bool,
    ) -> None:
        if not _has_storage(tensor):
            self._recorder.coverage["tensors_not_read"] += 1
            reading.known = False
            return
        plan = reading.plan
        only_written = argument.writes and not argument.reads and not argument.named
        asked = not plan.nothing and not (plan.overwrites and argument.writes)
        if plan.collective:
            asked = argument.reads and not self._storages.awaited(tensor)
        if wanted and asked and not only_written and (argument.reads or argument.writes):
            self._look(reading, tensor, position, plan.collective, argument.writes)
        if not argument.writes:
            return
        if plan.collective:
            self._storages.awaits(tensor)
            return
        self._storages.writes(tensor)
        reading.written.append((tensor, position))

    def end(
        self,
        state: ThreadState,
        reading: OperatorReading,
        result: Any,
        start: int,
        depth: int,
        *,
        left_out: bool,
    ) -> None:
        """Reads results and changed inputs, and writes records unless the operator is left out."""
        with NoModes():
            self._read_results(reading, result, left_out)
            if not left_out:
                for row in reading.rows:
                    self._write(state, reading, row, start, depth)
            self.drain(state, wait=False)

    def _read_results(self, reading: OperatorReading, result: Any, left_out: bool) -> None:
        plan = reading.plan
        unread = left_out or plan.nothing
        position = 0
        results = result if isinstance(result, tuple) else (result,)
        for one, fresh in zip(results, plan.fresh, strict=False):
            for tensor in _tensors(one):
                if plan.workspace and tensor.dtype is torch.uint8:
                    pass
                elif not _has_storage(tensor):
                    self._recorder.coverage["tensors_not_read"] += fresh and not unread
                elif fresh and plan.collective:
                    self._storages.awaits(tensor)
                elif fresh and left_out and not plan.nothing:
                    self._storages.made_unread(tensor)
                elif fresh and plan.nothing:
                    self._storages.made_unset(tensor)
                elif fresh and not unread:
                    self._read_result(reading, tensor, position, TensorFlag.RESULT)
                position += 1
        for tensor, ordinal in reading.written:
            if unread:
                self._storages.wrote_unread(tensor)
            else:
                self._read_result(reading, tensor, ordinal, TensorFlag(0))

    # reading -------------------------------------------------------------------------------

    def _look(
        self,
        reading: OperatorReading,
        tensor: torch.Tensor,
        position: int,
        always: bool,
        writes: bool,
    ) -> None:
        if not _can_be_read(tensor):
            self._recorder.coverage["tensors_not_read"] += 1
            reading.known = False
            return
        if not tensor.numel():
            return
        known = self._storages.look(tensor)
        if known.expected is not None and _COMPILER in sys.modules:
            known = known._replace(expected=None, finite=None)
        if known.expected is not None and not (
            known.owned or tensor.requires_grad or self._current_node()
        ):  # for example a batch copied over the previous one
            known = known._replace(foreign=True, expected=None, finite=None)
        reading.unset = reading.unset or known.derived
        if known.unset:
            # The operator may initialise an input that it changes; one that it only reads makes its
            # results depend on uninitialised memory.
            reading.unset = reading.unset or not writes
            reading.known = False
            return
        if not known.foreign and known.expected is None and not always:
            reading.found(known.finite)
            return
        whole, numbers = _read(tensor)
        reading.found(None if numbers is None else numbers.finite)
        self._add(reading, tensor, whole, position | TensorFlag.FOUND, known.expected)
        self._storages.read(tensor, numbers)

    def _read_result(
        self, reading: OperatorReading, tensor: torch.Tensor, position: int, flags: TensorFlag
    ) -> None:
        if not _can_be_read(tensor):
            self._recorder.coverage["tensors_not_read"] += 1
            self._storages.wrote_unread(tensor)
            return
        whole, numbers = _read(tensor)
        self._add(reading, tensor, whole, position | flags, None)
        result = bool(flags & TensorFlag.RESULT)
        self._storages.wrote(tensor, numbers, result=result, derived=reading.unset)

    def _add(
        self,
        reading: OperatorReading,
        tensor: torch.Tensor,
        found: Numbers | Fingerprint,
        position: int,
        expected: int | None,
    ) -> None:
        if position & TENSOR_ORDINAL == TENSOR_ORDINAL:
            self._recorder.coverage["tensors_not_read"] += 1
            return
        dtype = str(tensor.dtype).removeprefix("torch.")
        text = f"{list(tensor.shape)}\t{dtype}\t{tensor.device}"
        signature, _ = self._recorder.store.intern_signature(text)
        unset = reading.unset and not position & TensorFlag.FOUND
        reading.rows.append(TensorRow(found, signature, position, expected, unset))

    # records -------------------------------------------------------------------------------

    def _write(
        self, state: ThreadState, reading: OperatorReading, row: TensorRow, start: int, depth: int
    ) -> None:
        flags = 0
        if reading.known or not reading.finite:
            flags = TensorFlag.KNOWN | (TensorFlag.FINITE if reading.finite else 0)
        if isinstance(row.found, Numbers):
            _put(state, row.found, row, flags, start, depth)
            return
        hosts = [torch.empty_like(t, device="cpu", pin_memory=True) for t in row.found]
        for host, there in zip(hosts, row.found, strict=True):
            host.copy_(there, non_blocking=True)
        event: Any = torch.get_device_module(row.found.counts.device).Event()
        event.record()
        with self._lock:
            self._pending.append((event, hosts, row, flags, start, depth))

    def drain(self, state: ThreadState, *, wait: bool) -> None:
        """Writes the records whose device copies have arrived; with `wait`, all that do soon."""
        while self._pending and not capturing():
            with self._lock:
                if not self._pending:
                    return
                first = self._pending.popleft()
                event, (counts, moments), row, flags, start, depth = first
                if not (passes_soon if wait else has_passed)(event):
                    self._pending.appendleft(first)
                    return
            found = Numbers(*counts.tolist(), *moments.tolist())
            _put(state, found, row, flags, start, depth)


def _put(
    state: ThreadState, found: Numbers, row: TensorRow, flags: int, start: int, depth: int
) -> None:
    more = not found.finite or row.expected is not None or row.unset
    position = row.position | flags | (TensorFlag.MORE if more else 0)
    packed = TENSOR_RECORD.pack(
        RecordKind.TENSOR,
        min(depth, 255),
        position,
        row.signature,
        start,
        found.hash,
        found.zeros,
        found.mean,
        found.l2,
        found.low,
        found.high,
    )
    state.journal.append(*RECORD.unpack(packed))
    if more:
        packed = TENSOR_MORE_RECORD.pack(
            RecordKind.TENSOR_MORE,
            int(row.expected is not None),
            int(row.unset),
            0,
            found.nan,
            found.inf,
            row.expected or 0,
            0,
            0,
            0,
            0,
        )
        state.journal.append(*RECORD.unpack(packed))


def _can_be_read(tensor: torch.Tensor) -> bool:
    return is_readable(tensor) and not (tensor.is_cuda and capturing())


def _read(tensor: torch.Tensor) -> tuple[Numbers | Fingerprint, Numbers | None]:
    """Returns the fingerprint, and again as numbers if they need no wait for a device."""
    if tensor.device.type == "cpu":
        numbers = numbers_of(tensor)
        return numbers, numbers
    return fingerprint(tensor), None


def _has_storage(tensor: torch.Tensor) -> bool:
    """Returns False for sparse and nested tensors."""
    return tensor.layout is torch.strided and not tensor.is_nested


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yields all tensors but those that another dispatch mode made, such as FakeTensors."""
    if isinstance(value, torch.Tensor):
        if type(value).__torch_dispatch__ is torch.Tensor.__torch_dispatch__:
            yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)
