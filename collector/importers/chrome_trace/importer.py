"""Reads the Chrome trace format (torch.profiler, VizTracer, Perfetto) into rows.

Every event is counted under exactly one key of `Trace.counts`: `imported_...`, or `dropped_...`
with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from ...format.array_types import BoolArray, Int64Array
from ...format.exported_events import MANIFEST_EVENT, TABLE_EVENT
from ...format.names import ANY_TOOL
from ...format.record_kinds import ThreadKind
from .. import kineto
from ..base import Dialect, Importer
from ..decompress import Blocks
from ..events import Label, TraceEvent, decode_events, decode_one
from ..exported_run import ExportedRun
from ..json_stream import Document, Member, Metadata
from ..kineto import merged_category
from ..spill import Trace
from ..timestamps import exact_ns
from .arrows import REDUNDANT_ARROWS, add_arrows
from .begin_end_events import BeginEndPairing
from .complete_events import CompleteEvents
from .joined_parts import append
from .other_events import OtherEvents

READ = "read_events"

_REDUNDANT = "redundant arrows"
_TOGETHER = {
    phase: phases[0] for phases in ("BE", "beSF", "iIRPnT", "stf", "Mc") for phase in phases
}
"""Phase of an event -> phase of the group that it is handled with, in the order of the file."""

_MEMBERS = frozenset(
    {
        "schemaVersion",
        "distributedInfo",
        "baseTimeNanoseconds",
        "host_name",
        "hostname",
        "viztracer_metadata",
    }
)
"""Members of the document that are kept."""

DIALECTS = (
    Dialect("viztracer", lambda metadata: "viztracer_metadata" in metadata, ThreadKind.python),
    kineto.DIALECT,
)


class ChromeTrace(Importer):
    """Reads the Chrome trace format, which torch.profiler, VizTracer and Perfetto write."""

    name = ANY_TOOL

    def sniff(self, first_block: bytes) -> bool:
        """Returns True: `read` says what is wrong with a file that no importer knows."""
        return True

    def read(self, path: Path, folder: Path) -> Trace | None:
        """Returns a trace; None for a JSON document without events."""
        blocks = Blocks(path)
        reader = EventReader(Trace.create(path, folder, self.name))
        document = Document(path, blocks, decode_events)
        reader.read(document)
        if not document.found_events:
            return None
        trace = reader.finished()
        trace.truncated = document.truncated or blocks.truncated
        return trace


class EventReader:
    """Dispatches events by phase and category, many at a time."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.metadata = Metadata(_MEMBERS, trace.counts)
        self._complete = CompleteEvents(self.trace)
        self._pairing = BeginEndPairing(self.trace)
        self._singles = OtherEvents(self.trace)
        singles = self._singles
        self._handlers: dict[str, Callable[[list[TraceEvent], Int64Array, BoolArray], None]] = {
            "B": self._pairing.threads,
            "b": self._pairing.asynchronous,
            "i": singles.marks,
            "s": partial(add_arrows, self.trace),
            "C": singles.counters,
        }

    def read(self, document: Document[list[TraceEvent]]) -> None:
        """Takes all that is in a document."""
        for part in document.parts():
            if isinstance(part, Member):
                self.metadata.add(part)
            elif part.decoded is not None:
                self.take(part.decoded)
            else:
                self.take_single(part.single)

    def append(self, other: EventReader) -> None:
        """Takes what another one read of the next part of the file."""
        numbers = append(self.trace, other.trace)
        self._pairing.append(other._pairing, numbers)
        self._singles.append(other._singles)
        self.metadata.update(other.metadata)

    def take_single(self, data: bytes) -> None:
        """Takes an event that could not be decoded together with others."""
        event = decode_one(data)
        if event is None:
            self.trace.counts[READ] += 1
            self.trace.counts["dropped_malformed"] += 1
        else:
            self.take([event])

    def take(self, events: list[TraceEvent]) -> None:
        """Takes some events, in the order of the file."""
        counts = self.trace.counts
        counts[READ] += len(events)
        for (phase, category), group in _grouped(events):
            if phase != "M" and self.trace.exported is not None:
                continue  # the tables say more
            if phase == "X":
                self._complete.take(category, group)
            elif phase == "M":
                self._metadata(group)
            elif phase == _REDUNDANT:
                counts["imported_repeated_arrows"] += len(group)
            elif (handler := self._handlers.get(phase)) is None:
                counts["dropped_unsupported"] += len(group)
            else:
                start, bad = exact_ns([event.ts for event in group])
                counts["dropped_no_time"] += int(bad.sum())
                handler(group, start, bad)

    def finished(self) -> Trace:
        """Returns the trace, after all events were taken."""
        self._pairing.finish()
        trace = self.trace
        trace.metadata = self.metadata
        for dialect in DIALECTS:
            if dialect.wrote(self.metadata):
                trace.format, trace.thread_kind = dialect.name, dialect.thread_kind
                break
        self._singles.name_lanes()
        trace.counts["unread_ends_of_names_longer_than_64_KB"] += trace.texts.cut
        trace.counts = type(trace.counts)({k: v for k, v in trace.counts.items() if v})
        return trace

    def _metadata(self, group: list[TraceEvent]) -> None:
        """Takes metadata; that of `lanescope export` is the tables of a run."""
        others = [event for event in group if event.name not in (MANIFEST_EVENT, TABLE_EVENT)]
        self._singles.metadata(others)
        if len(others) < len(group):
            trace = self.trace
            trace.exported = trace.exported or ExportedRun(trace.path, trace.slices.path.parent)
            for event in group:
                if event.name in (MANIFEST_EVENT, TABLE_EVENT):
                    trace.exported.take(event)


def _grouped(events: list[TraceEvent]) -> Iterable[tuple[tuple[str, str], list[TraceEvent]]]:
    """Returns events that are handled together, with their phase and category."""
    groups = _Groups()
    slices = _Slices(groups)
    for event in events:
        if event.ph == "X":
            slices[event.cat](event)
        else:
            groups[event.ph, event.cat](event)
    return groups.found.items()


class _Groups(dict[tuple[str, Label], Callable[[TraceEvent], None]]):
    """Adds an event to its group, by phase and category as the trace writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[tuple[str, str], list[TraceEvent]] = {}

    def __missing__(self, key: tuple[str, Label]) -> Callable[[TraceEvent], None]:
        phase, category = key
        if phase == "X":
            group = phase, merged_category(category)
        elif _TOGETHER.get(phase) == "s" and category in REDUNDANT_ARROWS:
            group = _REDUNDANT, ""
        else:
            group = _TOGETHER.get(phase, phase), ""
        self[key] = add = self.found.setdefault(group, []).append
        return add


class _Slices(dict[Label, Callable[[TraceEvent], None]]):
    """Adds a complete event by its category alone: most events are complete ones."""

    def __init__(self, groups: _Groups) -> None:
        super().__init__()
        self._groups = groups

    def __missing__(self, category: Label) -> Callable[[TraceEvent], None]:
        self[category] = add = self._groups["X", category]
        return add
