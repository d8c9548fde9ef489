"""Reads a trace of the Chrome format (torch.profiler, VizTracer, Perfetto) into rows.

Every event read is counted under exactly one word of `Trace.counts`: `imported_...`, or
`dropped_...` with the reason.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..activities import ON_DEVICE
from ..kinds import PhaseKind
from .blocks import Blocks
from .document import Document, Member
from .events import Args, Event, Label, decode_args, decode_events, decode_one, decode_plain
from .exported import Exported, is_export, phase_kind
from .flight import take_dump
from .instants import I64, Flags, exact_ns, rounded_ns
from .kineto import TALKS, WITH_ARGS, function_kind, kind_of, on_stream, phase_of, signature_of
from .pairing import Pairing
from .pickles import LONGEST, plain_pickle
from .refused import Refused
from .rows import (
    ARROW,
    FUNCTION,
    LAUNCHING,
    NONE,
    PHASE,
    SLICE,
    UNFINISHED,
    USER,
    VALUE,
    Lanes,
    Spill,
    Talk,
    Texts,
    Trace,
    new_slices,
)
from .singles import TOLD_ELSEWHERE, Singles

READ = "read_events"
_PICKLE = b"\x80"
"""First byte of a pickle of protocol 2 and later."""

_ARROWS = frozenset("stf")

_MOST_TALKS = 500_000
_MOST_SIGNATURES = 1 << 20
_KEPT = frozenset(
    {
        "schemaVersion", "distributedInfo", "deviceProperties", "baseTimeNanoseconds", "host_name",
        "hostname", "viztracer_metadata", "displayTimeUnit", "traceName", "otherData", "entries",
        "pg_config", "pg_status",
    }
)  # fmt: skip
"""Members of the document that are looked at."""


def read_file(path: Path, folder: Path) -> Trace:
    """What is in a file, trace or dump; rows go to files in `folder`. Raises Refused, OSError."""
    blocks = Blocks(path)
    chunks = iter(blocks)
    first = next(chunks, b"")
    reader = _Reader(path, folder)
    if first.startswith(_PICKLE):
        data = bytearray(first)
        while len(data) <= LONGEST and (chunk := next(chunks, b"")):
            data += chunk
        take_dump(reader.trace, plain_pickle(path, bytes(data)))
        return reader.trace
    document = Document(path, chain([first] if first else [], chunks), decode_events)
    for part in document.parts():
        if isinstance(part, Member):
            reader.member(part)
        elif part.decoded is not None:
            reader.take(part.decoded)
        else:
            reader.take_single(part.single)
    if not document.found_events and "entries" in reader.trace.metadata:
        take_dump(reader.trace, reader.trace.metadata)
        return reader.trace
    if not document.found_events:
        raise Refused(
            f"{path}: holds no traceEvents and no entries, expected a trace of torch.profiler, "
            "VizTracer or Perfetto (JSON), or a flight-recorder dump"
        )
    trace = reader.finished()
    trace.truncated = document.truncated or blocks.truncated
    return trace


class _Reader:
    """Sorts events by what they are; most are complete slices, and these go many at a time."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.trace = Trace(
            path, "chrome", Texts(path), Lanes(path), Spill(folder / "slices", SLICE),
            Spill(folder / "values", VALUE), Spill(folder / "arrows", ARROW),
            Spill(folder / "launches", ARROW),
        )  # fmt: skip
        self._signatures: dict[tuple[bytes, bytes], int] = {(b"", b""): 0}
        self._known_signatures = {("", ""): 0}
        self._names: dict[int, tuple[bool, tuple[PhaseKind, str] | None]] = {}
        self._pairing = Pairing(self.trace)
        self._singles = Singles(self.trace)
        self._exported = Exported(self.trace, self._pairing)
        pairs, singles = self._pairing, self._singles
        self._handlers: dict[str, Callable[[list[Event], I64, Flags], None]] = {
            **dict.fromkeys("BE", pairs.threads),
            **dict.fromkeys("beSF", self._asynchronous),
            **dict.fromkeys("iIRPnT", singles.marks),
            **dict.fromkeys("stf", singles.arrows),
            "C": singles.counters,
        }

    def member(self, member: Member) -> None:
        """A member of the document beside its events."""
        if member.name in _KEPT and member.value is not None:
            try:
                self.trace.metadata[member.name] = msgspec.json.decode(member.value)
            except (ValueError, RecursionError):
                self.trace.counts["unread_members"] += 1
        elif member.value is None:
            self.trace.counts["unread_members"] += 1

    def take_single(self, data: bytes) -> None:
        """An event that could not be decoded together with others."""
        event = decode_one(data)
        if event is None:
            self.trace.counts[READ] += 1
            self.trace.counts["dropped_malformed"] += 1
        else:
            self.take([event])

    def take(self, events: list[Event]) -> None:
        """Some events, in the order of the file."""
        counts = self.trace.counts
        counts[READ] += len(events)
        complete: defaultdict[Label, list[Event]] = defaultdict(list)
        others: defaultdict[Any, list[Event]] = defaultdict(list)
        handlers = self._handlers
        told_elsewhere = 0
        for event in events:
            phase = event.ph
            if phase == "X":
                complete[event.cat].append(event)
            elif phase in _ARROWS and event.cat in TOLD_ELSEWHERE:
                told_elsewhere += 1
            else:
                others[handlers.get(phase, phase)].append(event)
        counts["imported_arrows"] += told_elsewhere
        for category, group in complete.items():
            self._complete(category if isinstance(category, str) else "", group)
        for handler, group in others.items():
            if handler in ("M", "c"):
                self._singles.metadata(group)
                counts["imported_metadata"] += len(group)
            elif isinstance(handler, str):
                counts["dropped_unsupported"] += len(group)
            else:
                start, bad = exact_ns([bytes(event.ts) for event in group])
                counts["dropped_no_time"] += int(bad.sum())
                handler(group, start, bad)

    def finished(self) -> Trace:
        """The trace, once all events were taken."""
        self._pairing.finish()
        self._exported.finish()
        trace = self.trace
        if is_export(trace.metadata.get("otherData")):
            trace.format = "lanescope"
        elif "viztracer_metadata" in trace.metadata:
            trace.format = "viztracer"
        elif "schemaVersion" in trace.metadata or "distributedInfo" in trace.metadata:
            trace.format = "kineto"
        self._singles.name_lanes()
        trace.counts = type(trace.counts)({k: v for k, v in trace.counts.items() if v})
        return trace

    def _asynchronous(self, group: list[Event], start: I64, bad: Flags) -> None:
        """Slices by id, of which those of category collective may be what `export` wrote."""
        mine = np.array([event.cat == "collective" for event in group])
        if mine.any():
            chosen = np.flatnonzero(mine)
            self._exported.collectives([group[i] for i in chosen], start[chosen], bad[chosen])
            others = np.flatnonzero(~mine)
            group, start, bad = [group[i] for i in others], start[others], bad[others]
        self._pairing.asynchronous(group, start, bad)

    def _complete(self, category: str, group: list[Event]) -> None:
        """Slices of one category that stand in one event each."""
        trace = self.trace
        start, bad = exact_ns([bytes(event.ts) for event in group])
        duration, missing, wrong = rounded_ns([event.dur for event in group])
        trace.counts["dropped_no_time"] += int((bad | wrong).sum())
        if (bad | wrong).any():
            chosen = np.flatnonzero(~(bad | wrong))
            group = [group[i] for i in chosen.tolist()]
            start, duration, missing = start[chosen], duration[chosen], missing[chosen]
            if not group:
                return
        trace.counts["imported_slices"] += len(group)
        rows = new_slices(len(group))
        rows["start"] = start
        rows["duration"] = np.where(missing, UNFINISHED, duration)
        names = trace.texts
        rows["name"] = [names[event.name] for event in group]
        kind = kind_of(category)
        rows["kind"] = kind
        args = None
        if category in WITH_ARGS or kind == LAUNCHING:
            args = decode_args([bytes(event.args) or b"{}" for event in group])
            self._describe(rows, args, kind)
        lanes = trace.lanes
        if on_stream(category):
            rows["lane"] = self._streams(category, group, args)
        else:
            rows["lane"] = [lanes[event.pid, event.tid, False] for event in group]
        if kind == LAUNCHING:
            prefix = category.partition("_")[0]
            trace.platform = prefix if prefix.isalpha() else trace.platform
        if category in ("cpu_op", "user_annotation"):
            self._by_name(rows, group, category)
        elif category == "phase":
            told = [decode_plain(bytes(event.args)) for event in group]
            rows["kind"] = [phase_kind(one) for one in told]
            rows["step"] = _steps([one.get("step") for one in told])
        trace.slices.add(rows)

    def _streams(self, category: str, group: list[Event], args: list[Args] | None) -> list[int]:
        lanes = self.trace.lanes
        if args is None or category not in ON_DEVICE:
            return [lanes[event.pid, event.tid, True] for event in group]
        return [
            lanes[
                event.pid if one.device is None else one.device,
                event.tid if one.stream is None else one.stream,
                True,
            ]
            for event, one in zip(group, args, strict=True)
        ]

    def _describe(self, rows: NDArray[np.void], args: list[Args], kind: int) -> None:
        """Fill in what the arguments tell."""
        rows["step"] = _steps([one.step for one in args])
        if kind not in (FUNCTION, USER):
            rows["correlation"] = _integers([one.correlation for one in args])
            return
        known = self._signatures
        keys = [(bytes(one.dims), bytes(one.types)) for one in args]
        rows["signature"] = [
            self._signature(key) if (number := known.get(key)) is None else number for key in keys
        ]
        if kind == FUNCTION:
            rows["sequence"] = _integers([one.sequence for one in args])
            texts = self.trace.texts.texts
            forward = np.fromiter((one.forward_thread > 0 for one in args), np.intp, len(args))
            numbers, which = np.unique(rows["name"], return_inverse=True)
            kinds = [[function_kind(texts[n], fwd) for fwd in (0, 1)] for n in numbers.tolist()]
            rows["kind"] = np.array(kinds, np.uint8)[which, forward]

    def _signature(self, key: tuple[bytes, bytes]) -> int:
        found = signature_of(*key)
        number = self._known_signatures.get(found)
        if number is None:
            if len(self.trace.signatures) == _MOST_SIGNATURES:
                self.trace.counts["unread_signatures"] += 1
                return 0
            number = self._known_signatures[found] = len(self.trace.signatures)
            self.trace.signatures.append(found)
        if len(self._signatures) < _MOST_SIGNATURES:
            self._signatures[key] = number
        return number

    def _by_name(self, rows: NDArray[np.void], group: list[Event], category: str) -> None:
        """What names alone tell: phases, and slices about collectives."""
        texts = self.trace.texts
        numbers, which = np.unique(rows["name"], return_inverse=True)
        meanings = [self._meaning(number) for number in numbers.tolist()]
        told = np.array([talks or phase is not None for talks, phase in meanings])
        for position in np.flatnonzero(told[which]).tolist():
            talks, phase = meanings[which[position]]
            if talks:
                self._note_talk(rows[position], group[position])
            elif phase is not None and category == "user_annotation":
                rows["kind"][position] = PHASE + phase[0]
                rows["name"][position] = texts[phase[1]]

    def _meaning(self, number: int) -> tuple[bool, tuple[PhaseKind, str] | None]:
        found = self._names.get(number)
        if found is None:
            text = self.trace.text(number)
            found = self._names[number] = text.startswith(TALKS), phase_of(text)
        return found

    def _note_talk(self, row: np.void, event: Event) -> None:
        talks = self.trace.talks
        if len(talks) == _MOST_TALKS:
            self.trace.counts["unread_collectives"] += 1
            return
        start, length = int(row["start"]), max(0, int(row["duration"]))
        name = self.trace.text(int(row["name"]))
        signature = int(row["signature"])
        args = bytes(event.args)
        talks.append(Talk(name, int(row["lane"]), start, start + length, signature, args))


def _integers(values: list[Any]) -> NDArray[np.int64]:
    """Numbers as int64; those that do not fit are none."""
    try:
        return np.array(values, np.int64)
    except OverflowError:
        return np.array([one if abs(one) < 1 << 63 else NONE for one in values], np.int64)


def _steps(values: list[Any]) -> NDArray[np.int64]:
    """Numbers of steps; those that cannot be are none."""
    known = _integers([one if type(one) is int else NONE for one in values])
    return np.where((known >= 0) & (known < 1 << 31), known, NONE)
