"""What `lanescope export --to perfetto` writes, beside what is in every trace.

Phases with their kinds, and collectives as asynchronous slices that carry group and number.
"""

from __future__ import annotations

from typing import Any

from ..format.record_kinds import PhaseKind
from .begin_end_events import Pairing
from .events import Event, Label, decode_plain
from .limits import MOST_CALLS
from .spill import PHASE, USER, Call, Trace
from .timestamps import I64, MOST_NS, Flags

LAUNCH = "launch"
"""Category of arrows from the call that launched an activity."""

_LONGEST = 2000
"""Letters of a text."""


def is_export(about: Any) -> bool:
    """Whether a trace says that it was exported from a run."""
    return isinstance(about, dict) and about.get("recorded by") == "LaneScope"


def phase_kind(args: dict[str, Any]) -> int:
    """The kind of a slice of category phase; a range of the program where it is of none."""
    name = args.get("kind")
    known = isinstance(name, str) and name in PhaseKind.__members__
    return PHASE + PhaseKind[name] if known and isinstance(name, str) else USER


class Exported:
    """Collectives that begin and end by their id, and carry their number."""

    def __init__(self, trace: Trace, others: Pairing) -> None:
        self._trace, self._others = trace, others
        self._open: dict[tuple[Label, str], tuple[Event, int, dict[str, Any]]] = {}
        self._calls: list[Call] = []

    def collectives(self, group: list[Event], start: I64, bad: Flags) -> None:
        """Events of category collective, in their order; those without a number are slices."""
        plain = []
        for position, (event, at) in enumerate(zip(group, start.tolist(), strict=True)):
            key = event.pid, str(event.id)
            if bad[position]:
                continue
            if event.ph == "b":
                args = decode_plain(bytes(event.args))
                many = len(self._open) + len(self._calls) >= MOST_CALLS
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
        """What never ended, and all calls in their order."""
        for event, start, args in self._open.values():
            self._add(event, start, args, None)
        self._open.clear()
        if self._calls:
            self._trace.calls = sorted(self._calls, key=lambda call: call.start)

    def _add(self, event: Event, start: int, args: dict[str, Any], end: int | None) -> None:
        size = _whole(args, "group size", 1 << 31)
        call = _whole(args, "call ns", MOST_NS)
        lane = self._trace.lanes[event.pid, event.tid, False]
        name = self._trace.text(self._trace.texts[event.name])
        self._calls.append(
            Call(
                name=name,
                lane=lane,
                start=start,
                returned=end if call is None else start + call,
                complete=end if args.get("complete", True) else None,
                group=_text(args, "group"),
                group_size=size or None,
                shapes=_text(args, "shapes"),
                dtypes=_text(args, "dtypes"),
                bytes=_whole(args, "bytes", 1 << 62) or 0,
                peer=_whole(args, "peer", 1 << 31),
                sequence=args["sequence"],
                reduce_op=_text(args, "reduce op"),
            )
        )


def _whole(args: dict[str, Any], name: str, limit: int) -> int | None:
    """A number of 0 to below a limit."""
    value = args.get(name)
    return value if type(value) is int and 0 <= value < limit else None


def _text(args: dict[str, Any], name: str) -> str:
    value = args.get(name)
    return value[:_LONGEST].encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _numbered(args: dict[str, Any]) -> bool:
    known = _whole(args, "sequence", 1 << 62) is not None
    return known and isinstance(args.get("group"), str)
