"""Results that several parts of a page ask for at the same time."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from threading import RLock
from typing import Any, TypeVar

_T = TypeVar("_T")


def computed_once(maxsize: int) -> Callable[[Callable[..., _T]], Callable[..., _T]]:
    """Returns a decorator as `functools.lru_cache` is one, whose callers wait for a result that is
    being computed already: the parts of a page are made side by side."""

    def decorated(function: Callable[..., _T]) -> Callable[..., _T]:
        kept, lock = lru_cache(maxsize)(function), RLock()

        @wraps(function)
        def answer(*given: Any) -> _T:
            with lock:
                return kept(*given)

        return answer

    return decorated
