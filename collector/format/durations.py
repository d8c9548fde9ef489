"""Durations and windows as people write them: `1ms`, `90 s`, `2min`, `1.2ms-1.8ms`."""

from __future__ import annotations

import re

_UNITS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "min": 60 * 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
    "d": 86400 * 10**9,
}
"""Unit -> nanoseconds. The micro sign and the Greek letter look the same."""

_MAX_NS = 1 << 62
_DURATION = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)(e[+-]?\d{1,3})?\s*([a-zµμ]*)\s*", re.ASCII)


def parse_duration(text: str, unit: str = "") -> int:
    """Converts `1ms`, `250us`, `2.5 s`, `5m`, `1h` to nanoseconds.

    `unit` is that of a number without one; where it is empty, a number needs its own. Raises
    ValueError.
    """
    found = _DURATION.fullmatch(text)
    factor = _UNITS.get(found[3] or unit) if found else None
    if found is not None and factor is not None:
        value = float(found[1] + (found[2] or "")) * factor
        if value < _MAX_NS:
            return round(value)
    plain = f"; a number alone means {unit}" if unit else ""
    raise ValueError(
        f"{text!r} is not a duration; write a number with ns, us, ms, s, min, h or d, as in "
        f"1ms{plain}"
    )


def parse_timeout(text: str) -> int:
    """Converts `60` (seconds), `90s`, `500ms`, `5m`, `1h` to nanoseconds. Raises ValueError."""
    return parse_duration(text, "s")


def parse_window(text: str) -> tuple[int, int]:
    """Converts `1.2ms-1.8ms`, or `1200000-1800000` (ns), to nanoseconds. Raises ValueError.

    The end's unit counts for a start without one: `1.2-1.8ms`.
    """
    first, dash, last = text.replace("e-", "e~").partition("-")
    try:
        if not dash:
            raise ValueError
        end = re.search(r"[a-zµμ]+\s*$", last)
        begin = parse_duration(first.replace("~", "-"), end[0].strip() if end else "ns")
        window = begin, parse_duration(last.replace("~", "-"), "ns")
    except ValueError:
        window = 0, 0
    if window[0] >= window[1]:
        raise ValueError(
            f"{text!r} is not a window; write its start and end, as in 1.2ms-1.8ms; numbers alone "
            "are nanoseconds"
        )
    return window
