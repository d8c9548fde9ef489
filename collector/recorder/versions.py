"""Knows which versions of Python and torch LaneScope is tested with.

The table is in docs/versions.md. Older ones are not recorded; newer ones are, with a line in the
coverage.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from ..format.names import UNTESTED

Version = tuple[int, int]

OLDEST_PYTHON: Version = (3, 10)
NEWEST_PYTHON: Version = (3, 14)
OLDEST_TORCH: Version = (2, 5)
NEWEST_TORCH: Version = (2, 15)


def unsupported(torch: Any) -> str | None:
    """Returns why a process with this torch module cannot be recorded; None: it can."""
    found = _version(torch)
    if found < OLDEST_TORCH:
        return f"torch {torch.__version__} is older than {_text(OLDEST_TORCH)}, the oldest recorded"
    if "free-threading" in sys.version:
        return "this Python has no global interpreter lock, which LaneScope does not support yet"
    return None


def untested() -> tuple[str, ...]:
    """Returns reasons for the coverage: versions newer than the newest tested ones."""
    torch = sys.modules.get("torch")
    pairs = [
        ("Python", sys.version_info[:2], NEWEST_PYTHON, sys.version.split()[0]),
        ("torch", _version(torch), NEWEST_TORCH, str(getattr(torch, "__version__", ""))),
    ]
    return tuple(
        f"{UNTESTED}{name} {text} is newer than {_text(newest)}, the newest tested"
        for name, version, newest, text in pairs
        if version > newest
    )


def _version(torch: Any) -> Version:
    """Returns major and minor version; the newest tested one if torch has none."""
    found = re.match(r"(\d+)\.(\d+)", str(getattr(torch, "__version__", "")))
    return (int(found[1]), int(found[2])) if found else NEWEST_TORCH


def _text(version: Version) -> str:
    return f"{version[0]}.{version[1]}"
