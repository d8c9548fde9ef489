"""The parts of pages that are being made: what takes longer than all of them begins after them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition

_ASKED_S = 0.05
"""Within this time a browser has asked for all parts of a page."""


class Parts:
    """Counts those that are being made."""

    def __init__(self) -> None:
        self._made = 0
        self._changed = Condition()

    @contextmanager
    def making(self) -> Iterator[None]:
        """Counts a part while it is being made."""
        self._add(1)
        try:
            yield
        finally:
            self._add(-1)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Does not count the part of this thread, which waits for what begins after the others."""
        self._add(-1)
        try:
            yield
        finally:
            self._add(1)

    def _add(self, count: int) -> None:
        with self._changed:
            self._made += count
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Waits until the parts that were asked for with this one are made, at most so long."""
        with self._changed:
            self._changed.wait_for(lambda: False, _ASKED_S)
            self._changed.wait_for(lambda: self._made <= 0, seconds)
