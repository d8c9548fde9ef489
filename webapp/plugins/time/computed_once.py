"""Results that several parts of a page ask for at the same time."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from threading import RLock
from typing import Any, TypeVar

from lanescope.webapp.analysis.findings import NotApplicable

_T = TypeVar("_T")


def computed_once(maxsize: int) -> Callable[[Callable[..., _T]], Callable[..., _T]]:
    """Returns a decorator as `functools.lru_cache` is one, whose callers wait for a result that is
    being computed already: the parts of a page are made side by side. It also keeps that a question
    does not apply."""

    def decorated(function: Callable[..., _T]) -> Callable[..., _T]:
        lock = RLock()

        @lru_cache(maxsize)
        def kept(*given: Any) -> tuple[_T] | NotApplicable:
            try:
                return (function(*given),)
            except NotApplicable as reason:
                return reason

        @wraps(function)
        def answer(*given: Any) -> _T:
            with lock:
                found = kept(*given)
            if isinstance(found, NotApplicable):
                raise type(found)(*found.args)
            return found[0]

        return answer

    return decorated
