"""JSON values held against types: TypedDicts, lists, dicts, unions and plain types.

Untrusted input (a manifest) and promised output (evidence of findings) are declared as types, and
checked against these.
"""

from __future__ import annotations

import functools
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Union

import numpy as np

from lanescope.webapp.runs.errors import shown

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


class Mismatch(ValueError):
    """Says what does not fit its type, in a sentence that begins with its place."""


def plain_json(value: Any) -> Any:
    """Returns a value as JSON holds it: Python's own types, and texts for NaN and the infinities.

    Raises Mismatch for what has no such form.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise Mismatch(f"the key {shown(wrong[0])} is not text")
        return {key: plain_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_json(item) for item in value]
    if isinstance(value, float):
        return json_number(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    raise Mismatch(f"{shown(value)} is not a JSON value")


def json_number(value: float | None) -> float | str | None:
    """Returns a number as JSON may hold it: NaN and the infinities, which it may not, as texts."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def json_members(text: str | None, otherwise: str = "args") -> dict[str, Any]:
    """Returns the members of a JSON object, such as the arguments of an imported event.

    Another value, and text that is not JSON, become one member, named `otherwise`. None and ""
    have no members.
    """
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        found = text
    return found if isinstance(found, dict) else {otherwise: found}


def conform(value: object, hint: Any, where: str) -> None:
    """Checks `value` against a type. Raises Mismatch, whose sentence begins with `where`.

    Keys that a TypedDict does not name are not looked at.
    """
    _conform(value, hint, (None, where))


_Place = tuple[Any, str | int]
"""The place around a value and its key or number there: put into words only if it is wrong."""


def _conform(value: object, hint: Any, place: _Place) -> None:
    if hint is Any:
        return
    members, origin, arguments = _shape(hint)
    if members is not None:
        _expect(isinstance(value, dict), value, place, "an object")
        assert isinstance(value, dict)
        for key, inner, required in members:
            if key in value:
                item = value[key]
                # Most are plain and right: a manifest of a thousand ranks has 100,000.
                if not (type(item) is inner and _plainly_right(item)):
                    _conform(item, inner, (place, f".{key}"))
            elif required:
                raise Mismatch(f"{_named(place) or 'it'} has no {key!r}")
        return
    if origin is dict:
        _expect(isinstance(value, dict), value, place, "an object")
        assert isinstance(value, dict)
        for key, item in value.items():
            _conform(item, arguments[1], (place, f"[{key}"))
    elif origin is list:
        _expect(isinstance(value, list), value, place, "a list")
        assert isinstance(value, list)
        for position, item in enumerate(value):
            if not (type(item) is arguments[0] and _plainly_right(item)):
                _conform(item, arguments[0], (place, position))
    elif origin in (Union, types.UnionType):
        if not any(_fits(value, one) for one in arguments):
            raise Mismatch(
                f"{_named(place)} is {shown(value)}, expected one of {_names(arguments)}"
            )
    else:
        _plain(value, hint, place)


@functools.cache
def _shape(hint: Any) -> tuple[tuple[tuple[str, Any, bool], ...] | None, Any, tuple[Any, ...]]:
    """Name, type and need of each key of a TypedDict, None of another type; its origin and
    arguments."""
    members = None
    if typing.is_typeddict(hint):
        hints = typing.get_type_hints(hint)
        members = tuple((key, of, key in hint.__required_keys__) for key, of in hints.items())
    return members, typing.get_origin(hint), typing.get_args(hint)


def _plainly_right(item: object) -> bool:
    """Whether a text or a number is beyond doubt; others are looked at more closely."""
    if type(item) is str:
        return item.isascii()
    return type(item) is int and INT64_MIN <= item <= INT64_MAX


def _named(place: _Place) -> str:
    """The place of a value in words: `files["a/b"].rows`."""
    around, key = place
    if around is None:
        return str(key)
    outer = _named(around)
    if isinstance(key, int):
        return f"{outer}[{key}]"
    if key.startswith("["):
        return f"{outer}[{shown(key[1:])}]"
    return f"{outer}{key}" if outer else key[1:]


def _plain(value: object, hint: Any, place: _Place) -> None:
    if hint is float:
        # JSON of Python admits NaN and Infinity; a time computed from them is not valid. An integer
        # too large for a float would overflow later.
        good = type(value) is float and math.isfinite(value)
        good = good or (type(value) is int and abs(value) <= INT64_MAX)
        _expect(good, value, place, "a finite number")
    elif hint is int:
        good = type(value) is int and INT64_MIN <= value <= INT64_MAX
        _expect(good, value, place, "a whole number of 64 bits")
    else:
        words = {bool: "true or false", str: "a text", type(None): "null"}
        _expect(type(value) is hint, value, place, words[hint])
        if isinstance(value, str) and any(0xD800 <= ord(c) <= 0xDFFF for c in value):
            # JSON can escape half a surrogate pair, which no output could encode.
            raise Mismatch(f"{_named(place)} holds text that is not valid Unicode")


def _fits(value: object, hint: Any) -> bool:
    try:
        conform(value, hint, "")
    except Mismatch:
        return False
    return True


def _names(hints: tuple[Any, ...]) -> str:
    return ", ".join(
        getattr(hint, "__name__", str(hint)).replace("NoneType", "null") for hint in hints
    )


def _expect(good: bool, value: object, place: _Place, expected: str) -> None:
    if not good:
        raise Mismatch(f"{_named(place) or 'it'} is {shown(value)}, expected {expected}")
