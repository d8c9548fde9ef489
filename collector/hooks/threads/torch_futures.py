"""Results that one thread leaves for another in futures of torch, and what is called with them."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...format.record_kinds import SyncKind
from ..base import Hook
from ..patches import Changed, Patches, around
from .sync_events import Handovers, Waiting


def install(handovers: Handovers) -> Callable[[], None]:
    """Record `torch.futures`, also futures that operations hand out (`Work.get_future`)."""
    patches, numbers = Patches(), _Numbers(handovers)
    kind: Any = torch.futures.Future.__base__  # what `then` and `collect_all` make is of it
    patches.ends(kind, "set_result", _setting(handovers, numbers), when_concurrent=True)
    for name in ("wait", "value"):
        patches.ends(kind, name, *_getting(handovers, numbers), when_concurrent=True)
    patches.ends(kind, "done", *_looking(numbers), when_concurrent=True)
    chains, made = _chaining(handovers, numbers)
    patches.ends(kind, "then", chains, made)
    patches.ends(kind, "add_done_callback", chains)  # nobody can wait for what comes of it
    # Looked up by `collect_all` and `wait_all` each time.
    patches.ends(
        sys.modules["torch._C"],
        "_collect_all",
        *_collecting(numbers),
        lost="order by torch.futures.collect_all",
    )
    return patches.undo


class _Numbers:
    """By which numbers a future's result comes: its own first, then those of whom it is made of.

    Kept beside the futures, whose type allows no attributes. A callback is given another object for
    the same future, so that what it receives is told when it is added.
    """

    def __init__(self, handovers: Handovers) -> None:
        self._handovers = handovers
        self._known: weakref.WeakKeyDictionary[Any, tuple[int, ...]] = weakref.WeakKeyDictionary()

    def of(self, future: Any) -> tuple[int, ...]:
        known = self._known.get(future)
        if known is None:
            known = self._known.setdefault(future, (self._handovers.next_number(),))
        return known

    def made(self, future: Any, numbers: tuple[int, ...]) -> None:
        self._known[future] = numbers

    def received(self, numbers: Sequence[int]) -> None:
        """The calling thread knows what those that set these did before."""
        for number in numbers:
            self._handovers.note(SyncKind.future_get, number)


def _setting(handovers: Handovers, numbers: _Numbers) -> Callable[..., None]:
    def begin(future: Any, *_: Any, **__: Any) -> None:
        handovers.note(SyncKind.future_set, numbers.of(future)[0])

    return begin


def _getting(handovers: Handovers, numbers: _Numbers) -> tuple[Callable[..., Any], ...]:
    def begin(future: Any, *_: Any, **__: Any) -> tuple[Waiting, list[int]]:
        own, *others = numbers.of(future)
        return handovers.waits(SyncKind.future_get, own), others

    def done(began: tuple[Waiting, list[int]], _: Any) -> None:
        waiting, others = began
        handovers.waited(waiting)
        handovers.note(SyncKind.future_get, waiting.target, waiting.start)
        numbers.received(others)

    def raised(began: tuple[Waiting, list[int]], _: BaseException) -> None:
        waiting, others = began  # the result may be that exception
        handovers.waited(waiting)
        numbers.received((waiting.target, *others))

    return begin, done, raised


def _looking(numbers: _Numbers) -> tuple[Callable[..., Any], ...]:
    def done(future: Any, seen: Any) -> None:
        if seen:
            numbers.received(numbers.of(future))

    return (lambda future: future), done


def _run_when_set(
    handovers: Handovers, numbers: _Numbers, future: Any, callback: Callable[..., Any], result: int
) -> Callable[..., Any]:
    """`callback`, which knows of its adding and of the setting, and sets `result`."""
    added, known = handovers.next_number(), numbers.of(future)
    handovers.note(SyncKind.callback_post, added)

    def begin() -> bool:
        handovers.note(SyncKind.callback_run, added)
        numbers.received(known)
        return True

    return around(callback, begin, lambda _: handovers.note(SyncKind.future_set, result))


def _chaining(handovers: Handovers, numbers: _Numbers) -> tuple[Callable[..., Any], ...]:
    def begin(*args: Any, **keywords: Any) -> Changed | None:
        if len(args) != 2 or keywords or not callable(args[1]):
            return None  # the call is about to fail
        future, callback = args
        result = handovers.next_number()
        run = _run_when_set(handovers, numbers, future, callback, result)
        return Changed((result,), (future, run))

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


HOOK = Hook("order of threads (torch_futures)", lambda context: install(context.sync))
