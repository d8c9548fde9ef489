"""A frame of a stack as one line, "file:line function": what it is made of."""

from __future__ import annotations

import re
from collections.abc import Sequence

_FRAME = re.compile(r"(.*?:\d+)(?: (.*))?", re.DOTALL)
"""A file's path may have blanks in it, and so may what is said of a function."""


def parts(frame: str) -> tuple[str, str]:
    """The line with the file's path, and the function."""
    found = _FRAME.fullmatch(frame)
    return (found[1], found[2] or "") if found else (frame, "")


def line(stack: Sequence[str]) -> str:
    """The innermost line, with the file's path; empty without a stack."""
    return parts(stack[0])[0] if stack else ""


def place(stack: Sequence[str]) -> str | None:
    """The same as findings tell it, "file.py:12"; None without a stack."""
    return line(stack).rpartition("/")[2] or None
