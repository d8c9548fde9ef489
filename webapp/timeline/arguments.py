"""Arguments of the addresses under which the timeline asks."""

from __future__ import annotations

import re
from collections.abc import Mapping

from lanescope.webapp.runs.errors import shown


class BadRequest(ValueError):
    """An argument that cannot be read; the message is one sentence."""


def is_forward(direction: str) -> bool:
    """Returns True for next, false for prev."""
    if direction not in ("next", "prev"):
        raise BadRequest(f"dir is {shown(direction)}, expected next or prev")
    return direction == "next"


def integer(name: str, text: str) -> int:
    """Returns a whole number that JavaScript holds exactly (up to 2^53)."""
    if not re.fullmatch(r"-?[0-9]{1,16}", text, re.ASCII) or abs(int(text)) > 1 << 53:
        raise BadRequest(f"{name} is {shown(text)}, expected a whole number")
    return int(text)


def window_of(arguments: Mapping[str, str]) -> tuple[int, int]:
    """Returns [t0, t1) of t0 and t1, ns from the start of the run."""
    low, high = integer("t0", arguments.get("t0", "")), integer("t1", arguments.get("t1", ""))
    if low >= high:
        raise BadRequest(f"t0 is {low} and t1 is {high}, expected t0 < t1")
    return low, high
