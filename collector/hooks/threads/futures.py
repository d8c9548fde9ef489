"""Results and calls that one thread leaves for another: futures, and an event loop's callbacks."""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
import threading
import weakref
from collections.abc import Callable
from multiprocessing import pool
from typing import Any

from ...format.record_kinds import SyncKind
from ...recorder.private_names import optional
from ..base import Hook
from ..patches import Patches
from .sync_events import Handovers, Waiting

_BASE = "concurrent.futures._base"


def install(handovers: Handovers) -> Callable[[], None]:
    """Record `concurrent.futures`, thread pools and what an asyncio loop gets."""
    patches, future = Patches(), concurrent.futures.Future
    sets, looks = _setting(handovers), _looking(handovers)
    for name in ("set_result", "set_exception"):
        patches.ends(future, name, sets, self_alone=True, when_concurrent=True)
    for name in ("result", "exception"):
        patches.ends(future, name, *_getting(handovers), self_alone=True, when_concurrent=True)
    patches.ends(future, "done", *looks, self_alone=True, when_concurrent=True)
    _callbacks_on_done(handovers, patches)
    # What `wait` and `as_completed` look up each time, whatever name a program has them by.
    for name in ("DoneAndNotDoneFutures", "_yield_finished_futures"):
        lost = "order by concurrent.futures.wait, as_completed"
        found = optional(_BASE, name, lost)
        if isinstance(found, type):
            patches.ends(found, "__new__", _all_received(handovers, 1), when_concurrent=True)
        elif found is not None:
            patches.ends(
                sys.modules[_BASE], name, _all_received(handovers, 0), when_concurrent=True
            )
    for result in (pool.ApplyResult, pool.MapResult, pool.IMapIterator, pool.IMapUnorderedIterator):
        patches.ends(
            result,
            "_set",
            sets,
            self_alone=True,
            when_concurrent=True,
            lost="order by results of thread pools",
        )
    patches.ends(pool.ApplyResult, "ready", *looks, self_alone=True, when_concurrent=True)
    for name in ("next", "__next__"):
        patches.ends(
            pool.IMapIterator, name, *_taking(handovers), self_alone=True, when_concurrent=True
        )
    _loop(handovers, patches)
    return patches.undo


def _received(handovers: Handovers, future: Any) -> None:
    """The calling thread knows what whoever set the future did before."""
    handovers.note(SyncKind.future_get, handovers.key(future))


def _itself(own: Any) -> Any:
    return own


def _setting(handovers: Handovers) -> Callable[[Any], None]:
    def begin(own: Any) -> None:
        handovers.note(SyncKind.future_set, handovers.key(own))

    return begin


def _getting(handovers: Handovers) -> tuple[Callable[..., Any], ...]:
    def begin(future: Any) -> tuple[Any, Waiting] | None:
        if not isinstance(future, concurrent.futures.Future):
            return None  # the call is about to fail
        return future, handovers.waits(SyncKind.future_get, handovers.key(future))

    def done(began: tuple[Any, Waiting], _: Any) -> None:
        waiting = began[1]
        handovers.waited(waiting)
        handovers.note(SyncKind.future_get, waiting.target, waiting.start)

    def raised(began: tuple[Any, Waiting], _: BaseException) -> None:
        future, waiting = began
        handovers.waited(waiting)
        # The result may be that exception; a time that is over has received nothing.
        if future.done():
            handovers.note(SyncKind.future_get, waiting.target)

    return begin, done, raised


def _looking(handovers: Handovers) -> tuple[Callable[..., Any], ...]:
    def done(own: Any, seen: Any) -> None:
        if seen:
            _received(handovers, own)

    return _itself, done


def _taking(handovers: Handovers) -> tuple[Callable[..., Any], ...]:
    def done(own: Any, _: Any) -> None:
        _received(handovers, own)

    return _itself, done


def _all_received(handovers: Handovers, position: int) -> Callable[..., None]:
    """The futures of an argument are done, and whoever called knows that."""

    def begin(*args: Any, **keywords: Any) -> None:
        for future in (*args, *keywords.values())[position]:
            _received(handovers, future)

    return begin


def _callbacks_on_done(handovers: Handovers, patches: Patches) -> None:
    """Called by whoever sets the result, or by whoever adds them where it is set already."""
    future = concurrent.futures.Future

    def number(own: Any) -> int:
        return handovers.part(handovers.key(own), 1)

    def adds(*args: Any, **_: Any) -> None:
        if args[0].done():
            _received(handovers, args[0])
        else:
            handovers.note(SyncKind.callback_post, number(args[0]))

    def calls(own: Any) -> None:
        handovers.note(SyncKind.callback_run, number(own))

    patches.ends(future, "add_done_callback", adds, when_concurrent=True)
    patches.ends(
        future,
        "_invoke_callbacks",
        calls,
        self_alone=True,
        when_concurrent=True,
        lost="order by callbacks of concurrent.futures",
    )


class _Posting(threading.local):
    """The call that the thread is posting to a loop; 0: none."""

    number = 0


def _loop(handovers: Handovers, patches: Patches) -> None:
    """What a loop is given to call by another thread, it calls after what that did until then."""
    lost = "order by calls that asyncio loops get"
    posting = _Posting()
    # By id: every callback of every loop is looked up here.
    numbers: dict[int, tuple[weakref.ref[Any], int]] = {}

    def posts(*_: Any, **__: Any) -> bool:
        posting.number = handovers.next_number()
        handovers.note(SyncKind.callback_post, posting.number)
        return True

    def posted(*_: Any) -> None:
        posting.number = 0

    def handled(handle: Any) -> None:
        if posting.number:
            key = id(handle)
            gone = weakref.ref(handle, lambda _: numbers.pop(key, None))  # cancelled, perhaps
            numbers[key] = gone, posting.number

    def runs(handle: Any) -> None:
        found = numbers.pop(id(handle), None)
        if found is not None:
            handovers.note(SyncKind.callback_run, found[1])

    loop, handle = asyncio.BaseEventLoop, asyncio.Handle
    patches.ends(loop, "call_soon_threadsafe", posts, posted, posted, when_concurrent=True)
    patches.ends(handle, "__init__", handled, self_alone=True, when_concurrent=True)
    patches.ends(handle, "_run", runs, self_alone=True, when_concurrent=True, lost=lost)


HOOK = Hook("order of threads (futures)", lambda context: install(context.sync))
