"""Decodes events of the Chrome trace format, only the fields that are used.

The format is "Trace Event Format", Google 2016. Tools write texts, numbers and ids as any JSON
type.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import chain
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

_T = TypeVar("_T")

_MAX_VALUES = 1 << 20
"""JSON values of an event that is decoded alone."""

_MAX_DIGITS = 40

Label = int | str | float | None
"""A process, thread or id as a trace writes it."""


class TraceEvent(msgspec.Struct, gc=False):
    """One event; `ts` and `args` are bytes of the file."""

    ph: str = ""
    name: Label = None
    cat: Label = None
    pid: Label = None
    tid: Label = None
    ts: Raw = Raw(b"")
    dur: float | int | None = None
    id: Label | dict[str, Label] = None
    id2: dict[str, Label] | None = None
    s: Label = None
    bind_id: Label = None
    flow_in: Any = None
    flow_out: Any = None
    args: Raw = Raw(b"{}")


class Args(msgspec.Struct, gc=False):
    """Kineto's arguments of an operator, a device activity or the call that launched it."""

    sequence: int = msgspec.field(name="Sequence number", default=-1)
    forward_thread: int = msgspec.field(name="Fwd thread id", default=0)
    dims: Raw = msgspec.field(name="Input Dims", default=Raw(b""))
    types: Raw = msgspec.field(name="Input type", default=Raw(b""))
    correlation: int = -1
    device: int | str | None = None
    stream: int | str | None = None


class CommunicationArgs(msgspec.Struct, gc=False):
    """Kineto's arguments of a collective; any may be missing."""

    name: str = msgspec.field(name="Collective name", default="")
    group: Label = msgspec.field(name="Process Group Name", default=None)
    group_id: Label = msgspec.field(name="Process Group ID", default=None)
    group_size: int = msgspec.field(name="Group size", default=0)
    dtype: str = ""
    sent: int = msgspec.field(name="In msg nelems", default=-1)
    target: Label = msgspec.field(name="Dst Rank", default=None)
    source: Label = msgspec.field(name="Src Rank", default=None)
    concrete: list[Any] = msgspec.field(name="Concrete Inputs", default=[])


class MemoryArgs(msgspec.Struct, gc=False):
    """torch's arguments of a memory event, of any JSON type."""

    allocated: Any = msgspec.field(name="Total Allocated", default=None)
    reserved: Any = msgspec.field(name="Total Reserved", default=None)
    device: Any = msgspec.field(name="Device Type", default=None)
    index: Any = msgspec.field(name="Device Id", default=None)


_EVENTS = msgspec.json.Decoder(list[TraceEvent])
_ARGS = msgspec.json.Decoder(list[Args])
_ONE_ARGS = msgspec.json.Decoder(Args)
_COMMUNICATION = msgspec.json.Decoder(CommunicationArgs)
_NO_ARGS = Args()
_NUMBERS = msgspec.json.Decoder(list[dict[str, float]])
_MEMORY = msgspec.json.Decoder(list[MemoryArgs])
_ONE_MEMORY = msgspec.json.Decoder(MemoryArgs)


_DECODED_ALONE = (
    "ph",
    "name",
    "cat",
    "pid",
    "tid",
    "dur",
    "s",
    "bind_id",
    "flow_in",
    "flow_out",
)


def decode_events(data: bytes) -> list[TraceEvent]:
    """Returns events. Raises ValueError for invalid JSON, TypeError for other elements."""
    try:
        return _EVENTS.decode(data)
    except msgspec.ValidationError as error:
        raise TypeError(str(error)) from None


def decode_one(data: bytes) -> TraceEvent | None:
    """Returns the readable fields of an event that msgspec cannot decode; None: not an object.

    Python's decoder accepts NaN, which JSON lacks. Text that is not UTF-8 is repaired.
    """
    if max_values(data) > _MAX_VALUES:
        return None
    try:
        found = json.loads(data.decode("utf-8", "replace"), parse_float=_Text, parse_int=_Text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    known: dict[str, Any] = {
        name: _parsed_number(found[name])
        for name in _DECODED_ALONE
        if isinstance(found.get(name), (str, int, float))
    }
    if "dur" in found:
        known["dur"] = _length(known.get("dur"))
    event = TraceEvent(**{**known, "ph": str(known.get("ph", ""))})
    event.ts = Raw(str(found.get("ts", "")).encode("ascii", "replace"))
    if isinstance(found.get("args"), dict):
        event.args = Raw(json.dumps(_jsonable(found["args"])).encode())
    if isinstance(found.get("id"), (str, int, float)):
        event.id = _parsed_number(found["id"])
    return event


def max_values(data: bytes) -> int:
    """Returns an upper bound of the values in JSON: each but the first follows one of these."""
    return 1 + sum(map(data.count, (b",", b":", b"[", b"{")))


def decode_args(raw: list[Raw], joined: bytes) -> list[Args]:
    """Returns Kineto's arguments of each event; defaults where they do not decode.

    `joined` is `raw` with zero bytes in between.
    """
    return _each(raw, _ARGS, _one_args, joined)


def decode_memory(raw: list[Raw]) -> list[MemoryArgs]:
    """Returns the memory arguments of each event."""
    return _each(raw, _MEMORY, _one_memory)


def decode_numbers(raw: list[Raw]) -> list[dict[str, float]]:
    """Returns the numbers among each event's arguments, those that are written as texts too."""
    found = _each(raw, _NUMBERS, _one_numbers)
    largest = max(map(abs, chain.from_iterable(one.values() for one in found)), default=0.0)
    return found if is_number(largest) else [_one_numbers(one) for one in raw]


def is_number(value: Any) -> bool:
    """Returns True for a number that can be drawn, not infinity or NaN."""
    return isinstance(value, (int, float)) and abs(value) < 1e300


def decode_communication(raw: bytes) -> CommunicationArgs:
    """Returns Kineto's arguments of a collective."""
    try:
        return _COMMUNICATION.decode(raw or b"{}")
    except (ValueError, RecursionError):
        return CommunicationArgs()


def decode_plain(raw: bytes | Raw) -> dict[str, Any]:
    """Returns arguments as plain values; empty where there are none or they do not decode."""
    try:
        found = msgspec.json.decode(raw) if bytes(raw) else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _each(
    raw: list[Raw],
    together: msgspec.json.Decoder[list[_T]],
    alone: Callable[[Raw], _T],
    joined: bytes | None = None,
) -> list[_T]:
    """Decodes values together, which is faster, or one by one where that fails."""
    try:
        texts = b",".join(raw) if joined is None else joined.replace(b"\0", b",")
        return together.decode(b"[%b]" % texts)
    except (ValueError, RecursionError):
        return [alone(one) for one in raw]


def _one_numbers(raw: Raw) -> dict[str, float]:
    found = {key: _written_number(value) for key, value in decode_plain(raw).items()}
    return {key: value for key, value in found.items() if value is not None}


def _written_number(value: Any) -> float | None:
    """Returns a number, or that of a text; None for anything else."""
    if isinstance(value, str) and len(value) <= _MAX_DIGITS:
        try:
            value = float(value)
        except ValueError:
            return None
    return float(value) if is_number(value) else None


def _one_memory(raw: Raw) -> MemoryArgs:
    try:
        return _ONE_MEMORY.decode(raw)
    except (ValueError, RecursionError):
        return MemoryArgs()


def _one_args(raw: Raw) -> Args:
    try:
        return _ONE_ARGS.decode(raw)
    except (ValueError, RecursionError):
        return _NO_ARGS


class _Text(str):
    """A number as written in the file."""


def _parsed_number(value: Any) -> Any:
    if not isinstance(value, _Text):
        return value
    try:
        return int(value) if value.lstrip("-").isdigit() and len(value) < 20 else float(value)
    except ValueError:
        return str(value)


def _length(value: Any) -> float | int:
    """Returns a duration as a number; -1, which is rejected later, where it is not one."""
    number = _parsed_number(_Text(value)) if isinstance(value, str) else value
    finite = isinstance(number, (int, float)) and abs(number) < float("inf")
    return number if finite else -1.0


def _jsonable(value: Any) -> Any:
    """Returns values with JSON's numbers only; NaN and infinity become null."""
    if isinstance(value, _Text):
        number = _parsed_number(value)
        return number if abs(number) < float("inf") else None
    if isinstance(value, dict):
        return {key: _jsonable(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_jsonable(one) for one in value]
    return None if isinstance(value, float) else value
