"""Records results passed between threads in futures of torch, and their callbacks."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ...format.record_kinds import SyncKind
from .. import dispatch_modes
from ..base import Hook, HookContext
from ..collectives.rpc import RemoteErrors
from ..patches import ChangedArguments, around
from .sync_events import SyncRecorder, Waiting


def _hook(context: HookContext) -> None:
    """Records `torch.futures`, also futures of operations (`Work.get_future`).

    `RemoteErrors` get what futures raise, and start the record of threads where there are workers.
    """
    sync, remote, patches = context.get(SyncRecorder), context.find(RemoteErrors), context.patches
    if remote is not None:
        remote.on_threads = sync.second_thread
    numbers = _Numbers(sync)
    kind: Any = torch.futures.Future.__base__  # type of the results of `then` and `collect_all`
    patches.ends(kind, "set_result", _setting(sync, numbers), when_concurrent=True)
    for name in ("wait", "value"):
        patches.ends(kind, name, *_getting(sync, numbers, remote), when_concurrent=True)
    patches.ends(kind, "done", *_looking(numbers), when_concurrent=True)
    chains, made = _chaining(sync, numbers, context.enter_engine)
    patches.ends(kind, "then", chains, made)
    patches.ends(kind, "add_done_callback", chains)  # its result cannot be waited for
    # Looked up by `collect_all` and `wait_all` each time.
    patches.ends(
        sys.modules["torch._C"],
        "_collect_all",
        *_collecting(numbers),
        lost="order by torch.futures.collect_all",
    )


class _Numbers:
    """Numbers under which a future's result becomes visible: its own, then those of its sources.

    Kept beside the futures, whose type allows no attributes. A callback gets another object for
    the same future, so the numbers that it receives are looked up when it is added.
    """

    def __init__(self, sync: SyncRecorder) -> None:
        self._sync = sync
        self._known: weakref.WeakKeyDictionary[Any, tuple[int, ...]] = weakref.WeakKeyDictionary()

    def of(self, future: Any) -> tuple[int, ...]:
        known = self._known.get(future)
        if known is None:
            known = self._known.setdefault(future, (self._sync.next_number(),))
        return known

    def made(self, future: Any, numbers: tuple[int, ...]) -> None:
        self._known[future] = numbers

    def received(self, numbers: Sequence[int]) -> None:
        """Records that the calling thread received from the threads that set these numbers."""
        for number in numbers:
            self._sync.note(SyncKind.future_get, number)


def _setting(sync: SyncRecorder, numbers: _Numbers) -> Callable[..., None]:
    def begin(future: Any, *_: Any, **__: Any) -> None:
        sync.note(SyncKind.future_set, numbers.of(future)[0])

    return begin


def _getting(
    sync: SyncRecorder, numbers: _Numbers, remote: RemoteErrors | None
) -> tuple[Callable[..., Any], ...]:
    def begin(future: Any, *_: Any, **__: Any) -> tuple[Waiting, list[int]]:
        own, *others = numbers.of(future)
        return sync.waits(SyncKind.future_get, own), others

    def done(began: tuple[Waiting, list[int]], _: Any) -> None:
        waiting, others = began
        sync.waited(waiting)
        sync.note(SyncKind.future_get, waiting.target, waiting.start)
        numbers.received(others)

    def raised(began: tuple[Waiting, list[int]], error: BaseException) -> None:
        if remote is not None:
            remote.read(error)
        waiting, others = began  # the result may be that exception
        sync.waited(waiting)
        numbers.received((waiting.target, *others))

    return begin, done, raised


def _looking(numbers: _Numbers) -> tuple[Callable[..., Any], ...]:
    def done(future: Any, seen: Any) -> None:
        if seen:
            numbers.received(numbers.of(future))

    return (lambda future: future), done


def _run_when_set(
    sync: SyncRecorder,
    numbers: _Numbers,
    enter_engine: Callable[[], AbstractContextManager[None]],
    future: Any,
    callback: Callable[..., Any],
    result: int,
) -> Callable[..., Any]:
    """Returns `callback`, run after its adding and the setting of `future`; it sets `result`.

    A thread of C++ may run it, which no engine has entered.
    """
    added, known = sync.next_number(), numbers.of(future)
    sync.note(SyncKind.callback_post, added)

    def begin() -> AbstractContextManager[None]:
        sync.note(SyncKind.callback_run, added)
        numbers.received(known)
        inside = nullcontext() if dispatch_modes.depth() else enter_engine()
        inside.__enter__()
        return inside

    def done(inside: AbstractContextManager[None]) -> None:
        inside.__exit__(None, None, None)
        sync.note(SyncKind.future_set, result)

    return around(callback, begin, done)


def _chaining(
    sync: SyncRecorder,
    numbers: _Numbers,
    enter_engine: Callable[[], AbstractContextManager[None]],
) -> tuple[Callable[..., Any], ...]:
    def begin(*args: Any, **keywords: Any) -> ChangedArguments | None:
        if len(args) != 2 or keywords or not callable(args[1]):
            return None  # the call is about to fail
        future, callback = args
        result = sync.next_number()
        run = _run_when_set(sync, numbers, enter_engine, future, callback, result)
        return ChangedArguments((result,), (future, run))

    def done(own: tuple[int, ...], made: Any) -> None:
        numbers.made(made, own)

    return begin, done


def _collecting(numbers: _Numbers) -> tuple[Callable[..., Any], ...]:
    def begin(futures: Any) -> Any:
        return futures if isinstance(futures, list) else None  # an iterator can be read once

    def done(futures: Any, made: Any) -> None:
        sources = dict.fromkeys(number for future in futures for number in numbers.of(future))
        numbers.made(made, tuple(sources) or numbers.of(made))

    return begin, done


HOOK = Hook("order of threads (torch_futures)", _hook)
