"""Records results and calls passed between threads: futures, and callbacks of event loops."""

from __future__ import annotations

import asyncio
import concurrent.futures
import multiprocessing
import sys
import threading
import weakref
from collections.abc import Callable
from multiprocessing import pool
from typing import Any

from ...format.record_kinds import SyncKind
from ...recorder.private_names import optional
from ..base import Hook, HookContext
from ..patches import Patches
from .lost_errors import LostErrors
from .sync_events import SyncRecorder, Waiting

_BASE = "concurrent.futures._base"


def _hook(context: HookContext) -> None:
    """Records `concurrent.futures`, thread pools and calls posted to asyncio loops."""
    errors = LostErrors(context.recorder, context.stacks.is_library)
    sync, patches, future = context.get(SyncRecorder), context.patches, concurrent.futures.Future
    sets, looks, getting = _setting(sync), _looking(sync), _getting(sync, errors)
    patches.ends(future, "set_result", sets, self_alone=True, when_concurrent=True)
    patches.ends(future, "set_exception", _failing(sync, errors), when_concurrent=True)
    for name in ("result", "exception"):
        patches.ends(future, name, *getting, self_alone=True, when_concurrent=True)
    patches.ends(future, "done", *looks, self_alone=True, when_concurrent=True)
    _callbacks_on_done(sync, errors, patches)
    # `wait` and `as_completed` look these up at each call.
    for name in ("DoneAndNotDoneFutures", "_yield_finished_futures"):
        lost = "order by concurrent.futures.wait, as_completed"
        found = optional(_BASE, name, lost)
        if isinstance(found, type):
            patches.ends(found, "__new__", _all_received(sync, 1), when_concurrent=True)
        elif found is not None:
            patches.ends(sys.modules[_BASE], name, _all_received(sync, 0), when_concurrent=True)
    _pools(sync, errors, patches)
    patches.ends(pool.ApplyResult, "ready", *looks, self_alone=True, when_concurrent=True)
    _loop(sync, patches)
    patches.ends(asyncio.BaseEventLoop, "call_exception_handler", errors.reported)
    patches.also_undo(errors.close)


def _pools(sync: SyncRecorder, errors: LostErrors, patches: Patches) -> None:
    """Hooks the results of pools of multiprocessing, of threads and of processes."""
    lost = "order by results of thread pools"
    sets = _setting_of_pool(sync, errors)
    for result in (pool.ApplyResult, pool.MapResult, pool.IMapIterator, pool.IMapUnorderedIterator):
        patches.ends(result, "_set", sets, when_concurrent=True, lost=lost)
    patches.ends(pool.ApplyResult, "__init__", errors.submitted)
    for name in ("get", "successful"):
        patches.ends(pool.ApplyResult, name, *_reading(errors), self_alone=True)
    for name in ("next", "__next__"):
        patches.ends(pool.IMapIterator, name, *_taking(sync), self_alone=True, when_concurrent=True)


def _setting_of_pool(sync: SyncRecorder, errors: LostErrors) -> Callable[..., None]:
    def begin(own: Any, *args: Any, **_: Any) -> None:
        sync.note(SyncKind.future_set, sync.key(own))
        if len(args) > 1 and isinstance(args[1], tuple) and not args[1][0]:
            errors.failed_in_pool(own, args[1][1])

    return begin


def _reading(errors: LostErrors) -> tuple[Callable[..., Any], ...]:
    """Hooks of a call that raises or shows the error of a result, where it does not time out."""

    def done(own: Any, _: Any) -> None:
        errors.read(own)

    def raised(own: Any, error: BaseException) -> None:
        if own.ready() or not isinstance(error, multiprocessing.TimeoutError):
            errors.read(own)

    return _itself, done, raised


def _received(sync: SyncRecorder, future: Any) -> None:
    """Records that the calling thread received from the thread that set the future."""
    sync.note(SyncKind.future_get, sync.key(future))


def _itself(own: Any) -> Any:
    return own


def _setting(sync: SyncRecorder) -> Callable[[Any], None]:
    def begin(own: Any) -> None:
        sync.note(SyncKind.future_set, sync.key(own))

    return begin


def _failing(sync: SyncRecorder, errors: LostErrors) -> Callable[..., None]:
    def begin(future: Any, exception: Any = None) -> None:
        sync.note(SyncKind.future_set, sync.key(future))
        errors.failed(future, exception)

    return begin


def _getting(sync: SyncRecorder, errors: LostErrors) -> tuple[Callable[..., Any], ...]:
    def begin(future: Any) -> tuple[Any, Waiting] | None:
        if not isinstance(future, concurrent.futures.Future):
            return None  # the call is about to fail
        return future, sync.waits(SyncKind.future_get, sync.key(future))

    def done(began: tuple[Any, Waiting], _: Any) -> None:
        future, waiting = began
        errors.read(future)  # exception() returned it
        sync.waited(waiting)
        sync.note(SyncKind.future_get, waiting.target, waiting.start)

    def raised(began: tuple[Any, Waiting], _: BaseException) -> None:
        future, waiting = began
        errors.read(future)
        sync.waited(waiting)
        # The exception may be the result; after a timeout nothing was received.
        if future.done():
            sync.note(SyncKind.future_get, waiting.target)

    return begin, done, raised


def _looking(sync: SyncRecorder) -> tuple[Callable[..., Any], ...]:
    def done(own: Any, seen: Any) -> None:
        if seen:
            _received(sync, own)

    return _itself, done


def _taking(sync: SyncRecorder) -> tuple[Callable[..., Any], ...]:
    def done(own: Any, _: Any) -> None:
        _received(sync, own)

    return _itself, done


def _all_received(sync: SyncRecorder, position: int) -> Callable[..., None]:
    """Returns a hook: the caller receives all futures of the argument at `position`."""

    def begin(*args: Any, **keywords: Any) -> None:
        for future in (*args, *keywords.values())[position]:
            _received(sync, future)

    return begin


def _callbacks_on_done(sync: SyncRecorder, errors: LostErrors, patches: Patches) -> None:
    """Hooks callbacks: run by the thread that sets the result, or that adds them late."""
    future = concurrent.futures.Future

    def number(own: Any) -> int:
        return sync.part(sync.key(own), 1)

    def adds(*args: Any, **_: Any) -> None:
        errors.read(args[0])
        if args[0].done():
            _received(sync, args[0])
        else:
            sync.note(SyncKind.callback_post, number(args[0]))

    def calls(own: Any) -> None:
        sync.note(SyncKind.callback_run, number(own))

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
    """Number of the call that the thread is posting to a loop; 0: no call."""

    number = 0


def _loop(sync: SyncRecorder, patches: Patches) -> None:
    """Orders a call posted to a loop after everything the posting thread did before."""
    lost = "order by calls that asyncio loops get"
    posting = _Posting()
    # By id: every callback of every loop is looked up here.
    numbers: dict[int, tuple[weakref.ref[Any], int]] = {}

    def posts(*_: Any, **__: Any) -> bool:
        posting.number = sync.next_number()
        sync.note(SyncKind.callback_post, posting.number)
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
            sync.note(SyncKind.callback_run, found[1])

    loop, handle = asyncio.BaseEventLoop, asyncio.Handle
    patches.ends(loop, "call_soon_threadsafe", posts, posted, posted, when_concurrent=True)
    patches.ends(handle, "__init__", handled, self_alone=True, when_concurrent=True)
    patches.ends(handle, "_run", runs, self_alone=True, when_concurrent=True, lost=lost)


HOOK = Hook("order of threads (futures)", _hook)
