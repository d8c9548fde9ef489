"""Results and calls that one thread leaves for another: futures, and an event loop's callbacks."""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
from collections.abc import Callable, Iterator
from multiprocessing import pool
from typing import Any

from ...format.record_kinds import SyncKind
from ...recorder.private_names import optional
from ..patches import Patches
from .sync_events import Handovers

_Method = Callable[..., Any]
_BASE = "concurrent.futures._base"


def install(handovers: Handovers) -> Callable[[], None]:
    """Record `concurrent.futures`, thread pools and what an asyncio loop gets."""
    patches = Patches()

    def replace(owner: type, name: str, make: Callable[[Handovers, _Method], _Method]) -> None:
        patches.replace(owner, name, lambda original: make(handovers, original))

    future = concurrent.futures.Future
    for name in ("set_result", "set_exception"):
        replace(future, name, _setting)
    for name in ("result", "exception"):
        replace(future, name, _getting)
    replace(future, "done", _looking)
    replace(future, "add_done_callback", _callback_on_done)
    # What `wait` and `as_completed` look up each time, whatever name a program has them by.
    for name, make in (
        ("DoneAndNotDoneFutures", _waited),
        ("_yield_finished_futures", _completed),
    ):
        found = optional(_BASE, name, "order by concurrent.futures.wait, as_completed")
        if found is not None:
            patches.put(sys.modules[_BASE], name, make(handovers, found))
    for result in (pool.ApplyResult, pool.MapResult, pool.IMapIterator, pool.IMapUnorderedIterator):
        patches.replace_private(
            result, "_set", lambda original: _setting(handovers, original),
            "order by results of thread pools",
        )  # fmt: skip
    replace(pool.ApplyResult, "ready", _looking)
    for name in ("next", "__next__"):
        replace(pool.IMapIterator, name, _taking)
    replace(asyncio.BaseEventLoop, "call_soon_threadsafe", _posting)
    return patches.undo


def _received(handovers: Handovers, future: Any) -> None:
    """The calling thread knows what whoever set the future did before."""
    if handovers.concurrent:
        handovers.note(SyncKind.future_get, handovers.key(future))


def _setting(handovers: Handovers, original: _Method) -> _Method:
    def put(self: Any, *args: Any, **keywords: Any) -> Any:
        if handovers.concurrent:
            handovers.note(SyncKind.future_set, handovers.key(self))
        return original(self, *args, **keywords)

    return put


def _getting(handovers: Handovers, original: _Method) -> _Method:
    def get(self: Any, *args: Any, **keywords: Any) -> Any:
        if not handovers.concurrent:
            return original(self, *args, **keywords)
        target = handovers.key(self)
        try:
            result, start = handovers.wait(
                SyncKind.future_get, target, lambda: original(self, *args, **keywords)
            )
        except BaseException:
            # The result may be that exception; a time that is over has received nothing.
            if self.done():
                handovers.note(SyncKind.future_get, target)
            raise
        handovers.note(SyncKind.future_get, target, start)
        return result

    return get


def _looking(handovers: Handovers, original: _Method) -> _Method:
    def done(self: Any) -> Any:
        seen = original(self)
        if seen:
            _received(handovers, self)
        return seen

    return done


def _taking(handovers: Handovers, original: _Method) -> _Method:
    def take(self: Any, *args: Any, **keywords: Any) -> Any:
        result = original(self, *args, **keywords)
        _received(handovers, self)
        return result

    return take


def _waited(handovers: Handovers, original: Callable[..., Any]) -> Callable[..., Any]:
    def done_and_not_done(done: Any, not_done: Any) -> Any:
        for future in done:
            _received(handovers, future)
        return original(done, not_done)

    return done_and_not_done


def _completed(handovers: Handovers, original: Callable[..., Any]) -> Callable[..., Any]:
    def finished(*args: Any, **keywords: Any) -> Iterator[Any]:
        for future in original(*args, **keywords):
            _received(handovers, future)
            last = [future]
            del future  # which the program may be the last to hold
            yield last.pop()

    return finished


def _callback_on_done(handovers: Handovers, original: _Method) -> _Method:
    def add_done_callback(self: Any, callback: Callable[[Any], Any]) -> None:
        # Called by whoever sets the result, or here where it is set already.
        if not handovers.concurrent:
            original(self, callback)
            return
        if self.done():
            handovers.note(SyncKind.future_get, handovers.key(self))
        original(self, _knowing(handovers, callback))

    return add_done_callback


def _knowing(handovers: Handovers, callback: Callable[..., Any]) -> Callable[..., Any]:
    """`callback`, which whoever calls it calls after what the calling thread did until now."""
    target = handovers.next_number()
    handovers.note(SyncKind.callback_post, target)

    def run(*args: Any) -> Any:
        handovers.note(SyncKind.callback_run, target)
        return callback(*args)

    return run


def _posting(handovers: Handovers, original: _Method) -> _Method:
    def call_soon_threadsafe(
        self: Any, callback: Callable[..., Any], *args: Any, **keywords: Any
    ) -> Any:
        if not handovers.concurrent:
            return original(self, callback, *args, **keywords)
        return original(self, _knowing(handovers, callback), *args, **keywords)

    return call_soon_threadsafe
