"""Reads the parts of a trace that only `lanescope export --to perfetto` writes.

These are phases with their kinds, and collectives as asynchronous slices with group and number.
"""

from __future__ import annotations

from typing import Any

from ...format.record_kinds import PhaseKind
from ..base import Dialect
from ..events import Label, TraceEvent, decode_plain
from ..limits import MAX_COLLECTIVES
from ..spill import PHASE_KIND, USER, CollectiveCall, Trace
from ..timestamps import MAX_NS, BoolArray, Int64Array
from .begin_end_events import BeginEndPairing

_MAX_TEXT_CHARS = 2000


def _is_export(metadata: dict[str, Any]) -> bool:
    about = metadata.get("otherData")
    return isinstance(about, dict) and about.get("recorded by") == "LaneScope"


DIALECT = Dialect("lanescope", _is_export)


def phase_kind(args: dict[str, Any]) -> int:
    """Returns the kind of a slice of category phase; USER where it names none."""
    name = args.get("kind")
    known = isinstance(name, str) and name in PhaseKind.__members__
    return PHASE_KIND + PhaseKind[name] if known and isinstance(name, str) else USER


class ExportedCollectives:
    """Takes collectives, which begin and end by id and carry their number."""

    def __init__(self, trace: Trace, others: BeginEndPairing) -> None:
        self._trace, self._others = trace, others
        self._open: dict[tuple[Label, str], tuple[TraceEvent, int, dict[str, Any]]] = {}
        self._calls: list[CollectiveCall] = []

    def collectives(self, group: list[TraceEvent], start: Int64Array, bad: BoolArray) -> None:
        """Takes events of category collective, in order; those without a number become slices."""
        plain = []
        for position, (event, at) in enumerate(zip(group, start.tolist(), strict=True)):
            key = event.pid, str(event.id)
            if bad[position]:
                continue
            if event.ph == "b":
                args = decode_plain(bytes(event.args))
                many = len(self._open) + len(self._calls) >= MAX_COLLECTIVES
                if key not in self._open and _numbered(args) and not many:
                    self._open[key] = event, at, args
                    self._trace.counts["imported_calls"] += 1
                    continue
            elif event.ph == "e" and key in self._open and self._open[key][1] <= at:
                self._add(*self._open.pop(key), at)
                self._trace.counts["imported_ends"] += 1
                continue
            plain.append(position)
        if plain:
            self._others.asynchronous([group[i] for i in plain], start[plain], bad[plain])

    def finish(self) -> None:
        """Adds calls that never ended, and hands all calls to the trace by start."""
        for event, start, args in self._open.values():
            self._add(event, start, args, None)
        self._open.clear()
        if self._calls:
            self._trace.calls = sorted(self._calls, key=lambda call: call.start)

    def _add(self, event: TraceEvent, start: int, args: dict[str, Any], end: int | None) -> None:
        size = _bounded_integer(args, "group size", 1 << 31)
        call = _bounded_integer(args, "call ns", MAX_NS)
        lane = self._trace.lanes[event.pid, event.tid, False]
        name = self._trace.text(self._trace.texts[event.name])
        self._calls.append(
            CollectiveCall(
                name=name,
                lane=lane,
                start=start,
                returned=end if call is None else start + call,
                complete=end if args.get("complete", True) else None,
                group=_text(args, "group"),
                group_size=size or None,
                shapes=_text(args, "shapes"),
                dtypes=_text(args, "dtypes"),
                bytes=_bounded_integer(args, "bytes", 1 << 62) or 0,
                peer=_bounded_integer(args, "peer", 1 << 31),
                sequence=args["sequence"],
                reduce_op=_text(args, "reduce op"),
            )
        )


def _bounded_integer(args: dict[str, Any], name: str, limit: int) -> int | None:
    """Returns an integer argument of 0 to below `limit`, else None."""
    value = args.get(name)
    return value if type(value) is int and 0 <= value < limit else None


def _text(args: dict[str, Any], name: str) -> str:
    value = args.get(name)
    text = value[:_MAX_TEXT_CHARS] if isinstance(value, str) else ""
    return text.encode("utf-8", "replace").decode()


def _numbered(args: dict[str, Any]) -> bool:
    known = _bounded_integer(args, "sequence", 1 << 62) is not None
    return known and isinstance(args.get("group"), str)
