"""Reads pickles of plain values; code in a pickle never runs."""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .import_limits import ImportRejected

MAX_PICKLE_BYTES = 64 << 20

MAX_INSTRUCTIONS = 4_000_000

_PICKLED_FRAMING = frozenset({"PROTO", "FRAME"})

_PICKLED_VALUES = frozenset(
    [
        "BININT",
        "BININT1",
        "BININT2",
        "LONG1",
        "BINFLOAT",
        "BINUNICODE",
        "SHORT_BINUNICODE",
        "BINUNICODE8",
        "BINBYTES",
        "SHORT_BINBYTES",
        "BINSTRING",
        "SHORT_BINSTRING",
    ]
)

_PICKLED_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
}

_PICKLED_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}

_MARK = object()


def plain_pickle(path: Path, data: bytes) -> Any:
    """Returns the value of a pickle of plain values. Raises ImportRejected for any other."""
    if len(data) > MAX_PICKLE_BYTES:
        raise ImportRejected(
            f"{path}: is a pickle of more than {MAX_PICKLE_BYTES >> 20} MB, expected a "
            "flight-recorder dump"
        )
    machine = _Machine()
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if count == MAX_INSTRUCTIONS:
                raise ImportRejected(
                    f"{path}: is a pickle of more than {MAX_INSTRUCTIONS} instructions, expected "
                    "a flight-recorder dump"
                )
            if not machine.do(opcode.name, argument):
                raise ImportRejected(
                    f"{path}: is a pickle that holds more than plain values ({opcode.name}), which "
                    "could run code; expected a flight-recorder dump"
                )
        (value,) = machine.stack
    except (ValueError, TypeError, IndexError, KeyError, OverflowError, AttributeError) as error:
        if isinstance(error, ImportRejected):
            raise
        raise ImportRejected(
            f"{path}: is not a complete pickle, expected a flight-recorder dump; the file is "
            "damaged"
        ) from None
    return value


class _Machine:
    """Stack and memo of a pickle."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def do(self, name: str, argument: Any) -> bool:
        """Executes one instruction; returns False for one that does not build plain values."""
        stack = self.stack
        if name in _PICKLED_VALUES:
            stack.append(argument)
        elif name in _PICKLED_CONSTANTS:
            stack.append(_PICKLED_CONSTANTS[name]())
        elif name in ("BINPUT", "LONG_BINPUT"):
            self._memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        elif name == "MARK":
            stack.append(_MARK)
        elif name in ("SETITEMS", "SETITEM"):
            self._set(self._items() if name == "SETITEMS" else self._last(2))
        elif name in ("APPENDS", "APPEND"):
            items = self._items() if name == "APPENDS" else self._last(1)
            _checked(list, stack[-1]).extend(items)
        elif name == "TUPLE":
            stack.append(tuple(self._items()))
        elif name in _PICKLED_TUPLES:
            stack.append(tuple(self._last(_PICKLED_TUPLES[name])))
        else:
            return name in _PICKLED_FRAMING or name == "STOP"
        return True

    def _set(self, items: list[Any]) -> None:
        target = _checked(dict, self.stack[-1])
        for key, value in zip(items[::2], items[1::2], strict=True):
            # Hashing a nested tuple can take time exponential in its depth.
            if type(key) not in (str, bytes, int):
                raise TypeError("expected a plain key")
            target[key] = value

    def _items(self) -> list[Any]:
        """Pops the values above the last mark."""
        stack = self.stack
        for place in range(len(stack) - 1, -1, -1):
            if stack[place] is _MARK:
                items = stack[place + 1 :]
                del stack[place:]
                return items
        raise ValueError("no mark")

    def _last(self, count: int) -> list[Any]:
        items = self.stack[-count:]
        if len(items) < count or _MARK in items:
            raise ValueError("too few values")
        del self.stack[-count:]
        return items


def _checked(kind: type[Any], value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"expected a {kind.__name__}")
    return value
