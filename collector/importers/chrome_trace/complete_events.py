"""Takes complete events (phase X), most of a trace: many of one category become rows at once.

Work per event dominates the import, so columns are built from whole lists, and each distinct name
or signature is interpreted once.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...format.names import ON_DEVICE
from ...format.record_kinds import PhaseKind
from ..arguments import joined_texts
from ..events import Args, Label, TraceEvent, decode_args
from ..import_limits import MAX_COLLECTIVES, MAX_INPUT_SIGNATURES, MAX_SIGNATURE_CHARS
from ..kineto import (
    COLLECTIVE_PREFIXES,
    OPERATOR_OF_2021,
    WITH_ARGS,
    function_kind,
    kind_of,
    on_stream,
    phase_of,
    signature_of,
)
from ..spill import (
    FUNCTION_SLICE,
    LAUNCHING_SLICE,
    NONE,
    PHASE_KIND,
    UNFINISHED,
    USER_SLICE,
    CollectiveSlice,
    Lanes,
    StructArray,
    Trace,
    new_slices,
)
from ..timestamps import exact_ns, rounded_ns
from .arrows import add_bound_arrows

_MAX_KEY_BYTES = 1000
"""A longer signature is known by its digest."""

_MAX_CACHED_STREAMS = 1 << 16

_MAX_COLLECTIVE_ARGS_BYTES = 64 << 20
"""Of the arguments of all slices of collectives; a call has a few hundred bytes."""


class CompleteEvents:
    """Adds complete events to a trace."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._names = _Names(trace)
        self._signatures = _Signatures(trace)
        self._streams = _Streams(trace.lanes)
        self._args_bytes = 0

    def take(self, category: str, group: list[TraceEvent]) -> None:
        """Adds slices of one category."""
        trace = self._trace
        start, bad = exact_ns([event.ts for event in group])
        duration, missing, wrong = rounded_ns([event.dur for event in group])
        bad |= wrong
        if bad.any():
            trace.counts["dropped_no_time"] += int(bad.sum())
            chosen = np.flatnonzero(~bad)
            group = [group[i] for i in chosen.tolist()]
            start, duration, missing = start[chosen], duration[chosen], missing[chosen]
            if not group:
                return
        trace.counts["imported_slices"] += len(group)
        rows = new_slices(len(group))
        rows["start"] = start
        rows["duration"] = np.where(missing, UNFINISHED, duration)
        rows["name"] = _numbers(trace.texts, [event.name for event in group])
        kind = kind_of(category)
        rows["kind"] = kind
        raw, args = [event.args for event in group], None
        texts = joined_texts(raw)
        if category in WITH_ARGS or kind == LAUNCHING_SLICE:
            args = decode_args(raw, texts)
            self._describe(rows, args, kind, shapes=_has_shapes(texts))
        rows["lane"] = self._lanes(category, group, args)
        trace.arguments.add(rows, texts)
        if [event.bind_id for event in group].count(None) < len(group):
            add_bound_arrows(trace, group, start, rows["lane"].tolist())
        if kind == LAUNCHING_SLICE:
            prefix = category.partition("_")[0]
            trace.platform = prefix if prefix.isalnum() else trace.platform
        if category in ("cpu_op", OPERATOR_OF_2021, "user_annotation"):
            self._by_name(rows, group, category)
        trace.slices.add(rows)

    def _lanes(
        self, category: str, group: list[TraceEvent], args: list[Args] | None
    ) -> NDArray[np.uint32]:
        pids, tids = [event.pid for event in group], [event.tid for event in group]
        if args is None or category not in ON_DEVICE:
            return self._threads(pids, tids, on_stream=on_stream(category))
        places = [one.device for one in args], [one.stream for one in args]
        return _numbers(self._streams, zip(pids, tids, *places, strict=True), len(group))

    def _threads(
        self, pids: list[Label], tids: list[Label], *, on_stream: bool
    ) -> NDArray[np.uint32]:
        """Returns the number of each lane; those of one process are known by their threads."""
        lanes = self._trace.lanes
        if pids.count(pids[0]) < len(pids):
            return _numbers(lanes, zip(pids, tids, repeat(on_stream)), len(pids))
        known = {tid: lanes[pids[0], tid, on_stream] for tid in dict.fromkeys(tids)}
        return _numbers(known, tids, len(tids))

    def _describe(self, rows: StructArray, args: list[Args], kind: int, *, shapes: bool) -> None:
        """Fills in the columns that come from arguments; `shapes`: whether some have any."""
        if kind not in (FUNCTION_SLICE, USER_SLICE):
            rows["correlation"] = _integers([one.correlation for one in args])
            return
        if shapes:
            rows["signature"] = self._signatures.of(args)
        if kind == FUNCTION_SLICE:
            rows["sequence"] = _integers([one.sequence for one in args])
            forward = np.fromiter([one.forward_thread > 0 for one in args], np.intp, len(args))
            rows["kind"] = self._names.kinds()[rows["name"], forward]

    def _by_name(self, rows: StructArray, group: list[TraceEvent], category: str) -> None:
        """Finds phases and slices of collectives by their names."""
        special = np.flatnonzero(self._names.special()[rows["name"]])
        names = rows["name"][special].tolist()
        collective_slices = []
        for position, number in zip(special.tolist(), names, strict=True):
            phase = self._names.phases.get(number)
            if phase is None:
                collective_slices.append(position)
            elif category != "cpu_op":
                rows["kind"][position] = PHASE_KIND + phase[0]
                rows["name"][position] = self._trace.texts[phase[1]]
        self._keep_collectives(
            rows[collective_slices], [group[position] for position in collective_slices]
        )

    def _keep_collectives(self, rows: StructArray, events: list[TraceEvent]) -> None:
        """Keeps slices of collectives, up to the limits."""
        trace, columns = self._trace, ("name", "lane", "start", "duration", "signature")
        fields = (rows[name].tolist() for name in columns)
        kept = trace.collective_slices
        for name, lane, start, duration, signature, event in zip(*fields, events, strict=True):
            args = bytes(event.args)
            self._args_bytes += len(args)
            if len(kept) == MAX_COLLECTIVES or self._args_bytes > _MAX_COLLECTIVE_ARGS_BYTES:
                trace.counts["unread_collectives"] += 1
                continue
            end = start + max(0, duration)
            kept.append(CollectiveSlice(trace.text(name), lane, start, end, signature, args))


class _Streams(dict[tuple[Any, ...], int]):
    """Numbers of lanes, by process, thread, device and stream of an event."""

    def __init__(self, lanes: Lanes) -> None:
        super().__init__()
        self._lanes = lanes

    def __missing__(self, key: tuple[Any, ...]) -> int:
        pid, tid, device, stream = key
        # A text names the worker of a merged trace: its devices are others.
        first = pid if device is None or isinstance(pid, str) else device
        second = tid if stream is None else stream
        number = self._lanes[first, second, True]
        if len(self) < _MAX_CACHED_STREAMS and not isinstance(tid, str):
            self[key] = number
        return number


class _Names:
    """Interprets the names of a trace, indexed by their numbers."""

    def __init__(self, trace: Trace) -> None:
        self._texts = trace.texts.texts
        self._kinds = np.empty((0, 2), np.uint8)
        self._special = np.empty(0, bool)
        self.phases: dict[int, tuple[PhaseKind, str]] = {}

    def kinds(self) -> NDArray[np.uint8]:
        """Returns the kind of each name: column 0 without a forward thread id, column 1 with."""
        new = self._texts[len(self._kinds) :]
        if new:
            found = [[function_kind(text, forward) for forward in (0, 1)] for text in new]
            self._kinds = np.concatenate([self._kinds, np.array(found, np.uint8)])
        return self._kinds

    def special(self) -> NDArray[np.bool_]:
        """Returns True for each name of a collective or of one of the `phases`."""
        first = len(self._special)
        new = self._texts[first:]
        if new:
            found = {n: phase_of(text) for n, text in enumerate(new, first)}
            self.phases.update({n: phase for n, phase in found.items() if phase is not None})
            matches = [
                n in self.phases or t.startswith(COLLECTIVE_PREFIXES)
                for n, t in enumerate(new, first)
            ]
            self._special = np.concatenate([self._special, np.array(matches)])
        return self._special


class _Signatures(dict[tuple[bytes, ...], int]):
    """Numbers the shapes and dtypes of inputs, by their texts in the trace."""

    def __init__(self, trace: Trace) -> None:
        super().__init__({(b"", b""): 0})
        self._trace = trace
        self._known = {("", ""): 0}
        self._size = 0

    def of(self, args: list[Args]) -> NDArray[np.uint32]:
        """Returns the number of each event's signature; 0: none."""
        dims = map(bytes, [one.dims for one in args])
        types = map(bytes, [one.types for one in args])
        return _numbers(self, zip(dims, types, strict=True), len(args))

    def __missing__(self, written: tuple[bytes, bytes]) -> int:
        key: tuple[bytes, ...] = written
        if len(written[0]) + len(written[1]) > _MAX_KEY_BYTES:
            key = tuple(blake2b(one, digest_size=16).digest() for one in written)
            if key in self:
                return self[key]
        found = signature_of(*written)
        number = self._known.get(found)
        if number is None:
            self._size += sum(map(len, found))
            if len(self._known) == MAX_INPUT_SIGNATURES or self._size > MAX_SIGNATURE_CHARS:
                self._trace.counts["unread_signatures"] += 1
                return 0
            number = self._known[found] = len(self._trace.signatures)
            self._trace.signatures.append(found)
        if len(self) < MAX_INPUT_SIGNATURES:
            self[key] = number
        return number


def _has_shapes(texts: bytes) -> bool:
    """Returns whether arguments may have what signatures are made of, which many traces lack."""
    return b"Input " in texts or b"\\u" in texts


def _numbers(known: dict[Any, int], keys: Iterable[Any], count: int = -1) -> NDArray[np.uint32]:
    """Returns the number of each key; a new key gets the next one."""
    return np.fromiter(map(known.__getitem__, keys), np.uint32, count)


def _integers(values: list[Any]) -> NDArray[np.int64]:
    """Returns numbers as int64; NONE for those that do not fit."""
    try:
        return np.array(values, np.int64)
    except OverflowError:
        return np.array([one if abs(one) < 1 << 63 else NONE for one in values], np.int64)
