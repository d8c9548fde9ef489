"""Which tensors of an operator the portable engine reads, and what it knows of the others.

The rules are those of the native engine (`observer/values.h`, `observer/storages.h`): results and
changed inputs are read when the operator has ended; as it begins, inputs that no recorded operator
wrote, those of collectives, and those that are no longer what was written last.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.multiprocessing import reductions
from torch.utils._python_dispatch import _disable_current_modes

from ..fingerprint import BLOCK, Fingerprint, can_read, fingerprint, hash_of
from ..journal import RECORD, TENSOR, TENSOR_MORE, TENSOR_ORDINAL, Kind, TensorFlag
from ..recorder import Recorder
from ..sources.collectives import plan_for
from ..store import ThreadState

OVERWRITING = frozenset(
    f"aten::{name}"
    for name in (
        "bernoulli_", "cauchy_", "copy_", "exponential_", "fill_", "geometric_", "log_normal_",
        "normal_", "random_", "uniform_", "zero_", "_foreach_copy_", "_foreach_zero_",
    )
)  # fmt: skip
"""What these change they do not look at."""

NOTHING = ("c10d::", "_c10d_functional", "aten::empty", "aten::new_empty", "aten::_empty",
           "aten::resize")  # fmt: skip
"""They make no values, or wait for them."""

_WeakStorage: Any = reductions.StorageWeakRef
_RANGES = 64  # remembered of one storage
_STORAGES = 65536
_PROBES = 8  # blocks
_BLOCK_BYTES = 4 * BLOCK


class Argument(NamedTuple):
    """An argument that may hold tensors."""

    position: int
    name: str
    reads: bool
    writes: bool
    named: bool


class Plan(NamedTuple):
    """How to read an operator, found once."""

    arguments: tuple[Argument, ...]
    fresh: tuple[bool, ...]  # of its results: those that are no views and no inputs
    collective: bool
    nothing: bool
    overwrites: bool
    workspace: bool  # results of bytes are room to work in: nobody set all of them


class Row(NamedTuple):
    """A tensor that was read."""

    tensor: Fingerprint
    signature: int
    position: int
    expected: int | None


class Range:
    """Bytes of a storage as they were when last read."""

    __slots__ = ("begin", "data", "end", "finite", "hash", "layout", "probe", "version")

    def __init__(
        self, tensor: torch.Tensor, finite: bool | None, value: int, changed: bool
    ) -> None:
        self.begin, self.end, self.layout = _extent(tensor)
        self.data = tensor.untyped_storage().data_ptr()
        # What counts changes does so when the operator has returned, after it was read.
        self.version = _version(tensor) + (changed and not tensor.is_inference())
        self.finite = finite
        self.hash = value
        self.probe = _probe(tensor) if self.layout is None else None

    def is_of(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is in these very bytes, and torch knows of no change to them."""
        return (
            (self.begin, self.end, self.layout) == _extent(tensor)
            and self.data == tensor.untyped_storage().data_ptr()
            and self.version == _version(tensor)
        )


class Known:
    """What is known of a storage."""

    __slots__ = ("finite", "foreign", "in_flight", "ranges", "storage")

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.storage = _WeakStorage(storage)
        self.foreign = False
        self.in_flight = False
        self.finite = False
        self.ranges: deque[Range] = deque(maxlen=_RANGES)

    def forget(self, tensor: torch.Tensor) -> None:
        """The tensor's bytes are not what they were."""
        begin, end, _ = _extent(tensor)
        kept = [r for r in self.ranges if not (r.begin < end and begin < r.end)]
        self.ranges = deque(kept, maxlen=_RANGES)


class Reading:
    """An operator that is being read."""

    __slots__ = ("finite", "known", "plan", "rows", "written")

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.finite = True
        self.known = True
        self.rows: list[Row] = []
        self.written: list[tuple[torch.Tensor, int]] = []


class Values:
    """Reads operators' tensors and writes their records."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._plans: dict[Any, Plan | None] = {}
        self._known: dict[int, Known] = {}
        self._purge_at = 1024
        self._lock = threading.Lock()
        self._pending: deque[tuple[Any, Any, Any, Row, int, int, int]] = deque()

    def begin(
        self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], wanted: bool
    ) -> Reading | None:
        """The operator begins."""
        if operator not in self._plans:
            self._plans[operator] = _plan(operator)
        plan = self._plans[operator]
        if plan is None:
            return None
        with _disable_current_modes():  # those of the program shall not see what is computed here
            return self._begin(Reading(plan), args, kwargs, wanted)

    def _begin(
        self, reading: Reading, args: tuple[Any, ...], kwargs: dict[str, Any], wanted: bool
    ) -> Reading:
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
        reading: Reading,
        tensor: torch.Tensor,
        argument: Argument,
        position: int,
        wanted: bool,
    ) -> None:
        plan = reading.plan
        only_written = argument.writes and not argument.reads and not argument.named
        asked = not plan.nothing and not (plan.overwrites and argument.writes)
        if plan.collective:
            asked = argument.reads and not self._in_flight(tensor)
        if wanted and asked and not only_written and (argument.reads or argument.writes):
            self._look(reading, tensor, position, always=plan.collective)
        if not argument.writes:
            return
        if plan.collective:
            self._await(tensor)
            return
        with self._lock:
            known = self._find(tensor)
            if known is not None:
                known.forget(tensor)
        reading.written.append((tensor, position))

    def end(
        self, state: ThreadState, reading: Reading, result: Any, start: int, depth: int, *,
        left_out: bool,
    ) -> None:  # fmt: skip
        """The operator ended. Those left out tell nothing, but what they wrote is not known."""
        with _disable_current_modes():
            self._read_results(reading, result, left_out)
            if not left_out:
                for row in reading.rows:
                    self._write(state, reading, row, start, depth)
            self.drain(state, wait=False)

    def _read_results(self, reading: Reading, result: Any, left_out: bool) -> None:
        plan = reading.plan
        unread = left_out or plan.nothing
        position = 0
        results = result if isinstance(result, tuple) else (result,)
        for one, fresh in zip(results, plan.fresh, strict=False):
            for tensor in _tensors(one):
                if plan.workspace and tensor.dtype is torch.uint8:
                    pass
                elif fresh and plan.collective:
                    self._await(tensor)
                elif fresh and left_out and not plan.nothing:
                    self._made(tensor)
                elif fresh and not unread:
                    # What `empty` makes comes from elsewhere until an operator writes it.
                    self._read_result(reading, tensor, position, TensorFlag.RESULT)
                position += 1
        for tensor, ordinal in reading.written:
            if unread:
                self._wrote_unread(tensor)
            else:
                self._read_result(reading, tensor, ordinal, TensorFlag(0))

    # reading -------------------------------------------------------------------------------

    def _look(self, reading: Reading, tensor: torch.Tensor, position: int, *, always: bool) -> None:
        if not _readable(tensor):
            self._recorder.coverage["tensors_not_read"] += 1
            reading.known = False
            return
        if not tensor.numel():
            return
        foreign, finite, expected = self._find_out(tensor)
        if not foreign and expected is None and not always:
            reading.finite = reading.finite and finite is not False
            reading.known = reading.known and finite is not None
            return
        found = fingerprint(tensor)
        self._note(reading, found)
        self._add(reading, tensor, found, position | TensorFlag.FOUND, expected)
        with self._lock:
            fresh = self._find(tensor) is None
            known = self._find_or_add(tensor)
            if known is not None:
                known.foreign = known.foreign or fresh
                known.in_flight = False
                self._remember(known, tensor, found, changed=False)

    def _find_out(self, tensor: torch.Tensor) -> tuple[bool, bool | None, int | None]:
        """Whether it comes from elsewhere; whether it is finite; the hash that it should have."""
        with self._lock:
            known = self._find(tensor)
            if known is None:
                return len(self._known) < _STORAGES, None, None
            same = next((r for r in known.ranges if r.is_of(tensor)), None)
            if same is None:
                return known.foreign, known.finite or None, None
        changed = same.probe is not None and _probe(tensor) != same.probe
        with self._lock:
            # It counts only if no recorded operator began to write meanwhile.
            changed = changed and any(r is same for r in known.ranges)
        return False, same.finite, same.hash if changed else None

    def _read_result(
        self, reading: Reading, tensor: torch.Tensor, position: int, flags: TensorFlag
    ) -> None:
        if not _readable(tensor):
            self._recorder.coverage["tensors_not_read"] += 1
            self._wrote_unread(tensor)
            return
        found = fingerprint(tensor)
        self._add(reading, tensor, found, position | flags, None)
        begin, end, layout = _extent(tensor)
        finite = _is_finite(found)
        with self._lock:
            fresh = self._find(tensor) is None
            known = self._find_or_add(tensor)
            if known is None:
                return
            whole = layout is None and begin == 0 and end >= tensor.untyped_storage().nbytes()
            if whole:
                known.foreign = known.in_flight = False
            known.finite = finite is True and (whole or fresh or known.finite)
            self._remember(known, tensor, found, changed=not flags & TensorFlag.RESULT)

    def _note(self, reading: Reading, found: Fingerprint) -> None:
        finite = _is_finite(found)
        reading.finite = reading.finite and finite is not False
        reading.known = reading.known and finite is not None

    def _add(
        self, reading: Reading, tensor: torch.Tensor, found: Fingerprint, position: int,
        expected: int | None,
    ) -> None:  # fmt: skip
        if position & TENSOR_ORDINAL == TENSOR_ORDINAL:
            self._recorder.coverage["tensors_not_read"] += 1
            return
        dtype = str(tensor.dtype).removeprefix("torch.")
        text = f"{list(tensor.shape)}\t{dtype}\t{tensor.device}"
        signature, _ = self._recorder.store.intern_signature(text)
        reading.rows.append(Row(found, signature, position, expected))

    # storages ------------------------------------------------------------------------------

    def _find(self, tensor: torch.Tensor) -> Known | None:
        key = tensor.untyped_storage()._cdata
        known = self._known.get(key)
        if known is not None and known.storage.expired():
            del self._known[key]
            return None
        return known

    def _find_or_add(self, tensor: torch.Tensor) -> Known | None:
        known = self._find(tensor)
        if known is not None:
            return known
        if len(self._known) >= self._purge_at:
            for key, one in list(self._known.items()):
                if one.storage.expired():
                    del self._known[key]
            self._purge_at = min(_STORAGES, max(1024, 2 * len(self._known)))
        if len(self._known) >= _STORAGES:
            return None
        storage = tensor.untyped_storage()
        known = self._known[storage._cdata] = Known(storage)
        return known

    def _remember(
        self, known: Known, tensor: torch.Tensor, found: Fingerprint, *, changed: bool
    ) -> None:
        known.forget(tensor)
        if tensor.device.type == "cpu":
            known.ranges.append(Range(tensor, _is_finite(found), int(found.counts[0]), changed))

    def _in_flight(self, tensor: torch.Tensor) -> bool:
        with self._lock:
            known = self._find(tensor)
            return known is not None and known.in_flight

    def _await(self, tensor: torch.Tensor) -> None:
        with self._lock:
            known = self._find_or_add(tensor)
            if known is not None:
                known.forget(tensor)
                known.foreign = known.in_flight = True
                known.finite = False

    def _made(self, tensor: torch.Tensor) -> None:
        with self._lock:
            if self._find(tensor) is None:
                known = self._find_or_add(tensor)
                if known is not None:
                    known.finite = True

    def _wrote_unread(self, tensor: torch.Tensor) -> None:
        with self._lock:
            known = self._find(tensor)
            if known is not None:
                known.forget(tensor)
                known.finite = False

    # records -------------------------------------------------------------------------------

    def _write(
        self, state: ThreadState, reading: Reading, row: Row, start: int, depth: int
    ) -> None:
        flags = 0
        if reading.known or not reading.finite:
            flags = TensorFlag.KNOWN | (TensorFlag.FINITE if reading.finite else 0)
        counts, moments = row.tensor
        if counts.device.type == "cpu":
            self._put(state, counts, moments, row, flags, start, depth)
            return
        hosts = [torch.empty_like(t, device="cpu", pin_memory=True) for t in row.tensor]
        for host, there in zip(hosts, row.tensor, strict=True):
            host.copy_(there, non_blocking=True)
        event: Any = torch.get_device_module(counts.device).Event()
        event.record()
        self._pending.append((event, hosts[0], hosts[1], row, flags, start, depth))

    def drain(self, state: ThreadState, *, wait: bool) -> None:
        """Write what devices have delivered by now; with `wait`, all of it."""
        while self._pending:
            event, counts, moments, row, flags, start, depth = self._pending[0]
            if wait:
                event.synchronize()
            elif not event.query():
                return
            self._pending.popleft()
            self._put(state, counts, moments, row, flags, start, depth)

    def _put(
        self, state: ThreadState, counts: torch.Tensor, moments: torch.Tensor, row: Row,
        flags: int, start: int, depth: int,
    ) -> None:  # fmt: skip
        value, nan, inf, zeros = counts.tolist()
        mean, l2, low, high = moments.tolist()
        more = bool(nan or inf or row.expected is not None)
        position = row.position | flags | (TensorFlag.MORE if more else 0)
        packed = TENSOR.pack(
            Kind.TENSOR, min(depth, 255), position, row.signature, start, value, zeros, mean, l2,
            low, high,
        )  # fmt: skip
        state.journal.append(*RECORD.unpack(packed))
        if more:
            packed = TENSOR_MORE.pack(
                Kind.TENSOR_MORE, int(row.expected is not None), 0, 0, nan, inf, row.expected or 0,
                0, 0, 0, 0,
            )  # fmt: skip
            state.journal.append(*RECORD.unpack(packed))


def _plan(operator: Any) -> Plan | None:
    schema = getattr(operator, "_schema", None)
    if schema is None:
        return None
    collective = plan_for(operator) is not None
    in_place = schema.name.endswith("_") and schema.name != "c10d::send"
    arguments = []
    for position, argument in enumerate(schema.arguments):
        if "Tensor" not in str(argument.type):
            continue
        alias, name = argument.alias_info, argument.name
        reads, writes = alias is None, alias is not None and alias.is_write
        if collective:  # schemas of collectives do not say what they write; their names do
            writes = writes or "output" in name or (in_place and "input" not in name)
            reads = "output" not in name and name != "barrier"
        elif "batch_norm" in schema.name:  # nor do these, of their running statistics
            writes = writes or name.startswith("running_")
        arguments.append(Argument(position, name, reads, writes, not argument.kwarg_only))
    return Plan(
        arguments=tuple(arguments),
        fresh=tuple(r.alias_info is None and "Tensor" in str(r.type) for r in schema.returns),
        collective=collective,
        nothing=not collective and schema.name.startswith(NOTHING),
        overwrites=schema.name in OVERWRITING,
        workspace="_rnn" in schema.name,
    )


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)


def _readable(tensor: torch.Tensor) -> bool:
    if not can_read(tensor) or tensor.is_conj() or tensor.is_neg():
        return False
    return not tensor.numel() or _extent(tensor)[1] <= tensor.untyped_storage().nbytes()


def _is_finite(found: Fingerprint) -> bool | None:
    """None where to know it would mean to wait for a device."""
    return None if found.counts.device.type != "cpu" else not bool(found.counts[1:3].any())


def _extent(tensor: torch.Tensor) -> tuple[int, int, tuple[int, ...] | None]:
    """First byte, one past the last, and the shape with strides where there are gaps."""
    item, sizes, strides = tensor.element_size(), tensor.shape, tensor.stride()
    begin = tensor.storage_offset() * item
    if not tensor.numel():
        return begin, begin, None
    last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    end = begin + (last + 1) * item
    return begin, end, None if tensor.numel() * item == end - begin else (*sizes, *strides)


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _probe(tensor: torch.Tensor) -> int:
    """Hash of bytes as they lie in memory: of all, or of some blocks evenly spread over many."""
    begin, end, _ = _extent(tensor)
    raw = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage(), begin, (end - begin,))
    blocks = len(raw) // _BLOCK_BYTES
    if blocks > _PROBES:
        first = [i * (blocks - 1) // (_PROBES - 1) * _BLOCK_BYTES for i in range(_PROBES)]
        raw = torch.cat([raw[f : f + _BLOCK_BYTES] for f in first])
    return int(hash_of(raw))
