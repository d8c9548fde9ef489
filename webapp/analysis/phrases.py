"""Turns of phrase that findings share."""

from __future__ import annotations


def and_more(count: int, noun: str) -> str:
    """` and 3 more layers` behind the first of `count`; nothing where it is the only one."""
    more = count - 1
    return f" and {more} more {noun}{'s' if more > 1 else ''}" if more > 0 else ""
