"""Reads a trace of the Chrome format (torch.profiler, VizTracer, Perfetto) into rows.

Every event read is counted under exactly one word of `Trace.counts`: `imported_...`, or
`dropped_...` with the reason.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import msgspec
import numpy as np

from .begin_end_events import Pairing
from .complete_events import Complete
from .decompress import Blocks
from .errors import Refused
from .events import Event, Label, decode_events, decode_one, most_values
from .flight_recorder import take_dump
from .json_stream import Document, Member
from .kineto import alike
from .lanescope_export import Exported, is_export
from .limits import LONGEST_KEPT, MOST_VALUES
from .other_events import TOLD_ELSEWHERE, Singles
from .pickles import LONGEST, plain_pickle
from .spill import ARROW, SLICE, VALUE, Lanes, Spill, Texts, Trace
from .timestamps import I64, Flags, exact_ns

READ = "read_events"
_PICKLE = b"\x80"
"""First byte of a pickle of protocol 2 and later."""

_TOLD = "told elsewhere"
_TOGETHER = {
    phase: phases[0] for phases in ("BE", "beSF", "iIRPnT", "stf", "Mc") for phase in phases
}
"""Kind of an event -> that of all which are taken together with it, in the order of the file."""

_KEPT = frozenset(
    {
        "schemaVersion",
        "distributedInfo",
        "deviceProperties",
        "baseTimeNanoseconds",
        "host_name",
        "hostname",
        "viztracer_metadata",
        "displayTimeUnit",
        "traceName",
        "otherData",
        "entries",
        "pg_config",
        "pg_status",
    }
)
"""Members of the document that are looked at."""


def read_file(path: Path, folder: Path) -> Trace:
    """What is in a file, trace or dump; rows go to files in `folder`. Raises Refused, OSError."""
    blocks = Blocks(path)
    chunks = iter(blocks)
    first = next(chunks, b"").removeprefix(BOM_UTF8)
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
            path,
            "chrome",
            Texts(path),
            Lanes(path),
            Spill(folder / "slices", SLICE, path),
            Spill(folder / "values", VALUE, path),
            Spill(folder / "arrows", ARROW, path),
            Spill(folder / "launches", ARROW, path),
        )
        self._complete = Complete(self.trace)
        self._pairing = Pairing(self.trace)
        self._singles = Singles(self.trace)
        self._exported = Exported(self.trace, self._pairing)
        self._kept_bytes = self._kept_values = 0
        singles = self._singles
        self._handlers: dict[str, Callable[[list[Event], I64, Flags], None]] = {
            "B": self._pairing.threads,
            "b": self._asynchronous,
            "i": singles.marks,
            "s": singles.arrows,
            "C": singles.counters,
        }

    def member(self, member: Member) -> None:
        """A member of the document beside its events."""
        if member.name not in _KEPT and member.value is not None:
            return
        value = member.value or b""
        self._kept_bytes += len(value)
        self._kept_values += most_values(value)
        few = self._kept_bytes <= LONGEST_KEPT and self._kept_values <= MOST_VALUES
        try:
            self.trace.metadata[member.name] = msgspec.json.decode(value if few else b"")
        except (ValueError, RecursionError):
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
        for (phase, category), group in self._sorted(events):
            if phase == "X":
                self._complete.take(category, group)
            elif phase == "M":
                self._singles.metadata(group)
                counts["imported_metadata"] += len(group)
            elif phase == _TOLD:
                counts["imported_arrows"] += len(group)
            elif (handler := self._handlers.get(phase)) is None:
                counts["dropped_unsupported"] += len(group)
            else:
                start, bad = exact_ns([event.ts for event in group])
                counts["dropped_no_time"] += int(bad.sum())
                handler(group, start, bad)

    def _sorted(self, events: list[Event]) -> Iterator[tuple[tuple[str, str], list[Event]]]:
        """Events that are taken in together, in their order, and what they are."""
        sorts = _Sorts()
        keys = zip([event.ph for event in events], [event.cat for event in events], strict=True)
        codes = np.fromiter(map(sorts.__getitem__, keys), np.int32, len(events))
        found: dict[tuple[str, str], int] = sorts.found
        if len(found) < 2:
            yield from zip(found, [events], strict=False)
            return
        ordered = [events[i] for i in np.argsort(codes, kind="stable").tolist()]
        ends = np.cumsum(np.bincount(codes, minlength=len(found))).tolist()
        for sort, begin, end in zip(found, [0, *ends], ends, strict=False):
            yield sort, ordered[begin:end]

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


class _Sorts(dict[tuple[str, Label], int]):
    """Numbers of what events are: by their phase (one for all that one handler takes) and category
    as a trace writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[tuple[str, str], int] = {}

    def __missing__(self, key: tuple[str, Label]) -> int:
        phase, category = key
        if phase == "X":
            sort = phase, alike(category)
        elif _TOGETHER.get(phase) == "s" and category in TOLD_ELSEWHERE:
            sort = _TOLD, ""
        else:
            sort = _TOGETHER.get(phase, phase), ""
        self[key] = number = self.found.setdefault(sort, len(self.found))
        return number
